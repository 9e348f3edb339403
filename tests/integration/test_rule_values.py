"""The recorded ratios and budgets on a real Prometheus, compared with the truth.

The counters of random traffic go through our rules and through those that Sloth and Pyrra publish
for the same SLO: a week of every scenario, and 91 days of the worst.  `make test` replays a week
of three scenarios, `make test-long` the rest.  An error is how far a ratio is from anything that
was true in the last two and a half minutes, as a share of it: an increase is that between two
evaluations, and half a minute passes until an event is scraped.  For rates it is the base window
instead.  For windows of less than a day it is a share of the budget at least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from math import inf
from pathlib import Path

import numpy as np
import pytest

from lab.prometheus import Prometheus
from tests.rule_values.compare import BUDGET, PERIOD, ToolComparison, compare
from tests.rule_values.recordings import Tool, tokenslo, tools
from tests.rule_values.replay import replaying
from tests.rule_values.traffic import (
    BOUNDARY,
    DAY,
    DURATION,
    EVENTS,
    HOUR,
    METRICS,
    REQUESTS,
    SCENARIOS,
    labelled,
    play,
    points,
)

HISTORY = 7 * DAY + 6 * HOUR
# At no time of day in particular.
CHECKS = range(2 * DAY, HISTORY + 1, 4 * HOUR + 450)
LONG_HISTORY = 91 * DAY
LONG_CHECKS = range(13 * DAY + 450, LONG_HISTORY + 1, 3 * DAY - 450)
INDICATORS = ("availability", "e2e")
COUNTERS = (REQUESTS, EVENTS)
"""What these two count."""
*EACH, WORST = SCENARIOS
NAMES = [scenario.name for scenario in EACH]
# Sloth's rules take longer to evaluate, and these two show every difference.
PEERS = ("idle", "births")
# Of our other kinds of objectives, in the scenario which is the hardest for counters.
OTHERS = ("ttft", "goodput", "by-server", "kv-headroom")
HARD = "births"
ROLLOUTS = ("births", "labels")
# One without traffic at times, one with rollouts.
IN_EVERY_RUN = ("idle", "births")

Start = Callable[..., Prometheus]
Results = dict[tuple[str, str, str, str], ToolComparison]


def by_name(results: Iterable[ToolComparison]) -> Results:
    return {(r.scenario, r.tool.objective, r.tool.period, r.tool.name): r for r in results}


@pytest.fixture(scope="module")
def results(prometheus: Start, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return replayed(IN_EVERY_RUN, prometheus, tmp_path_factory)


@pytest.fixture(scope="module")
def other_results(prometheus: Start, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return replayed(
        [name for name in NAMES if name not in IN_EVERY_RUN], prometheus, tmp_path_factory
    )


@pytest.fixture
def results_of(request: pytest.FixtureRequest) -> Callable[[str], Results]:
    """Return a function from a scenario to the results with it."""
    return lambda scenario: request.getfixturevalue(
        "results" if scenario in IN_EVERY_RUN else "other_results"
    )


def replayed(
    names: Sequence[str], prometheus: Start, tmp_path_factory: pytest.TempPathFactory
) -> Results:
    """Replay scenarios and compare what the tools record."""
    tools_of: dict[str, list[Tool]] = {}
    for name in names:
        days = (Decimal(DAY), Decimal(7 * DAY))
        tools_of[name] = [tokenslo(name, each, period) for each in INDICATORS for period in days]
        if name in PEERS:
            tools_of[name] += tools(name, "availability", days[-1])[1:]
        if name == HARD:
            tools_of[name] += [tokenslo(name, other, days[-1]) for other in OTHERS]
    played = {
        scenario.name: play(
            scenario, HISTORY, families=METRICS if scenario.name == HARD else COUNTERS
        )
        for scenario in EACH
        if scenario.name in names
    }
    with replaying(prometheus, tmp_path_factory.mktemp("values")) as replay:
        return by_name(compare(replay, played, tools_of, HISTORY, CHECKS))


@pytest.fixture(scope="module")
def long_results(prometheus: Start, tmp_path_factory: pytest.TempPathFactory) -> Results:
    tools_of = [tokenslo(WORST.name, "e2e", Decimal(days * DAY)) for days in (28, 30, 90)]
    played = {WORST.name: play(WORST, LONG_HISTORY, servers=1, families=[EVENTS])}
    with replaying(prometheus, tmp_path_factory.mktemp("long_values")) as replay:
        compared = compare(replay, played, {WORST.name: tools_of}, LONG_HISTORY, LONG_CHECKS)
        return by_name(compared)


def over(result: ToolComparison, windows: Iterable[str], bound: float) -> dict[str, float]:
    """Return the errors above a bound, of the worst check of each window."""
    errors = {window: result.error(window) for window in windows}
    return {window: error for window, error in errors.items() if error > bound}


CASES = [
    pytest.param(scenario, each, marks=() if scenario in IN_EVERY_RUN else pytest.mark.long)
    for scenario in NAMES
    for each in INDICATORS
]


@pytest.mark.parametrize(("scenario", "objective"), CASES)
def test_the_period_and_its_budget_are_within_1_percent(
    results_of: Callable[[str], Results], scenario: str, objective: str
) -> None:
    results = results_of(scenario)
    week, day = (results[scenario, objective, period, "tokenslo"] for period in ("7d", "1d"))
    assert over(week, [PERIOD, BUDGET], 0.01) == {}
    assert over(day, [PERIOD, BUDGET], 0.01) == {}


@pytest.mark.long
@pytest.mark.parametrize("period", ["28d", "30d", "90d"])
def test_long_periods_and_their_budgets_are_within_1_percent(
    long_results: Results, period: str
) -> None:
    result = long_results[WORST.name, "e2e", period, "tokenslo"]
    assert over(result, [PERIOD, BUDGET], 0.01) == {}
    days = [window for window in result.checks if window in ("1d", "3d", "9d")]
    assert "3d" in days
    assert over(result, days, 0.01) == {}


@pytest.mark.parametrize("objective", OTHERS)
def test_other_kinds_of_objectives_are_within_1_percent(results: Results, objective: str) -> None:
    assert over(results[HARD, objective, "7d", "tokenslo"], [PERIOD, BUDGET], 0.01) == {}


@pytest.mark.parametrize(("scenario", "objective"), CASES)
def test_shorter_windows_are_within_1_percent_of_what_is_scraped(
    results_of: Callable[[str], Results], scenario: str, objective: str
) -> None:
    ours = results_of(scenario)[scenario, objective, "7d", "tokenslo"]
    assert [*ours.checks] == ["5m", "30m", "1h", "2h", "6h", "1d", PERIOD, BUDGET]
    assert over(ours, ["2h", "6h", "1d"], 0.01) == {}
    # What happens in the minute before a new series is first scraped is not counted.
    assert over(ours, ["1h"], 0.015 if scenario in ROLLOUTS else 0.01) == {}
    # Where a single request counts, it counts as a rate of its series makes of it.
    assert over(ours, ["30m"], 0.02) == {}


@pytest.mark.parametrize("scenario", PEERS)
def test_base_window_is_as_accurate_as_a_rate(results: Results, scenario: str) -> None:
    ours, plain = (
        results[scenario, "availability", "7d", tool].checks["5m"] for tool in ("tokenslo", "Sloth")
    )
    as_late = [replace(one, lately=rate.lately) for one, rate in zip(ours, plain, strict=True)]
    assert max(one.error for one in as_late) <= max(one.error for one in plain) * 1.001


@pytest.mark.parametrize("scenario", PEERS)
def test_comparison_distinguishes_tools(results: Results, scenario: str) -> None:
    """It finds what is known of them: a mean of ratios is off, an increase is not."""
    sloth, pyrra = (results[scenario, "availability", "7d", tool] for tool in ("Sloth", "Pyrra"))
    assert sloth.error(BUDGET) > 0.05
    if scenario == "idle":  # where it records 0/0, of which every sum is none
        assert sloth.error(BUDGET) == inf
    assert pyrra.error(BUDGET) < 0.01


def test_the_replay_counts_and_ends_series_as_prometheus_does(
    prometheus: Start, tmp_path: Path
) -> None:
    traffic = play(SCENARIOS[0], HOUR, servers=3, families=[REQUESTS])
    scraped = sum(len(times) for times, _ in traffic.samples.values())
    times, values = np.array([0, 30, 60]), np.array([1.5, 2.5, 0])
    ended = {labelled("ended"): points(times, values, values > 0)}
    with replaying(prometheus, tmp_path) as replay:
        replay.add({**traffic.samples, **ended})
        assert replay.cost(f"rate({REQUESTS}[1h])", HOUR) == (9, scraped)
        assert replay.cost(f"sum({REQUESTS}) / count({REQUESTS})", HOUR) == (1, 18)
        assert replay.values("ended", range(0, 121, 30)) == {0: 1.5, 30: 2.5}
        assert replay.values("sum_over_time(ended[5m])", range(120, 121)) == {120: 4}


def test_native_histograms_have_the_observations_of_classic_ones(
    prometheus: Start, tmp_path: Path
) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "gaps")
    traffic = play(scenario, DAY, families=[DURATION])
    count, bucket = (
        f"sum(rate({DURATION}_{part}[1h]))" for part in ("count", f'bucket{{le="{BOUNDARY}"}}')
    )
    times = range(2 * HOUR, DAY, 450)
    with replaying(prometheus, tmp_path) as replay:
        replay.add(traffic.samples)
        replay.add_native(traffic.samples)
        native = f"sum(rate({DURATION}[1h]))"
        for expr, classic in (
            (f"histogram_count({native})", count),
            (f"histogram_fraction(0, {BOUNDARY}, {native})", f"{bucket} / {count}"),
        ):
            expected = replay.values(classic, times)
            assert len(expected) == len(times)
            assert replay.values(expr, times) == pytest.approx(expected)
        assert len(set(expected.values())) > 1
        # The series ends where scrapes fail, like its classic ones.
        native_alive, classic_alive = (
            replay.values(f"count({DURATION}{suffix})", range(2 * HOUR, DAY, 30))
            for suffix in ("", "_count")
        )
        assert native_alive == classic_alive
        assert {*native_alive.values()} == {1.0, 2.0}
