"""Every attack of the threat model in SECURITY.md has a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_ROW = re.compile(r"^\| .+ \| .+ \| `(tests/\S+\.py)::(test_\w+)` \|$")


def attacks() -> list[str]:
    """Return the rows of the tables of attacks, without their heads."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    tables = re.findall(r"\| attack \| defence \| test \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", text)
    return [row for table in tables for row in table.splitlines()]


def test_every_attack_names_a_test_that_exists() -> None:
    rows = attacks()
    assert len(rows) > 35
    for row in rows:
        named = _ROW.match(row)
        assert named, row
        tree = ast.parse((ROOT / named[1]).read_text(encoding="utf-8"))
        functions = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert named[2] in functions, row


def test_links_lead_to_files() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (ROOT / target).exists(), target
