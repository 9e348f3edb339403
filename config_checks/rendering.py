"""Render a report as text, JSON and SARIF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from config_checks.findings import ConfigFinding, ConfigReport
from config_checks.table import CHECKS
from documents.json_text import json_text
from documents.sarif import SarifNotice, SarifResult, SarifRule, sarif_text


def as_text(report: ConfigReport) -> str:
    """Render one paragraph per finding, then what was not checked, then totals."""
    lines: list[str] = []
    for each in report.findings:
        row = CHECKS[each.check]
        lines += [
            f"{place(each)}: {each.severity} {each.check} {row.name}: {each.evidence}",
            f"    Threatens {_threatened(each.objectives)}: {row.costs}.",
            f"    Fix: {row.fix}.",
            "",
        ]
    lines += [
        f"not checked: {id_} {CHECKS[id_].name}, because {reason}"
        for id_, reason in report.unchecked
    ]
    lines += [f"note: {note}" for note in report.notes]
    count = len(report.findings)
    lines.append(f"{count} finding{'s' * (count != 1)}" if count else "no findings")
    return "\n".join(lines) + "\n"


def place(each: ConfigFinding) -> str:
    """Return ``file:line``."""
    return f"{each.file}:{each.line}" if each.line else each.file


def _threatened(objectives: Mapping[str, list[str]]) -> str:
    """Return the indicators, with the objectives that have them."""
    return ", ".join(
        f"{key} ({', '.join(names)})" if names else key for key, names in objectives.items()
    )


def finding_json(each: ConfigFinding) -> dict[str, Any]:
    """Return a finding with all fields."""
    row = CHECKS[each.check]
    return {
        "check": each.check,
        "name": row.name,
        "severity": each.severity,
        "file": each.file,
        "line": each.line,
        "path": each.path,
        "evidence": each.evidence,
        "indicators": list(each.objectives),
        "objectives": sorted({name for names in each.objectives.values() for name in names}),
        "costs": row.costs,
        "fix": row.fix,
    }


def unchecked_json(report: ConfigReport) -> list[dict[str, str]]:
    """Return the checks that could not be made."""
    return [
        {"check": id_, "name": CHECKS[id_].name, "reason": reason}
        for id_, reason in report.unchecked
    ]


def as_json(report: ConfigReport, version: str) -> str:
    """Render findings with all fields; ``line`` is 0 for a whole file."""
    return json_text(
        {
            "tokenslo": version,
            "findings": [finding_json(each) for each in report.findings],
            "unchecked": unchecked_json(report),
            "notes": list(report.notes),
        }
    )


def as_sarif(report: ConfigReport, version: str, tool: str = "tokenslo check-config") -> str:
    """Render SARIF 2.1.0 for code hosts."""
    return sarif_text(
        tool,
        version,
        [SarifRule(id_, row.name, row.finds, row.severity) for id_, row in CHECKS.items()],
        map(_sarif_result, report.findings),
        [
            *(
                SarifNotice("note", f"{id_} was not checked, because {reason}")
                for id_, reason in report.unchecked
            ),
            *(SarifNotice("note", note) for note in report.notes),
        ],
    )


def _sarif_result(each: ConfigFinding) -> SarifResult:
    row = CHECKS[each.check]
    text = (
        f"{each.evidence}. Threatens {_threatened(each.objectives)}: {row.costs}. Fix: {row.fix}."
    )
    return SarifResult(
        each.check, each.severity, text, each.file, each.line, each.evidence, each.path or "/"
    )
