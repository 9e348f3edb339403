"""Admission limits: the capacity of a load report, and the arithmetic of the limits."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from heapq import heapify, heapreplace
from itertools import pairwise
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.capacity import MeasuredCapacity, read_capacity
from admission.capacity_file import load_capacity
from admission.limit import MAX_COUNT, MAX_RATE, AdmissionSettings
from admission.plan import AdmissionPlan, admission_plan
from loadtest.report import as_object
from slos.errors import InvalidFile
from slos.model import Objective, Service
from tests.load_reports import SWEEP, level, load_report
from tests.service_example import service
from tests.test_loadtest_reports import report

FILE = "load.json"


def latency(name: str, indicator: str, seconds: str) -> Objective:
    return Objective(name, indicator, Decimal("0.95"), Decimal(seconds))


CHAT = service(latency("first-token", "ttft", "2"), latency("token-pace", "itl", "0.06"))
CAPACITY = MeasuredCapacity(
    FILE,
    "rate 8",
    Decimal("7.5"),
    Decimal(30),
    Decimal("0.4"),
    Decimal(900),
    Decimal(250),
    Decimal(4250),
)
SETTINGS = AdmissionSettings(6000, 2000)


def read(content: object) -> MeasuredCapacity:
    return read_capacity(json.dumps(content), FILE)


# The capacity of a report


def test_the_highest_kept_load_and_the_lowest_one_are_the_capacity() -> None:
    found = read(load_report(*SWEEP))
    assert replace(found, objectives={}) == CAPACITY
    assert found.objectives == {"chat/first-token": "2s", "chat/token-pace": "60ms"}


def test_the_rate_of_a_search_counts_although_it_is_not_proven() -> None:
    levels = (SWEEP[0], level("rate", 9.5, 9.0, 4.0, 1.5, "inconclusive"))
    assert (read(load_report(*levels, kept=9.5)).load, read(load_report(*levels)).load) == (
        "rate 9.5",
        "rate 1",
    )


def test_users_of_a_closed_loop_are_in_flight() -> None:
    found = read(
        load_report(level("concurrency", 1, 0.5, 3, 0.3), level("concurrency", 32, 8, 4, 1))
    )
    assert (found.load, found.in_flight, found.unqueued_ttft) == (
        "concurrency 32",
        Decimal(32),
        Decimal("0.3"),
    )
    assert found.closed_loop


def test_a_report_of_a_real_load_test_is_read() -> None:
    made = report()
    found = read(as_object(made))
    assert (found.load, found.in_flight) == ("concurrency 4", Decimal(4))
    assert float(found.rate) == pytest.approx(made.result.sides[0].results[1].completed, abs=0.001)
    assert found.output_tokens == 5
    assert found.objectives == {"chat/first": "150ms", "chat/<good>": "ttft 150ms"}
    searched = read(as_object(report(search=True)))
    assert searched.load.startswith("rate ")


def test_one_load_is_noted() -> None:
    (note,) = read(load_report(SWEEP[0])).notes
    assert note.startswith("Only rate 1 was measured, so TTFT without a queue includes the queue")


def test_tokens_that_a_server_does_not_count_are_unknown() -> None:
    one = level("rate", 8, 7.5, 4.0, 0.4)
    for prompt in one["prompts"]:
        prompt["mean_input_tokens"] = None
    found = read(load_report(one))
    assert (found.input_tokens, found.prefill_rate) == (None, None)


def without(*path: str | int) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        for key in path[:-1]:
            found = found[key]
        del found[path[-1]]

    return change


def put(value: object, *path: str | int) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = value

    return change


FIRST = ("endpoints", 0, "levels", 0)
LAST = ("endpoints", 0, "levels", 2)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (without("endpoints"), "endpoints: is missing"),
        (put({}, "endpoints"), "endpoints: is not a list of a load report"),
        (put([], "endpoints"), "has no load with complete requests"),
        (put("x", *FIRST), "endpoints[0].levels[0]: is not an object of a load report"),
        (put("fast", *FIRST, "completed_per_second"), "completed_per_second: is not a number. "),
        (put(-1, *FIRST, "completed_per_second"), "completed_per_second: is not a number of"),
        (put(True, *FIRST, "completed_per_second"), "completed_per_second: is not a number. "),
        (put(1e300, *FIRST, "completed_per_second"), "completed_per_second: is not a number of"),
        (put(None, *FIRST, "completed_per_second"), "completed_per_second: has no value"),
        (put(None, *LAST, "latencies", "e2e"), "levels[2].latencies.e2e: was not measured"),
        (put(None, *FIRST, "latencies", "ttft"), "levels[0].latencies.ttft: was not measured"),
        (put(7, *FIRST, "kind"), "levels[0].kind: is not text"),
        (put("x\n", *FIRST, "kind"), "levels[0].kind: is not rate or concurrency"),
        (put({"kept": None}, "highest_rate"), "highest_rate: no rate kept every objective"),
        (put({"kept": 3}, "highest_rate"), "highest_rate: no rate kept every objective"),
    ],
)
def test_what_is_no_load_report_is_refused(change: Callable[[Any], None], problem: str) -> None:
    content = json.loads(json.dumps(load_report(*SWEEP)))
    change(content)
    with pytest.raises(InvalidFile) as failed:
        read(content)
    (only,) = str(failed.value).splitlines()
    assert only.startswith(f"{FILE}: ")
    assert problem in only
    assert ". Fix: " in only


@pytest.mark.parametrize(
    ("verdicts", "problem"),
    [
        (("missed", "inconclusive"), "no load kept every objective. Fix: run `tokenslo load --slo"),
        ((None, None), "has no verdict on objectives. Fix: run `tokenslo load --slo FILE`."),
    ],
)
def test_a_report_without_a_kept_load_is_refused(
    verdicts: tuple[str | None, ...], problem: str
) -> None:
    levels = [level("rate", number, 5.0, 2.0, 0.3, one) for number, one in enumerate(verdicts, 1)]
    with pytest.raises(InvalidFile) as failed:
        read(load_report(*levels))
    assert problem in str(failed.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "load.json:1: is not valid JSON: "),
        ("[" * 100_000, "load.json: is nested too deeply. Fix: give load.json, which"),
        ('{"endpoints": ' + "9" * 5000 + "}", "load.json: has a number that is too long"),
        ("7", "load.json: is not an object of a load report. Fix: "),
    ],
)
def test_a_file_that_is_no_report_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidFile) as failed:
        read_capacity(text, FILE)
    assert problem in str(failed.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"absent\.json: cannot be read: No such file"):
        load_capacity(str(tmp_path / "absent.json"))


ODD = (None, True, "x", [], {}, [[]], [{}], 0, -1, 1e400, float("nan"), 10**30, {"p50": 0})


@given(
    st.sampled_from(ODD),
    st.sampled_from([(*FIRST, "prompts"), (*LAST, "latencies"), ("highest_rate",), FIRST])
    | st.tuples(*map(st.just, LAST), st.sampled_from(tuple(SWEEP[2]))),
)
def test_other_values_are_read_or_refused(value: object, path: tuple[str | int, ...]) -> None:
    content = json.loads(json.dumps(load_report(*SWEEP)))
    put(value, *path)(content)
    try:
        found = read(content)
    except InvalidFile:
        return
    assert found.rate > 0
    assert found.in_flight > 0


# The arithmetic


def rows(plan: AdmissionPlan) -> dict[str, str]:
    return {row.name: row.value for row in plan.limits}


def test_an_e2e_threshold_limits_the_answer() -> None:
    whole = service(*CHAT.objectives, latency("done", "e2e", "62"))
    settings = AdmissionSettings()
    plan = admission_plan(whole, CAPACITY, settings)
    assert (plan.output_tokens, rows(plan)["output tokens"]) == (1000, "1000")
    assert (plan.input_tokens, plan.sequence_tokens) == (8500, 9500)
    longer = admission_plan(whole, CAPACITY, replace(settings, output_tokens=2000))
    assert longer.notes == (
        "Answers above 1000 tokens can miss done (e2e 1m2s) although their tokens keep token-pace "
        "(itl 60ms).",
    )
    assert longer.hops.answer.seconds == 122


def test_a_queue_threshold_limits_the_wait() -> None:
    both = service(*CHAT.objectives, latency("scheduled", "queue", "0.8"))
    plan = admission_plan(both, CAPACITY, SETTINGS)
    assert [(one.timeout, one.size) for one in plan.queues] == [(Decimal("0.8"), 6)]
    loose = service(*CHAT.objectives, latency("scheduled", "queue", "5"))
    assert admission_plan(loose, CAPACITY, SETTINGS).queues[0].timeout == Decimal("1.6")


def test_a_queue_is_never_unlimited() -> None:
    slow = replace(CAPACITY, rate=Decimal("0.1"))
    assert admission_plan(CHAT, slow, SETTINGS).queue_size == 1  # 0 is no limit in Triton


def test_an_iteration_has_a_token_of_each_sequence() -> None:
    slow = replace(CAPACITY, prefill_rate=Decimal(100))
    plan = admission_plan(CHAT, slow, SETTINGS)
    assert (plan.max_num_tokens, plan.needs_chunks) == (47, True)
    assert any(note.startswith("47 sequences and a prompt do not fit") for note in plan.notes)


def test_unknown_token_counts_leave_limits_out() -> None:
    blind = replace(CAPACITY, input_tokens=None, prefill_rate=None)
    plan = admission_plan(CHAT, blind, SETTINGS)
    assert (plan.max_num_tokens, plan.token_rate, plan.needs_chunks) == (None, None, False)
    assert rows(plan).keys().isdisjoint({"tokens per iteration", "gateway: token rate"})
    assert len(plan.notes) == 2


@pytest.mark.parametrize(
    ("chosen", "capacity", "settings", "problem"),
    [
        (
            service(latency("pace", "itl", "0.06")),
            CAPACITY,
            SETTINGS,
            "slo.yaml: objectives: none of chat has a threshold for ttft; the length of a queue "
            "needs it. Fix: add an objective with the indicator ttft, or a goodput objective with "
            "the clause ttft.",
        ),
        (
            service(latency("first-token", "ttft", "2"), latency("done", "e2e", "60")),
            CAPACITY,
            SETTINGS,
            "slo.yaml: objectives: none of chat has a threshold for itl or tpot; the time of an "
            "answer needs it. Fix: add an objective with the indicator itl, or a goodput objective "
            "with the clause tpot.",
        ),
        (
            CHAT,
            replace(CAPACITY, unqueued_ttft=Decimal("2.5")),
            SETTINGS,
            "slo.yaml: objectives: TTFT without a queue is 2.5s (load.json), which leaves no time "
            "to wait in first-token (ttft 2s). Fix: raise the threshold, or measure a faster "
            "server or shorter prompts.",
        ),
        (
            CHAT,
            CAPACITY,
            replace(SETTINGS, lower_priorities=(Decimal(5), Decimal(3))),
            "slo.yaml: --lower-priorities: the TTFT threshold 3s of a lower priority is not above "
            "5s, that of the priority before it. Fix: give ascending thresholds above the "
            "tightest TTFT threshold of the file.",
        ),
        (
            CHAT,
            CAPACITY,
            AdmissionSettings(6000),
            "slo.yaml: objectives: chat has no e2e threshold, so the longest answer is unknown. "
            "Fix: give --output-tokens N, the most that clients may request.",
        ),
        (
            service(*CHAT.objectives, latency("done", "e2e", "1")),
            CAPACITY,
            AdmissionSettings(6000),
            "slo.yaml: objectives: chat leaves no time in done (e2e 1s), so the longest answer is "
            "unknown. Fix: give --output-tokens N, the most that clients may request.",
        ),
        (
            CHAT,
            replace(CAPACITY, prefill_rate=None),
            AdmissionSettings(None, 2000),
            "load.json: has no prefill rate, so the longest prompt is unknown. Fix: give "
            "--input-tokens N, or measure a server that reports token counts.",
        ),
        (
            CHAT,
            CAPACITY,
            AdmissionSettings(500, 2000),
            "slo.yaml: --input-tokens: 500 is below the mean of the measured prompts, 900. Fix: "
            "raise it, or measure with the prompts of your clients.",
        ),
        (
            CHAT,
            CAPACITY,
            AdmissionSettings(6000, 200),
            "slo.yaml: --output-tokens: 200 is below the mean of the measured answers, 250. Fix: "
            "raise it, or measure with the answers of your clients.",
        ),
        (
            CHAT,
            replace(CAPACITY, objectives={"other/first": "1s"}),
            SETTINGS,
            'load.json: was measured against "other/first", none of which is of chat. Fix: run '
            "`tokenslo load --slo slo.yaml` again.",
        ),
        (
            CHAT,
            replace(CAPACITY, objectives={"chat/first-token": "1s"}),
            SETTINGS,
            'load.json: chat/first-token: was measured with the limit "1s", slo.yaml has "2s". '
            "Fix: run `tokenslo load --slo slo.yaml` again.",
        ),
    ],
)
def test_contradictions_are_refused(
    chosen: Service, capacity: MeasuredCapacity, settings: AdmissionSettings, problem: str
) -> None:
    with pytest.raises(InvalidFile) as failed:
        admission_plan(chosen, capacity, settings)
    assert str(failed.value) == problem


def numbers(least: str, most: str, places: int = 3) -> st.SearchStrategy[Decimal]:
    return st.decimals(least, most, places=places, allow_nan=False, allow_infinity=False)


@st.composite
def plans(draw: st.DrawFn) -> AdmissionPlan:
    ttft = draw(numbers("0.001", "7200"))
    objectives = [
        latency("first", "ttft", str(ttft)),
        latency("second", "ttft", str(ttft + draw(numbers("0", "100")))),
        latency("pace", draw(st.sampled_from(("itl", "tpot"))), str(draw(numbers("0.001", "100")))),
    ]
    objectives += [
        latency(indicator, indicator, str(draw(numbers("0.001", "7200"))))
        for indicator in draw(st.sets(st.sampled_from(("queue", "max_gap", "e2e"))))
    ]
    capacity = MeasuredCapacity(
        FILE,
        f"{draw(st.sampled_from(('rate', 'concurrency')))} 1",
        draw(numbers("0.001", "1000000")),
        draw(numbers("0.1", "1000000", 1)),
        ttft * draw(numbers("0.001", "0.999")),
        draw(st.none() | numbers("0.1", "1", 1)),
        draw(st.none() | numbers("0.1", "1", 1)),
        draw(st.none() | numbers("1", "1000000", 0)),
    )
    steps = draw(st.lists(numbers("0.001", "1000"), max_size=3))
    lower = tuple(ttft + sum(steps[: index + 1]) for index in range(len(steps)))
    settings = AdmissionSettings(
        draw(st.integers(1, 1_000_000)),
        draw(st.integers(1, 1_000_000)),
        lower,
        draw(st.integers(1, 1000)),
        draw(st.integers(1, 1000)),
        draw(numbers("0", "0.5", 2)),
    )
    return admission_plan(service(*objectives), capacity, settings)


@given(plans())
def test_each_hop_outlasts_the_next_one(plan: AdmissionPlan) -> None:
    hops, thresholds = plan.hops, plan.thresholds
    queue = plan.queues[0].timeout
    totals = (hops.client, hops.gateway, hops.server)
    assert all(outer.seconds > inner.seconds for outer, inner in pairwise(totals))
    assert hops.server.seconds > hops.answer.seconds >= thresholds.loose_ttft.seconds > queue > 0
    assert hops.client_idle.seconds > hops.gateway_idle.seconds > thresholds.longest_gap.seconds
    assert hops.gateway_idle.seconds <= hops.gateway.seconds
    assert all(one.seconds == int(one.seconds) for one in totals)


@given(plans())
def test_accepted_requests_wait_no_longer_than_their_threshold_allows(plan: AdmissionPlan) -> None:
    waiting = 0
    for queue in plan.queues:
        assert 1 <= queue.size <= MAX_COUNT
        waiting += queue.size
        most = max(queue.timeout * plan.capacity.rate, Decimal(queue.priority))
        assert waiting <= most  # at least one each, as 0 is no limit
    assert all(low.timeout > high.timeout for high, low in pairwise(plan.queues))


@given(plans())
def test_limits_are_positive_and_within_the_capacity(plan: AdmissionPlan) -> None:
    settings, capacity = plan.settings, plan.capacity
    assert capacity.in_flight <= plan.running <= MAX_COUNT
    assert plan.max_num_tokens is None or plan.max_num_tokens >= plan.running
    assert 1 <= plan.gateway.pending <= plan.gateway.in_flight <= MAX_COUNT
    rate = plan.request_rate
    assert 1 <= rate.number <= MAX_RATE
    seconds = {"Second": 1, "Minute": 60}[rate.unit]
    if rate.number > 1:
        sent = Decimal(rate.number) / seconds * settings.gateways * (1 + settings.retries)
        assert sent <= capacity.rate * settings.replicas * Decimal("1.000001")
    assert (plan.token_rate is None) == (
        capacity.input_tokens is None or capacity.output_tokens is None
    )
    assert all(row.value and row.arithmetic and row.follows_from for row in plan.limits)


def waits(rate: float, slots: int, seconds: float, most_queued: float) -> tuple[list[float], int]:
    """Return how long admitted requests wait for one of the slots, and the rejected requests.

    Arrivals are Poisson; a request holds its slot for an exponential time of this mean.
    """
    random = Random(1)
    free_at = [0.0] * slots
    heapify(free_at)
    starts: deque[float] = deque()
    found: list[float] = []
    now, rejected = 0.0, 0
    for _ in range(3000):
        now += random.expovariate(rate)
        while starts and starts[0] <= now:
            starts.popleft()
        start = max(now, free_at[0])
        if start > now and len(starts) >= most_queued:
            rejected += 1
            continue
        heapreplace(free_at, start + random.expovariate(1 / seconds))
        found.append(start - now)
        starts.append(start)
    return found, rejected


def test_in_an_overload_admitted_requests_keep_the_threshold() -> None:
    plan = admission_plan(CHAT, CAPACITY, SETTINGS)
    service_seconds = float(CAPACITY.in_flight / CAPACITY.rate)
    overload = 3 * plan.running / service_seconds
    allowed = float(plan.queues[0].timeout)

    def share(most_queued: float) -> tuple[float, int]:
        found, rejected = waits(overload, plan.running, service_seconds, most_queued)
        return sum(wait <= allowed for wait in found) / len(found), rejected

    kept, rejected = share(plan.queue_size)
    assert kept >= 0.95
    assert rejected > 1500
    assert share(inf) < (0.2, 1)
