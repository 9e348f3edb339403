"""Small dashboards and rule files, and the output of `tokenslo lint` for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tokenslo.commands.lint import lint


def panel(*queries: str, title: str = "Panel", unit: str = "", **more: Any) -> dict[str, Any]:
    """Return a panel with one target per query."""
    return {
        "id": 1,
        "title": title,
        "type": "timeseries",
        "fieldConfig": {"defaults": {"unit": unit} if unit else {}, "overrides": []},
        "targets": [
            {"expr": query, "refId": chr(ord("A") + at)} for at, query in enumerate(queries)
        ],
        **more,
    }


def dashboard(*panels: Mapping[str, Any], **more: Any) -> str:
    return json.dumps({"title": "Board", "panels": list(panels), **more}, indent=1)


def rules(*rules_: Mapping[str, Any]) -> str:
    return json.dumps({"groups": [{"name": "g", "rules": list(rules_)}]}, indent=1)


def record(expr: str, name: str = "some:series:rate5m", **labels: str) -> dict[str, Any]:
    return {"record": name, "expr": expr, "labels": labels}


def alert(expr: str, **more: Any) -> dict[str, Any]:
    return {"alert": "Some", "expr": expr, **more}


def run(folder: Path, text: str, *options: str) -> list[dict[str, Any]]:
    """Return the findings about a file with this text."""
    file = folder / "file"
    file.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(
        lint, [str(file), "--format", "json", *options], standalone_mode=False
    )
    assert result.exception is None, result.output
    findings: list[dict[str, Any]] = json.loads(result.stdout)["findings"]
    assert result.return_value == (1 if findings else 0)
    return findings


def ids(folder: Path, text: str, *options: str) -> list[str]:
    """Return the distinct checks that have findings about a file with this text, in order."""
    return sorted({finding["check"] for finding in run(folder, text, *options)})
