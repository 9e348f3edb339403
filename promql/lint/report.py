"""Render lint findings as text, JSON and SARIF."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

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
    return _dumped(
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
    ids = list(CHECKS)
    rules = [
        {
            "id": id_,
            "name": "".join(part.capitalize() for part in check.name.split("-")),
            "shortDescription": {"text": check.summary[0].upper() + check.summary[1:]},
            "defaultConfiguration": {"level": check.severity},
        }
        for id_, check in CHECKS.items()
    ]
    run = {
        "tool": {"driver": {"name": "tokenslo lint", "version": version, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, ids.index(each.check)) for each in report.findings],
        "invocations": [
            {
                "executionSuccessful": not report.unreadable,
                "toolExecutionNotifications": [
                    *(_notification("note", note) for note in report.notes),
                    *(
                        _notification("error", f"{file}: {each.message}. Fix: {each.fix}.")
                        for file, each in report.unreadable
                    ),
                ],
            }
        ],
    }
    return _dumped(
        {
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [run],
        }
    )


def _notification(level: str, text: str) -> dict[str, Any]:
    return {"level": level, "message": {"text": text}}


def _uri(file: str) -> str:
    path = PurePath(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())


def _result(each: Finding, index: int) -> dict[str, Any]:
    return {
        "ruleId": each.check,
        "ruleIndex": index,
        "level": each.severity,
        "message": {"text": f"{each.place}: {each.why}. Fix: {each.fix}."},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(each.file)},
                    "region": {"startLine": max(each.line, 1), "snippet": {"text": each.part}},
                },
                "logicalLocations": [{"fullyQualifiedName": _pointer(each)}],
            }
        ],
    }


def _pointer(each: Finding) -> str:
    """Return a JSON pointer (RFC 6901)."""
    keys = (str(key).replace("~", "~0").replace("/", "~1") for key in each.path)
    return "".join(f"/{key}" for key in keys)


def _dumped(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


FORMATS: Mapping[str, Callable[[Report, str], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
}
