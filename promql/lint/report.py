"""Render lint findings as text, JSON and SARIF."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

from documents.json_text import json_text
from documents.sarif import SarifNotice, SarifResult, SarifRule, sarif_text
from promql.lint.findings import CHECKS, Finding
from promql.lint.linting import Report


def as_text(report: Report, version: str) -> str:
    """Render one paragraph per finding, then notes, then totals."""
    lines: list[str] = []
    for each in report.findings:
        lines += [
            f"{each.file}:{each.line}: {each.severity} {each.check} {CHECKS[each.check].name}: "
            f"{each.place}",
            f"    {each.part}",
            f"    {each.why}.",
            f"    Fix: {each.fix}.",
            "",
        ]
    lines += [f"note: {note}" for note in report.notes]
    count, unread = len(report.findings), len(report.unreadable)
    lines.append(
        f"{_plural(report.queries, 'query', 'queries')} checked, "
        f"{_plural(count, 'finding', 'findings') if count else 'no findings'}"
        + (f", {_plural(unread, 'file', 'files')} not read" if unread else "")
    )
    return "\n".join(lines) + "\n"


def _plural(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def as_json(report: Report, version: str) -> str:
    """Render findings and notes with all fields.

    ``path`` is a JSON pointer into the file, after the number of the document if there are several;
    ``line`` counts from 1 and is 0 for a file as a whole.
    """
    findings = [
        {**asdict(each), "name": CHECKS[each.check].name, "path": _pointer(each)}
        for each in report.findings
    ]
    return json_text(
        {
            "tool": f"tokenslo {version}",
            "queries": report.queries,
            "findings": findings,
            "notes": list(report.notes),
            "unreadable": [
                {"file": file, "line": each.line, "message": each.message, "fix": each.fix}
                for file, each in report.unreadable
            ],
        }
    )


def as_sarif(report: Report, version: str) -> str:
    """Render SARIF 2.1.0 for code hosts."""
    return sarif_text(
        "tokenslo lint",
        version,
        [
            SarifRule(id_, check.name, check.summary, check.severity)
            for id_, check in CHECKS.items()
        ],
        map(_sarif_result, report.findings),
        [
            *(SarifNotice("note", note) for note in report.notes),
            *(
                SarifNotice("error", f"{file}: {each.message}. Fix: {each.fix}.")
                for file, each in report.unreadable
            ),
        ],
    )


def _sarif_result(each: Finding) -> SarifResult:
    text = f"{each.place}: {each.why}. Fix: {each.fix}."
    return SarifResult(
        each.check, each.severity, text, each.file, each.line, each.part, _pointer(each)
    )


def _pointer(each: Finding) -> str:
    """Return a JSON pointer (RFC 6901)."""
    keys = (str(key).replace("~", "~0").replace("/", "~1") for key in each.path)
    return "".join(f"/{key}" for key in keys)


FORMATS: Mapping[str, Callable[[Report, str], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
}
