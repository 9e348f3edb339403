"""The recorded ratios and budgets, on a real Prometheus, beside what truly happened.

Random traffic of eight days, as its counters tell of it, goes through our rules and through
those that Sloth and Pyrra publish for the same SLO.  An error is how far a ratio is from anything
that was true in the last five and a half minutes, as a share of it: five minutes are the base
window, in which an event fades in, and half a one passes until it is scraped.  For windows of less
than a day it is a share of the budget at least.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from math import inf
from pathlib import Path

import pytest

from lab.prometheus import Prometheus
from tests.rule_values.compare import BUDGET, Compared, compare
from tests.rule_values.recordings import Tool, tools
from tests.rule_values.replay import Replay
from tests.rule_values.traffic import DAY, HOUR, STORIES

PERIOD = Decimal(7 * DAY)
HISTORY = 8 * DAY
# At no time of day in particular.
CHECKS = range(2 * DAY, HISTORY + 1, 4 * HOUR + 450)
INDICATORS = ("availability", "e2e")
NAMES = [story.name for story in STORIES]
# Events before a server's end or its first scrape, and in long gaps, are seen by no rate: one such
# minute may be most of what happened in a short window.
HIDING = ("resets", "births", "labels", "gaps", "all")

# Theirs takes longer to evaluate than ours, and these tell enough.
PEERS = ("bursty", "idle", "births")

Results = dict[tuple[str, str], Compared]


@pytest.fixture(scope="module")
def results(
    promtool: Path, prometheus: Callable[..., Prometheus], tmp_path_factory: pytest.TempPathFactory
) -> Results:
    replay = Replay(promtool, prometheus, tmp_path_factory.mktemp("values"))
    asked: dict[str, list[Tool]] = {}
    for name in NAMES:
        ours, *theirs = tools(name, "availability", PERIOD)
        latency, *_ = tools(name, "e2e", PERIOD)
        asked[name] = [ours, latency, *(theirs if name in PEERS else [])]
    compared = compare(replay, STORIES, asked, HISTORY, CHECKS)
    return {(each.story, each.tool.name): each for each in compared}


def over(
    result: Compared, windows: list[str], bound: float, share: float = 1.0
) -> dict[str, float]:
    """Return the errors above a bound: of the worst check of each window, or of a ``share``."""
    errors = {window: result.error(window, share) for window in windows}
    return {window: error for window, error in errors.items() if error > bound}


CASES = [(story, each) for story in NAMES for each in INDICATORS]


@pytest.mark.parametrize(("story", "indicator"), CASES)
def test_the_period_and_its_budget_are_within_1_percent(
    results: Results, story: str, indicator: str
) -> None:
    assert over(results[story, f"{indicator} tokenslo"], ["7d", BUDGET], 0.01) == {}


@pytest.mark.parametrize(("story", "indicator"), CASES)
def test_shorter_windows_are_within_1_percent_of_what_is_scraped(
    results: Results, story: str, indicator: str
) -> None:
    ours = results[story, f"{indicator} tokenslo"]
    assert list(ours.checks) == ["5m", "30m", "1h", "2h", "6h", "1d", "7d", BUDGET]
    windows = ["1h", "2h", "6h", "1d"]
    if story in HIDING:
        assert over(ours, windows, 0.15) == {}
        assert over(ours, windows, 0.01, share=0.75) == {}
    else:
        assert over(ours, windows, 0.01) == {}
        # Where a single request counts, it counts as a rate of its series makes of it.
        assert over(ours, ["30m"], 0.02) == {}


@pytest.mark.parametrize("story", PEERS)
def test_the_base_window_is_as_good_as_a_rate_is(results: Results, story: str) -> None:
    ours, plain = (results[story, f"availability {tool}"] for tool in ("tokenslo", "Sloth"))
    assert ours.error("5m") <= plain.error("5m") * 1.001


@pytest.mark.parametrize("story", PEERS)
def test_the_comparison_tells_tools_apart(results: Results, story: str) -> None:
    """It finds what is known of them: a mean of ratios is off, an increase is not."""
    sloth, pyrra = (results[story, f"availability {tool}"] for tool in ("Sloth", "Pyrra"))
    assert sloth.error(BUDGET) > 0.05
    if story == "idle":  # where it records 0/0, of which every sum is none
        assert sloth.error(BUDGET) == inf
    assert (pyrra.error(BUDGET) < 0.01) == (story != "births")
