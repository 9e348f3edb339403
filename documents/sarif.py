"""SARIF 2.1.0, the format in which code hosts read findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from documents.json_text import json_text

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, slots=True)
class SarifRule:
    """A check; ``name`` is of words with hyphens."""

    id: str
    name: str
    summary: str
    severity: str


@dataclass(frozen=True, slots=True)
class SarifResult:
    """A finding of a rule; ``line`` counts from 1 and is 0 for a file as a whole.

    ``file`` is a path or an address.
    """

    rule: str
    severity: str
    message: str
    file: str
    line: int
    snippet: str
    path: str


@dataclass(frozen=True, slots=True)
class SarifNotice:
    """What the tool says about its own run."""

    level: Literal["note", "error"]
    text: str


def sarif_text(
    tool: str,
    version: str,
    rules: Sequence[SarifRule],
    results: Iterable[SarifResult],
    notices: Sequence[SarifNotice],
) -> str:
    """Render one run, which succeeded unless a notice is an error."""
    indexes = {rule.id: index for index, rule in enumerate(rules)}
    driver = {"name": tool, "version": version, "rules": [_rule(rule) for rule in rules]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, indexes[each.rule]) for each in results],
        "invocations": [
            {
                "executionSuccessful": all(notice.level != "error" for notice in notices),
                "toolExecutionNotifications": [
                    {"level": notice.level, "message": {"text": notice.text}} for notice in notices
                ],
            }
        ],
    }
    return json_text({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(rule: SarifRule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": rule.summary[0].upper() + rule.summary[1:]},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(each: SarifResult, index: int) -> dict[str, Any]:
    path = Path(each.file)
    if "://" in each.file:
        uri = each.file
    else:
        uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    return {
        "ruleId": each.rule,
        "ruleIndex": index,
        "level": each.severity,
        "message": {"text": each.message},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": uri},
                    "region": {
                        "startLine": max(each.line, 1),
                        "snippet": {"text": each.snippet},
                    },
                },
                "logicalLocations": [{"fullyQualifiedName": each.path}],
            }
        ],
    }
