"""Compare a client's measurements with a sidecar's."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from math import inf

import pytest

from loadtest.objectives import ClientObjective
from loadtest.records import RequestRecord
from loadtest.sidecar_comparison import (
    Sample,
    SidecarComparison,
    SidecarRestartError,
    compare_sidecar,
)
from slos.signals import SIGNALS

OBJECTIVES = (
    ClientObjective("chat/first", "ttft", 0.95, 0.25),
    ClientObjective("chat/good", "goodput", 0.95, clauses={"ttft": 0.25}),
)
REQUESTS = 200


def records(count: int = REQUESTS) -> list[RequestRecord]:
    """Return requests with a TTFT from 0.1 s to 0.3 s, and 4 gaps of 20 ms."""
    found = []
    for number in range(count):
        first = 0.1 + 0.2 * number / count
        chunks = array("d", [first + 0.02 * index for index in range(5)])
        found.append(RequestRecord(number, "8", 5, 0.0, 0.0, chunks, first + 0.09, "ok"))
    return found


def histogram(signal: str, seconds: Iterable[float], model: str = "m") -> list[Sample]:
    observed, metric = list(seconds), SIGNALS[signal].metric
    bounds = (*SIGNALS[signal].buckets, inf)
    labels = {"model": model, "version": "1"}
    return [
        *(
            (f"{metric}_bucket", {**labels, "le": str(bound)}, sum(s <= bound for s in observed))
            for bound in bounds
        ),
        (f"{metric}_sum", labels, sum(observed)),
        (f"{metric}_count", labels, len(observed)),
    ]


def scrape(
    observed: Sequence[RequestRecord], *, offset: float = 0.0, good: int | None = None
) -> list[Sample]:
    """Return what a sidecar serves after some requests; it sees each `offset` s sooner."""
    ttft = [(one.ttft or 0) - offset for one in observed]
    within = sum(seconds <= 0.25 for seconds in ttft) if good is None else good
    return [
        *histogram("ttft", ttft),
        *histogram("itl", [gap for one in observed for gap in one.gaps]),
        *histogram("tpot", [one.tpot or 0 for one in observed]),
        *histogram("e2e", [one.e2e - offset for one in observed]),
        ("llm_requests_total", {"model": "m", "outcome": "ok"}, len(observed)),
        ("llm_requests_total", {"model": "other", "outcome": "ok"}, 5 * len(observed)),
        *(
            ("llm_goodput_requests_total", {"model": "m", "objective": "chat/good", **labels}, n)
            for labels, n in (
                ({"result": "good", "clause": ""}, within),
                ({"result": "bad", "clause": "ttft"}, len(observed) - within),
            )
        ),
    ]


def compared(after: Sequence[Sample], before: Sequence[Sample] = ()) -> SidecarComparison:
    return compare_sidecar("http://sidecar", before, after, records(), "m", OBJECTIVES)


def test_both_sides_agree_about_the_same_requests() -> None:
    found = compared(scrape(records()))
    assert found.agrees
    assert not found.missing
    assert [each.signal for each in found.signals] == ["ttft", "itl", "tpot", "e2e"]
    ttft = found.signals[0]
    assert ttft.difference == pytest.approx(0)
    [share] = ttft.shares
    assert share.client == share.sidecar == pytest.approx(151 / 200, abs=0.01)
    assert found.goodput[0].client == found.goodput[0].sidecar


def test_only_the_increase_between_two_scrapes_counts() -> None:
    earlier = scrape(records(57), offset=0.09)
    both = [
        (name, labels, value + before)
        for (name, labels, value), (_, _, before) in zip(scrape(records()), earlier, strict=True)
    ]
    found = compared(both, earlier)
    assert found.agrees
    assert found.sidecar_requests == REQUESTS


def test_a_network_of_milliseconds_is_within_the_tolerance() -> None:
    found = compared(scrape(records(), offset=0.004))
    assert found.agrees
    assert found.signals[0].difference == pytest.approx(0.004)


def test_a_longer_delay_is_a_disagreement_with_its_size() -> None:
    found = compared(scrape(records(), offset=0.05))
    assert not found.agrees
    ttft = found.signals[0]
    assert not ttft.agrees
    assert ttft.difference == pytest.approx(0.05)
    assert ttft.tolerance == pytest.approx(0.01, abs=1e-3)  # 5 % of 200 ms
    assert not ttft.shares[0].agrees
    assert not found.goodput[0].agrees
    assert found.signals[1].agrees


def test_requests_of_other_clients_are_a_disagreement() -> None:
    found = compared(scrape([*records(), *records(3)]))
    assert (found.client_requests, found.sidecar_requests) == (REQUESTS, REQUESTS + 3)
    assert not found.agrees


def test_another_verdict_on_goodput_is_a_disagreement() -> None:
    found = compared(scrape(records(), good=100))
    assert not found.agrees
    assert [each.agrees for each in found.goodput] == [False]
    assert all(each.agrees for each in found.signals)


def test_gaps_that_the_sidecar_excluded_are_no_disagreement() -> None:
    after = [
        (name, labels, max(0, value - 3) if "inter_token" in name and "sum" not in name else value)
        for name, labels, value in scrape(records())
    ]
    late = ("tokenslo_tap_late_gaps_total", {"tap": "proxy"}, 3.0)
    assert not compared(after).signals[1].agrees
    found = compared([*after, late])
    assert found.signals[1].client_count == found.signals[1].sidecar_count + 3
    assert found.signals[1].agrees


def test_gaps_are_not_compared_if_clients_left() -> None:
    observed = records()
    observed[0].outcome = "client_disconnected"
    after = scrape(records())
    found = compare_sidecar("http://sidecar", [], after, observed, "m", OBJECTIVES)
    assert found.missing == (
        "itl: 1 clients disconnected mid-stream, and what was in flight then is on one side only",
    )
    assert "itl" not in [each.signal for each in found.signals]


def test_a_restarted_sidecar_is_an_error() -> None:
    with pytest.raises(SidecarRestartError, match="the sidecar restarted"):
        compared(scrape(records()), scrape([*records(), *records()]))


def test_missing_signals_have_a_reason() -> None:
    found = compared([each for each in scrape(records()) if "goodput" not in each[0]][19:])
    assert "chat/good: the sidecar does not evaluate it" in found.missing
    nothing = compared([("llm_requests_total", {"model": "m", "outcome": "ok"}, REQUESTS)])
    assert nothing.missing[0] == ("ttft: the sidecar has no llm_time_to_first_token_seconds of m")
    assert not nothing.agrees
