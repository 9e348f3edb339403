"""Render a report as text, JSON and SARIF."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from config_checks.findings import ConfigFinding, ConfigReport
from config_checks.table import CHECKS


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
    return _dumped(
        {
            "tokenslo": version,
            "findings": [finding_json(each) for each in report.findings],
            "unchecked": unchecked_json(report),
            "notes": list(report.notes),
        }
    )


def as_sarif(report: ConfigReport, version: str) -> str:
    """Render SARIF 2.1.0 for code hosts."""
    ids = list(CHECKS)
    rules = [
        {
            "id": id_,
            "name": "".join(part.capitalize() for part in row.name.split("-")),
            "shortDescription": {"text": f"{row.finds[0].upper()}{row.finds[1:]}"},
            "defaultConfiguration": {"level": row.severity},
        }
        for id_, row in CHECKS.items()
    ]
    notes = [
        *(f"{id_} was not checked, because {reason}" for id_, reason in report.unchecked),
        *report.notes,
    ]
    run = {
        "tool": {"driver": {"name": "tokenslo check-config", "version": version, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, ids.index(each.check)) for each in report.findings],
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {"level": "note", "message": {"text": note}} for note in notes
                ],
            }
        ],
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return _dumped({"$schema": schema, "version": "2.1.0", "runs": [run]})


def _result(each: ConfigFinding, index: int) -> dict[str, Any]:
    row = CHECKS[each.check]
    path = PurePath(each.file)
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    text = (
        f"{each.evidence}. Threatens {_threatened(each.objectives)}: {row.costs}. Fix: {row.fix}."
    )
    return {
        "ruleId": each.check,
        "ruleIndex": index,
        "level": each.severity,
        "message": {"text": text},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": uri},
                    "region": {
                        "startLine": max(each.line, 1),
                        "snippet": {"text": each.evidence},
                    },
                },
                "logicalLocations": [{"fullyQualifiedName": each.path or "/"}],
            }
        ],
    }


def _dumped(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
