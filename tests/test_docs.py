"""Pages of docs/ say what the code says: those that are generated, and those on JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner
from service_example import example

from alerts.backtest import History, backtest
from alerts.backtest_report import as_json as backtest_json
from slos.explain import as_json as explain_json
from slos.explain import explain
from slos.model import PolicyStep
from tokenslo.commands.signals import signals

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_of_signals_is_current() -> None:
    printed = CliRunner().invoke(signals).output
    assert (DOCS / "signals.md").read_text() == printed, "write it again: make examples"


PLAN = example(policy=(PolicyStep(Decimal("0.5"), "stop"),))
BURNT = backtest(PLAN, PLAN.objectives[0], History(0.0, 60.0, [1.0] * 60, [1.0] * 60))


def keys(value: object) -> Iterator[str]:
    """Yield every key, but for shares of bad events, which are data."""
    if isinstance(value, dict):
        yield from (key for key in value if key[0].isalpha())
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from keys(inner)


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ("Explain", explain_json([(PLAN, explain(PLAN))])),
        ("Backtest", backtest_json([(PLAN, [BURNT])])),
    ],
)
def test_every_key_of_json_is_described_and_no_other(section: str, text: str) -> None:
    page = (DOCS / "backtest.md").read_text()
    described = page.partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", described, re.MULTILINE)
    made = set(keys(json.loads(text)))
    assert {name for row in rows for name in re.findall(r"`(\w+)`", " ".join(row))} >= made
    assert {name for keys_, _ in rows for name in re.findall(r"`(\w+)`", keys_)} <= made
