"""The simulation of autoscaling: its demand is the generated one, and its replicas drain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_autoscaling_promql import CASES, policy

from bench.autoscaling import (
    LEAST,
    MOST,
    MOST_RATE,
    SCALERS,
    TARGET,
    TOKENS_IN_FLIGHT,
    Cluster,
    Measured,
    SimulatedRequest,
    SimulatedScaler,
    demands,
    generated,
    load_test,
    simulate,
    table,
    trace,
)

ROOT = Path(__file__).parents[1]
OVER = {scaler.name: scaler for scaler in SCALERS}


def measured(waiting: float = 0, kv: float = 0, bad: int = 0, total: int = 100) -> Measured:
    return Measured(2, waiting, [kv, kv], [10, 10], bad, total, 0.0)


@pytest.mark.parametrize(
    ("case", "values"),
    [
        ("idle", measured()),
        ("loaded", measured(waiting=8, kv=0.6)),
        ("goodput burns 1.5 times its budget", measured(bad=18, total=240)),
        ("burn is bounded", measured(bad=100)),
        ("few late requests do not count", measured(bad=9)),
    ],
)
def test_the_demand_is_that_of_the_generated_queries(case: str, values: Measured) -> None:
    _, expected = CASES[case]
    found = demands(policy(), values)
    servers = 1 if case == "burn is bounded" else 2
    for signal in expected.keys() & {"waiting", "kv-cache", "goodput"}:
        scale = servers / 2 if signal == "goodput" else 1
        assert found[signal] * scale == pytest.approx(float(str(expected[signal])))


def test_headroom_is_that_of_a_load_test() -> None:
    """The tokens per replica come from a replica under a steady load, not from the arrivals."""
    assert load_test(MOST_RATE * 1.03)[0] < TARGET <= load_test(MOST_RATE)[0]
    held = {burst: load_test(MOST_RATE / burst)[1] for burst in TOKENS_IN_FLIGHT}
    assert {burst: round(tokens, -3) for burst, tokens in held.items()} == TOKENS_IN_FLIGHT


def test_a_trace_is_the_same_for_the_same_seed() -> None:
    assert trace(1, 5) == trace(1, 5) != trace(1, 6)


def test_utilization_does_not_follow_the_load() -> None:
    light = [SimulatedRequest(5.0 * at, 500, 1_400) for at in range(200)]
    played = {name: Cluster(OVER[name]).run(light) for name in OVER}
    assert played["GPU utilization 80%"].most > played["tokenslo, bursts of 1.5x"].most == LEAST
    heavy = trace(1, 1)[-4_000:]
    begin = heavy[0].at
    heavy = [SimulatedRequest(each.at - begin, each.input, each.output) for each in heavy]
    assert Cluster(OVER["CPU utilization 70%"]).run(heavy).most == LEAST
    assert Cluster(OVER["tokenslo, bursts of 1.5x"]).run(heavy).most > LEAST


@pytest.mark.parametrize("grace", [5, generated().grace])
def test_only_a_short_grace_period_cuts_streams(grace: int) -> None:
    arrivals = [SimulatedRequest(0.5 * at, 500, 1_400) for at in range(900)]
    high = iter([MOST] * 20)
    shrinking = SimulatedScaler(
        "shrinking", lambda _: next(high, LEAST), stabilization=0, grace=grace
    )
    assert (Cluster(shrinking).run(arrivals).cut > 0) is (grace == 5)


def test_the_table_has_a_line_for_each_scaler() -> None:
    results = [Cluster(OVER["2 replicas"]).run(trace(1, 1)[:50])]
    assert [line.split("  ")[0] for line in table(results)] == ["scaled on", "2 replicas"]


@pytest.mark.long
def test_the_published_tables_are_those_of_a_new_run() -> None:
    results = simulate()
    assert "\n".join(table(results)) in (ROOT / "bench/README.md").read_text()
    page = (ROOT / "docs/how-to/autoscale.md").read_text()
    shown = re.findall(r"^\| .+ \| ([\d.]+%) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert shown == [(f"{100 * each.attainment:.1f}%", f"{each.hours:.1f}") for each in results]
