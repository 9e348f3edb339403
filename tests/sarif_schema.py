"""Validate SARIF with the schema of OASIS, and with a stricter one of the written part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

# Errata 01 of the standard, unchanged; NOTICES.txt has its terms.
_OFFICIAL = json.loads((Path(__file__).parent / "sarif" / "sarif-schema-2.1.0.json").read_text())


def validate_sarif(document: dict[str, Any], prefix: str) -> None:
    """Validate a document whose rules have identifiers that start with ``prefix``."""
    jsonschema.validate(document, _OFFICIAL)
    jsonschema.validate(document, _WRITTEN)
    for run in document["runs"]:
        assert all(rule["id"].startswith(prefix) for rule in run["tool"]["driver"]["rules"])


def _only(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


_TEXT = {"type": "string", "minLength": 1}
_MESSAGE = _only({"text": _TEXT})
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
# The written part of SARIF 2.1.0, sections 3.13 to 3.49, without optional properties.
_WRITTEN = _only(
    {
        "$schema": {"const": "https://json.schemastore.org/sarif-2.1.0.json"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": _only(
                {
                    "tool": _only(
                        {
                            "driver": _only(
                                {
                                    "name": _TEXT,
                                    "version": _TEXT,
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": _only(
                                            {
                                                "id": {
                                                    "type": "string",
                                                    "pattern": "^T[CL][0-9]{3}$",
                                                },
                                                "name": _TEXT,
                                                "shortDescription": _MESSAGE,
                                                "defaultConfiguration": _only({"level": _LEVEL}),
                                            }
                                        ),
                                    },
                                }
                            )
                        }
                    ),
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "results": {
                        "type": "array",
                        "items": _only(
                            {
                                "ruleId": _TEXT,
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": _LEVEL,
                                "message": _MESSAGE,
                                "locations": {
                                    "type": "array",
                                    "minItems": 1,
                                    "items": _only(
                                        {
                                            "physicalLocation": _only(
                                                {
                                                    "artifactLocation": _only(
                                                        {"uri": {**_TEXT, "pattern": r"^[!-~]+$"}}
                                                    ),
                                                    "region": _only(
                                                        {
                                                            "startLine": {
                                                                "type": "integer",
                                                                "minimum": 1,
                                                            },
                                                            "snippet": _only(
                                                                {"text": {"type": "string"}}
                                                            ),
                                                        }
                                                    ),
                                                }
                                            ),
                                            "logicalLocations": {
                                                "type": "array",
                                                "items": _only({"fullyQualifiedName": _TEXT}),
                                            },
                                        }
                                    ),
                                },
                            }
                        ),
                    },
                    "invocations": {
                        "type": "array",
                        "items": _only(
                            {
                                "executionSuccessful": {"type": "boolean"},
                                "toolExecutionNotifications": {
                                    "type": "array",
                                    "items": _only({"level": _LEVEL, "message": _MESSAGE}),
                                },
                            }
                        ),
                    },
                }
            ),
        },
    }
)
