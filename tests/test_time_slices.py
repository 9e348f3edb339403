"""Time slices evaluated by the sidecar, compared with a count of every event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.objectives.time_slices import SliceEvaluator
from exporter.store.view import SignalState, View
from slos.model import Objective, TimeSlices
from tests.service_example import objective, service
from tests.views import measured, unavailable, view

MINUTE = TimeSlices(Decimal(60), Decimal("0.9"))
AVAILABILITY = replace(objective("availability"), slices=MINUTE)
FIRST_TOKEN = replace(objective("ttft"), slices=MINUTE)
START = 1_790_000_040.0
"""The beginning of a minute."""


def requests(ok: float, error: float) -> SignalState:
    samples = {(("outcome", "ok"),): ok, (("outcome", "error"),): error}
    return measured("requests", samples)


def first_tokens(good: float, bad: float, threshold: str = "0.8") -> SignalState:
    counts = {"good": good, "bad": bad}
    return measured(
        "ttft_slo_events",
        {(("result", one), ("threshold", threshold)): count for one, count in counts.items()},
    )


def judged(
    scrapes: Iterable[tuple[float, View]], evaluated: Objective = AVAILABILITY
) -> dict[str, float]:
    judge = SliceEvaluator([service(evaluated)])
    for seconds, shown in scrapes:
        judge.update(shown, START + seconds)
    states = judge.states()
    assert {(state.signal, state.quality) for state in states} <= {("slo_slices", "exact")}
    return {
        dict(labels)["result"]: count
        for state in states
        for labels, count in state.samples.items()
        if isinstance(count, float)
    }


def test_slices_start_at_zero_and_are_evaluated_when_they_end() -> None:
    scrapes = [(30.0, view(requests(0, 0)))]
    assert judged(scrapes) == {"good": 0, "bad": 0}
    scrapes += [(60.5, view(requests(90, 9))), (119.0, view(requests(99, 9)))]
    assert judged(scrapes) == {"good": 0, "bad": 0}, "the first slice was not seen from its start"
    scrapes += [(120.5, view(requests(107, 11)))]
    assert judged(scrapes) == {"good": 0, "bad": 1}, "2 of 19 are more than a tenth"
    scrapes += [(180.5, view(requests(116, 12)))]
    assert judged(scrapes) == {"good": 1, "bad": 1}, "1 of 10 is a tenth"


def test_a_slice_without_events_is_good() -> None:
    scrapes = [(at, view(requests(5, 5))) for at in (0.0, 60.0, 120.0, 180.0)]
    assert judged(scrapes) == {"good": 2, "bad": 0}


def test_latency_objectives_read_the_events_of_their_threshold() -> None:
    other = first_tokens(0, 1000, threshold="2")
    samples = [{**first_tokens(9 * n, 3 * n).samples, **other.samples} for n in range(3)]
    scrapes = [(60.0 * n, view(measured("ttft_slo_events", one))) for n, one in enumerate(samples)]
    assert judged(scrapes, FIRST_TOKEN) == {"good": 0, "bad": 1}


@pytest.mark.parametrize(
    ("scrapes", "slices"),
    [
        ([0.0, 60.0, 120.0, 180.0], 2),  # all but the first
        ([0.0, 60.0, 180.0, 245.0, 301.0], 1),  # the third was not scraped
        ([0.0, 60.0, 127.0, 181.0], 1),  # the third was first scraped too late
        ([0.0, 60.0, 3.0, 61.0], 0),  # the clock was set back
    ],
)
def test_partially_observed_slices_are_not_evaluated(scrapes: list[float], slices: int) -> None:
    counts = judged([(at, view(requests(0, n))) for n, at in enumerate(scrapes)])
    assert counts == {"good": 0, "bad": slices}


def test_slices_with_unavailable_signals_are_not_evaluated() -> None:
    gone = view(unavailable("requests", "no metrics"))
    shown = [view(requests(1, 0)), view(requests(1, 5)), gone, view(requests(1, 9))]
    assert judged((60.0 * n, one) for n, one in enumerate(shown)) == {"good": 0, "bad": 0}


def test_other_models_and_groups_are_not_evaluated() -> None:
    scrapes = [(60.0 * n, view(requests(0, n))) for n in range(4)]
    for evaluated in (
        replace(AVAILABILITY, selector={"model": "mistral"}),
        replace(AVAILABILITY, group_by=("version",)),
        replace(AVAILABILITY, selector={"tenant": "acme"}),
    ):
        assert judged(scrapes, evaluated) == {}


@given(st.lists(st.tuples(st.floats(0, 599), st.booleans()), max_size=60))
def test_the_counts_are_those_of_every_event_by_hand(events: list[tuple[float, bool]]) -> None:
    """Scrapes come every second; an event belongs to the slice of its first scrape."""
    scrapes = []
    for at in range(661):
        seen = [good for when, good in events if when <= at]
        scrapes.append((float(at), view(requests(sum(seen), len(seen) - sum(seen)))))
    expected = Counter({"good": 0, "bad": 0})
    for number in range(1, 11):
        first, last = 60 * number, 60 * (number + 1)
        inside = [good for when, good in events if first < when <= last]
        bad = len(inside) - sum(inside)
        expected["bad" if bad * 10 > len(inside) else "good"] += 1
    assert judged(scrapes) == dict(expected)
