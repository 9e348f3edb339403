"""Whether objectives are met in the last minute, from what sources count."""

from __future__ import annotations

from decimal import Decimal
from math import inf

import pytest

from exporter.objectives.objective_status import ObjectiveState, evaluate
from exporter.samples import Distribution, Labels, Measurement, ModelInfo, Snapshot, Value
from exporter.store.store import Store
from exporter.web.readiness import readiness
from exporter.web.status import Status
from exporter.web.status_page import status_html
from slos.model import Objective
from slos.signals import slo_events
from tests.service_example import objective, service

Counts = dict[Labels, Value]


def label(**labels: str) -> Labels:
    return tuple(sorted(labels.items()))


def judged(
    one: Objective, *minutes: dict[str, Counts | Value], method: str = "wire", **fields: object
) -> ObjectiveState:
    """Evaluate totals of signals from two scrapes 50 s apart."""
    return _judge(one, *minutes, method=method, **fields)[0]


def _judge(
    one: Objective, *minutes: dict[str, Counts | Value], method: str, **fields: object
) -> tuple[ObjectiveState, str]:
    store, now = Store(stale_after=5), 0.0
    for totals in minutes:
        now += 50.0
        measurements = tuple(
            Measurement(
                signal,
                "llama",
                "1",
                method,
                samples if isinstance(samples, dict) else {(): samples},
            )
            for signal, samples in totals.items()
        )
        store.update(Snapshot("taps", measurements, models=(ModelInfo("llama", "1"),)), now, 0.1)
    view = store.summarized_view(now)()
    states = evaluate([service(one, **fields)], view)
    page = status_html(Status("1", "now", view, readiness(view, 5), states))
    return states[0], page


def outcomes(**counts: float) -> dict[str, Counts | Value]:
    return {"requests": {label(outcome=outcome): count for outcome, count in counts.items()}}


def test_only_the_last_minute_counts() -> None:
    one = objective("availability", "0.99")
    bad = (outcomes(ok=0, error=0), outcomes(ok=1000, error=1000))
    assert judged(one, *bad).met is False
    after = (*bad, outcomes(ok=1000, error=1000), outcomes(ok=1100, error=1001))
    state = judged(one, *after)
    assert (state.good_events, state.bad_events, state.met) == (100.0, 1.0, True)


def test_outcomes_that_are_neither_good_nor_bad_are_excluded() -> None:
    one = objective("availability", "0.99")
    state = judged(one, outcomes(ok=0, invalid=0), outcomes(ok=5, invalid=50))
    assert (state.good_events, state.bad_events, state.met) == (5.0, 0.0, True)


def test_without_events_an_objective_is_neither_met_nor_missed() -> None:
    one = objective("availability")
    state, page = _judge(one, outcomes(ok=7), outcomes(ok=7), method="wire")
    assert (state.met, state.good_events) == (None, 0.0)
    assert "no events" in page


def test_latencies_are_evaluated_by_the_events_of_their_threshold() -> None:
    one = Objective("first-token", "ttft", Decimal("0.95"), Decimal("0.8"))

    def totals(good: float, bad: float) -> dict[str, Counts | Value]:
        events: Counts = {
            label(threshold="0.8", result="good"): good,
            label(threshold="0.8", result="bad"): bad,
            label(threshold="2", result="bad"): 77.0,
        }
        seen = Distribution((0.8, inf), (good, good), good)
        return {"ttft": seen, slo_events("ttft"): events}

    state, page = _judge(one, totals(0, 0), totals(93, 7), method="wire")
    assert (state.good_events, state.bad_events, state.met) == (93.0, 7.0, False)
    assert '<span class="bad">not met</span>, 93% of 100 good' in page


def test_without_threshold_events_an_exact_bucket_boundary_is_used() -> None:
    one = Objective("pace", "itl", Decimal("0.95"), Decimal("0.06"))
    totals = [
        {"itl": Distribution((0.06, inf), (good, every), every)}
        for good, every in ((0, 0), (96, 100))
    ]
    state = judged(one, *totals)
    assert (state.good_events, state.bad_events, state.met) == (96, 4, True)
    other = Objective("pace", "itl", Decimal("0.95"), Decimal("0.07"))
    assert judged(other, *totals).met is None


def test_only_streams_that_began_count_for_their_completion() -> None:
    def totals(*counts: float) -> dict[str, Counts | Value]:
        kinds = (("ok", "complete"), ("error", "mid_stream"), ("error", "before_first_token"))
        streams: Counts = {
            label(outcome=outcome, phase=phase): count
            for (outcome, phase), count in zip(kinds, counts, strict=True)
        }
        return {"streams": streams}

    state = judged(objective("stream_completion"), totals(0, 0, 0), totals(8, 2, 5))
    assert (state.good_events, state.bad_events) == (8.0, 2.0)


def test_goodput_counts_its_own_objective() -> None:
    def totals(good: float, bad: float) -> dict[str, Counts | Value]:
        return {
            "goodput": {
                label(objective="chat/goodput", result="good", clause=""): good,
                label(objective="chat/goodput", result="bad", clause="ttft"): bad,
                label(objective="other/goodput", result="bad", clause="ttft"): 9 * bad,
            }
        }

    state = judged(objective("goodput"), totals(0, 0), totals(9, 1))
    assert (state.good_events, state.bad_events) == (9.0, 1.0)


def test_an_objective_of_a_tenant_reads_the_counters_of_the_tenant() -> None:
    def totals(acme: float) -> dict[str, Counts | Value]:
        return {
            "requests": {label(outcome="ok"): 100 * acme},
            "tenant_requests": {
                label(outcome="error", tenant="acme"): acme,
                label(outcome="ok", tenant="other"): 50 * acme,
            },
        }

    state = judged(
        objective("availability"),
        totals(0),
        totals(2),
        selector={"model": "llama", "tenant": "acme"},
    )
    assert (state.good_events, state.bad_events, state.met) == (0.0, 2.0, False)


@pytest.mark.parametrize(
    ("name", "gauges", "met"),
    [
        ("kv_headroom", {"kv_utilization": 0.5}, True),
        ("kv_headroom", {"kv_utilization": 0.99}, False),
        ("sequence_headroom", {"sequences_active": 8.0, "sequences_max": 16.0}, True),
        ("sequence_headroom", {"sequences_active": 16.0, "sequences_max": 16.0}, False),
    ],
)
def test_headroom_is_evaluated_by_the_latest_gauges(
    name: str, gauges: dict[str, Counts | Value], met: bool
) -> None:
    one = objective(name)
    state, page = _judge(one, gauges, method="trtllm_iteration")
    assert state.met is met
    assert (">not met now<" in page) is not met
