"""The generated promtool tests of quotas pass, and fail with other rules."""

from __future__ import annotations

import subprocess
from decimal import Decimal
from pathlib import Path

import pytest
from service_example import example

import alerts
from slos.model import Objective, TokenQuota

QUOTAS = (
    TokenQuota("acme", 50_000_000, "day"),
    TokenQuota("acme", 1_000_000_000, "month"),
    TokenQuota('a"b.c', 100_000, "day"),
)


def run(promtool: Path, folder: Path, *, rules: str = "exact", old: str = "", new: str = "") -> int:
    """Run the tests of quotas after a replacement in the rules."""
    up = Objective("up", "availability", Decimal("0.99"))
    texts = alerts.files(example(up, quotas=QUOTAS, rules=rules), source="s", version="1")
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(exist_ok=True)
        assert "rules.yaml" not in path or "causes" in path or old in text
        file.write_text(text.replace(old, new) if old and path.endswith(".rules.yaml") else text)
    (test,) = (path for path in texts if path.endswith("quotas.test.yaml"))
    command = [promtool, "test", "rules", str(folder / test)]
    return subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.parametrize("rules", ["exact", pytest.param("plain", marks=pytest.mark.long)])
def test_alerts_fire_and_stay_quiet(rules: str, promtool: Path, tmp_path: Path) -> None:
    assert run(promtool, tmp_path, rules=rules) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (">= 0.8 < 1", ">= 0.95 < 1"),
        (">= 0.8 < 1", ">= 0.8 < 2"),
        (':used:ratio{service="chat"} >= 1', ':used:ratio{service="chat"} >= 0.4'),
        ("[1h]) * 24", "[1h]) * 200"),
        ("[1d]) * 30", "[1d]) / 30"),
        ("input|output", "input"),
    ],
)
def test_changed_rules_are_found(old: str, new: str, promtool: Path, tmp_path: Path) -> None:
    assert run(promtool, tmp_path, old=old, new=new) != 0
