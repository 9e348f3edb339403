"""The arithmetic of pages, beside what a real Prometheus makes of the same samples."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from bench.paging import own_conditions
from lab.prometheus import Prometheus
from slos.durations import parse_duration
from tests.rule_values.compare import record
from tests.rule_values.paging import BurnRateCondition, Count, increases, rates
from tests.rule_values.recordings import TARGET, Tool, tools
from tests.rule_values.replay import Replay, replaying
from tests.rule_values.traffic import DAY, HOUR, REQUESTS, SCENARIOS, TrafficScenario, play

HISTORY = 3 * DAY
EVALUATIONS = np.arange(0, HISTORY + 1, 60)
CHECKS = range(7 * HOUR, HISTORY + 1, 60)
PERIOD = Decimal(30 * DAY)
# Those whose counters start over, are replaced, or are not scraped at times.
HARD = [scenario for scenario in SCENARIOS if scenario.name in ("resets", "births", "gaps", "all")]

Start = Callable[..., Prometheus]


def ratios(replay: Replay, tool: Tool, window: str) -> list[float | None]:
    found = replay.values(tool.ratios[window], CHECKS)
    return [found.get(at) for at in CHECKS]


def computed(count: Count, window: str) -> list[float | None]:
    bad, total = count(int(parse_duration(window)))
    at = np.array(CHECKS) // 60
    return [b / t if t else None for b, t in zip(bad[at], total[at], strict=True)]


def conditions(tool: Tool) -> list[tuple[str, BurnRateCondition]]:
    """Return the pages of a tool at 99 % over 30 days, each with the alert's expression."""
    if tool.name == "tokenslo":
        own = own_conditions(TARGET)
        return [(expr, each) for (expr, _), each in zip(tool.alerts, own, strict=False)]
    pages, _ = (expr for expr, _ in tool.alerts)
    long, short = Decimal(HOUR), Decimal(300)
    first = BurnRateCondition(True, long, short, Decimal("0.144"))
    second = BurnRateCondition(True, 6 * long, 6 * short, Decimal("0.06"))
    return [*zip(pages.split(" or "), (first, second), strict=True)]


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(
            scenario,
            marks=pytest.mark.long if scenario.name in ("births", "gaps") else (),
            id=scenario.name,
        )
        for scenario in HARD
    ],
)
def test_computed_windows_equal_recorded_ones(
    prometheus: Start, tmp_path: Path, scenario: TrafficScenario
) -> None:
    traffic = play(scenario, HISTORY, families=[REQUESTS])
    ours, sloth, _ = tools(scenario.name, "availability", PERIOD)
    samples, fired = traffic.samples, 0
    with replaying(prometheus, tmp_path) as replay:
        replay.add(samples)
        record(replay, [ours, sloth], HISTORY, CHECKS)
        for tool, count in ((ours, increases), (sloth, rates)):
            for window in ("5m", "30m", "1h", "6h"):
                expected = ratios(replay, tool, window)
                found = computed(count(samples, EVALUATIONS), window)
                assert found == pytest.approx(expected, abs=1e-9), (tool.name, window)
            for expr, condition in conditions(tool):
                held = condition.fires(count(samples, EVALUATIONS), 60)
                firing = [at for at in CHECKS if held[at // 60]]
                assert [*replay.values(expr, CHECKS)] == firing, expr
                fired += len(firing)
    assert fired > 0
