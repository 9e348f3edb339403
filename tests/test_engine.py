"""The simulated engine, in virtual time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.engine import EngineStep, SimulatedEngine
from lab.engine_events import EngineEvent, EngineRequest
from lab.engine_settings import EngineSettings
from lab.iteration_stats import IterationStats

SMALL = EngineSettings(
    max_batch_size=4,
    max_num_active_requests=6,
    max_num_tokens=64,
    kv_blocks=12,
    tokens_per_block=4,
    step_seconds=0.02,
    sequence_seconds=0.001,
    context_token_seconds=0.0005,
    jitter=0.1,
)
CAPACITY = SMALL.kv_blocks * SMALL.tokens_per_block


@dataclass(frozen=True)
class Arrival:
    time: float
    request: EngineRequest
    cancelled_at: float = float("inf")


@dataclass
class Trace:
    """Results of a run; `steps` with the start time of each."""

    steps: list[tuple[float, EngineStep]] = field(default_factory=list)

    @property
    def events(self) -> list[EngineEvent]:
        return [event for _, step in self.steps for event in step.events]

    @property
    def records(self) -> list[IterationStats]:
        return [step.stats for _, step in self.steps if step.stats]

    @property
    def by_request(self) -> dict[int, list[EngineEvent]]:
        found = defaultdict(list)
        for event in self.events:
            found[event.request_id].append(event)
        return found

    def tokens(self, number: int) -> list[EngineEvent]:
        return [event for event in self.by_request[number] if event.index is not None]


def run(settings: EngineSettings, arrivals: Iterable[Arrival]) -> Trace:
    """Serve all arrivals in order of time; request n is the nth of them."""
    engine, trace, now = SimulatedEngine(settings), Trace(), 0.0
    ordered = sorted(arrivals, key=lambda arrival: arrival.time)
    inputs: list[tuple[float, int, Any]] = [(a.time, 0, a) for a in ordered]
    inputs += [
        (max(a.time, a.cancelled_at), 1, number)
        for number, a in enumerate(ordered, start=1)
        if a.cancelled_at < float("inf")
    ]
    inputs.sort(key=lambda item: item[:2])
    for _ in range(100_000):
        while inputs and inputs[0][0] <= now:
            time, kind, what = inputs.pop(0)
            if kind == 0:
                engine.submit(what.request, time)
            else:
                engine.cancel(what)
        step = engine.step(now)
        trace.steps.append((now, step))
        if step.seconds is not None:
            now += step.seconds
        elif inputs:
            now = max(now, inputs[0][0])
        else:
            return trace
    raise AssertionError("the engine never finished")


def words(count: int, name: str = "w") -> tuple[str, ...]:
    return tuple(f"{name}{number}" for number in range(count))


@st.composite
def requests(draw: st.DrawFn, prompts: st.SearchStrategy[tuple[Any, ...]]) -> EngineRequest:
    prompt = draw(prompts)
    max_tokens = draw(st.integers(1, CAPACITY - len(prompt)))
    fail_after = draw(st.none() | st.integers(0, max_tokens))
    return EngineRequest(prompt, max_tokens, fail_after)


settings = st.builds(
    replace,
    st.sampled_from([SMALL, replace(SMALL, chunked_context=True, max_num_tokens=12)]),
    policy=st.sampled_from(["guaranteed_no_evict", "max_utilization"]),
    honour_cancel=st.booleans(),
    max_batch_size=st.integers(1, 6),
    seed=st.integers(0, 3),
)
# Prompts of few letters share prefixes; unique prompts never do.
shared_prompts = st.text("ab", min_size=1, max_size=CAPACITY // 2).map(tuple)
unique_prompts = st.tuples(st.uuids(), st.integers(0, CAPACITY // 2)).map(
    lambda drawn: (drawn[0], *range(drawn[1]))
)
times = st.floats(0, 1.5).map(lambda seconds: round(seconds, 3))


def arrivals(
    prompts: st.SearchStrategy[tuple[Any, ...]], cancelled: st.SearchStrategy[float]
) -> st.SearchStrategy[list[Arrival]]:
    one = st.builds(Arrival, times, requests(prompts), cancelled)
    return st.lists(one, min_size=1, max_size=14)


never = st.just(float("inf"))
workloads = arrivals(shared_prompts, never | times)


@given(settings, workloads)
def test_every_request_ends_exactly_once_with_its_tokens_in_order(
    settings: EngineSettings, workload: list[Arrival]
) -> None:
    trace = run(settings, workload)
    ordered = sorted(workload, key=lambda arrival: arrival.time)
    assert sorted(trace.by_request) == list(range(1, len(workload) + 1))
    for number, events in trace.by_request.items():
        request = ordered[number - 1].request
        tokens = [event.index for event in events if event.index is not None]
        assert tokens == list(range(len(tokens)))
        assert [event.final for event in events] == [False] * (len(events) - 1) + [True]
        assert events == sorted(events, key=lambda event: event.time)
        match events[-1].finish_reason:
            case "length":
                assert len(tokens) == request.max_tokens
            case "error":
                assert len(tokens) == request.fail_after
            case "cancelled":
                assert settings.honour_cancel
                assert ordered[number - 1].cancelled_at < float("inf")
                assert len(tokens) < request.max_tokens


@given(settings, workloads)
def test_limits_hold_in_every_iteration(settings: EngineSettings, workload: list[Arrival]) -> None:
    for record in run(settings, workload).records:
        batch, cache = record.inflightBatchingStats, record.kvCacheStats
        assert batch.numScheduledRequests == batch.numContextRequests + batch.numGenRequests
        assert batch.numScheduledRequests <= settings.max_batch_size
        assert batch.numCtxTokens + batch.numGenRequests <= settings.max_num_tokens
        assert batch.numScheduledRequests <= record.numActiveRequests
        assert record.numActiveRequests <= settings.max_num_active_requests
        assert 0 <= cache.usedNumBlocks <= cache.maxNumBlocks == settings.kv_blocks
        assert cache.usedNumBlocks + cache.freeNumBlocks == cache.maxNumBlocks
        if settings.policy == "guaranteed_no_evict":
            assert batch.numPausedRequests == 0


@given(settings, arrivals(unique_prompts, never))
def test_the_blocks_in_use_are_those_of_the_sequences_in_the_batch(
    settings: EngineSettings, workload: list[Arrival]
) -> None:
    """Without sharing, chunks and cancels, every sequence that holds blocks is in the batch."""
    settings = replace(settings, chunked_context=False, max_num_tokens=2 * CAPACITY)
    ordered = sorted(workload, key=lambda arrival: arrival.time)
    for (_, launch), (_, result) in pairwise(run(settings, workload).steps):
        if not launch.stats:
            continue
        used = 0
        for event in result.events:
            request = ordered[event.request_id - 1].request
            generated = request.fail_after if event.index is None else event.index
            assert generated is not None
            used += ceil((len(request.prompt) + generated) / settings.tokens_per_block)
        assert launch.stats.kvCacheStats.usedNumBlocks == used
        assert launch.stats.inflightBatchingStats.numScheduledRequests == len(result.events)


@given(settings, workloads)
def test_an_engine_that_becomes_idle_emits_one_idle_record(
    settings: EngineSettings, workload: list[Arrival]
) -> None:
    trace = run(settings, workload)
    assert [record.iter for record in trace.records] == list(range(1, len(trace.records) + 1))
    assert sum(record.numCompletedRequests for record in trace.records) == len(workload)
    assert sum(record.numNewActiveRequests for record in trace.records) <= len(workload)
    for record, following in pairwise(trace.records):
        if not record.inflightBatchingStats.numScheduledRequests:
            assert following.numCompletedRequests or following.numActiveRequests
    last = trace.records[-1]
    assert last.numActiveRequests == last.numQueuedRequests == 0
    assert last.kvCacheStats.usedNumBlocks == 0
    assert last.iterLatencyMS == 0


def test_an_idle_engine_emits_nothing() -> None:
    engine = SimulatedEngine(SMALL)
    assert engine.step(0.0) == EngineStep((), None, None)
    engine.submit(EngineRequest(words(3), 2), 1.0)
    now = 1.0
    while (seconds := (step := engine.step(now)).seconds) is not None:
        now += seconds
    assert step.stats is not None
    assert step.stats.numActiveRequests == 0
    assert [engine.step(now + later) for later in (0, 1, 60)] == [EngineStep((), None, None)] * 3


@given(settings, workloads)
def test_no_token_follows_a_cancel(settings: EngineSettings, workload: list[Arrival]) -> None:
    trace = run(replace(settings, honour_cancel=True), workload)
    for number, arrival in enumerate(sorted(workload, key=lambda a: a.time), start=1):
        cancelled_at = max(arrival.time, arrival.cancelled_at)
        assert all(
            event.time <= cancelled_at or event.finish_reason == "cancelled"
            for event in trace.by_request[number]
        )


@given(settings, workloads)
def test_an_ignored_cancel_changes_nothing(
    settings: EngineSettings, workload: list[Arrival]
) -> None:
    settings = replace(settings, honour_cancel=False)
    without = [replace(arrival, cancelled_at=float("inf")) for arrival in workload]
    assert run(settings, workload).events == run(settings, without).events


@given(settings, arrivals(unique_prompts, never))
def test_first_tokens_come_in_order_of_arrival(
    settings: EngineSettings, workload: list[Arrival]
) -> None:
    """Hence no request starves: later ones cannot keep it waiting."""
    trace = run(replace(settings, chunked_context=False, max_num_tokens=2 * CAPACITY), workload)
    begun = [events[0].time for _, events in sorted(trace.by_request.items())]
    assert begun == sorted(begun)


@given(settings, workloads)
def test_the_reported_latency_is_the_true_gap_one_record_late(
    settings: EngineSettings, workload: list[Arrival]
) -> None:
    trace = run(settings, workload)
    launched: float | None = None
    for now, step in trace.steps:
        if step.stats and step.seconds is not None:
            truth = 0.0 if launched is None else (now - launched) * 1000
            assert step.stats.iterLatencyMS == pytest.approx(truth)
            assert step.stats.timestamp == now
        assert all(event.time == now for event in step.events)
        launched = None if step.seconds is None else now


@given(settings, workloads)
def test_the_same_inputs_give_the_same_run(
    settings: EngineSettings, workload: list[Arrival]
) -> None:
    assert run(settings, workload) == run(settings, workload)


def test_a_token_takes_longer_the_more_sequences_decode() -> None:
    settings = replace(SMALL, jitter=0, kv_blocks=100)
    alone = run(settings, [Arrival(0, EngineRequest(words(4), 10))])
    four = run(settings, [Arrival(0, EngineRequest(words(4, name), 10)) for name in "abcd"])
    assert gaps(alone) == pytest.approx([0.021] * 9)
    assert gaps(four) == pytest.approx([0.024] * 9)


def test_a_first_token_takes_longer_the_longer_the_prompt() -> None:
    settings = replace(SMALL, jitter=0)
    short, long = (
        run(settings, [Arrival(0, EngineRequest(words(n), 1))]).tokens(1)[0].time for n in (2, 40)
    )
    assert short == pytest.approx(0.020 + 2 * 0.0005)
    assert long == pytest.approx(0.020 + 40 * 0.0005)


def test_a_prompt_in_chunks_has_its_first_token_after_the_last_one() -> None:
    settings = replace(SMALL, jitter=0, chunked_context=True, max_num_tokens=16)
    trace = run(settings, [Arrival(0, EngineRequest(words(40), 2))])
    records = [record.inflightBatchingStats for record in trace.records]
    assert [batch.numCtxTokens for batch in records] == [16, 16, 8, 0, 0]
    assert trace.tokens(1)[0].time == pytest.approx(3 * 0.020 + 40 * 0.0005)


def test_a_prefill_stalls_the_others_and_chunks_make_the_stall_smaller() -> None:
    def longest(chunked: bool) -> float:
        settings = replace(SMALL, jitter=0, chunked_context=chunked, kv_blocks=100)
        settings = replace(settings, max_num_tokens=16 if chunked else 64)
        long = Arrival(0.03, EngineRequest(words(60, "long"), 2))
        return max(gaps(run(settings, [Arrival(0, EngineRequest(words(4), 12)), long])))

    assert longest(chunked=False) == pytest.approx(0.021 + 60 * 0.0005)
    assert longest(chunked=True) == pytest.approx(0.021 + 12 * 0.0005)


def test_without_free_blocks_one_policy_pauses_the_newest_and_the_other_queues_it() -> None:
    both = [Arrival(0, EngineRequest(words(4, name), 41)) for name in "ab"]  # 11 of 12 blocks each
    waiting = run(SMALL, both)
    pausing = run(replace(SMALL, policy="max_utilization"), both)
    assert waiting.tokens(1)[-1].time < waiting.tokens(2)[0].time
    assert pausing.tokens(2)[0].time < pausing.tokens(1)[-1].time
    assert pausing.tokens(1)[-1].time < pausing.tokens(2)[-1].time
    assert sum(r.inflightBatchingStats.numPausedRequests for r in pausing.records) >= 1
    assert max(gaps(pausing)) < 0.1 < max(gaps(pausing, 2))
    assert [len(pausing.tokens(number)) for number in (1, 2)] == [41, 41]


def test_requests_are_queued_until_admitted_and_wait_until_scheduled() -> None:
    record = run(
        SMALL, [Arrival(0, EngineRequest(words(2, str(n)), 2)) for n in range(10)]
    ).records[0]
    assert record.numNewActiveRequests == record.numActiveRequests == 6
    assert record.numQueuedRequests == 4
    assert record.inflightBatchingStats.numScheduledRequests == 4


def test_time_in_the_queue_is_reported_in_milliseconds() -> None:
    settings = replace(SMALL, max_batch_size=1, max_num_active_requests=1, jitter=0)
    both = [Arrival(0, EngineRequest(words(2), 1)), Arrival(0.001, EngineRequest(words(2), 1))]
    queued = [r.newActiveRequestsQueueLatencyMS for r in run(settings, both).records]
    assert queued == pytest.approx([0.0, 20.0, 0.0])


def test_a_prefix_seen_before_is_not_computed_again() -> None:
    settings = replace(SMALL, max_batch_size=1, max_num_active_requests=1)
    same = [Arrival(0, EngineRequest(words(12), 1)), Arrival(1, EngineRequest(words(12), 1))]
    records = run(settings, same).records
    assert [r.inflightBatchingStats.numCtxTokens for r in records] == [12, 0, 4, 0]
    assert records[-1].kvCacheStats.reusedBlocks == 2
    assert records[-1].kvCacheStats.missedBlocks == 4
    assert records[-1].kvCacheStats.cacheHitRate == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("changes", "request_", "error"),
    [
        ({}, EngineRequest((), 1), "the prompt is empty"),
        ({}, EngineRequest(words(1), 0), "max_tokens is 0, it must be at least 1"),
        (
            {},
            EngineRequest(words(40), 10),
            "prompt and output are 50 tokens, the KV cache holds 48",
        ),
        (
            {"kv_blocks": 100},
            EngineRequest(words(65), 1),
            "the context can grow to 65 tokens, an iteration takes 64 unless chunked_context is on",
        ),
        (
            {"kv_blocks": 100, "policy": "max_utilization"},
            EngineRequest(words(4), 62),
            "the context can grow to 65 tokens, an iteration takes 64 unless chunked_context is on",
        ),
    ],
)
def test_invalid_requests_are_refused(
    changes: dict[str, Any], request_: EngineRequest, error: str
) -> None:
    with pytest.raises(ValueError, match=f"^{error}$"):
        SimulatedEngine(replace(SMALL, **changes)).submit(request_, 0.0)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"policy": "fair"}, "policy 'fair' is none of guaranteed_no_evict, max_utilization"),
        ({"kv_blocks": 0}, "kv_blocks must be at least 1"),
        ({"max_num_active_requests": 3}, "max_num_active_requests must be at least"),
        ({"max_num_tokens": 7}, "max_num_tokens must exceed max_batch_size by tokens_per_block"),
        ({"step_seconds": 0}, "step_seconds must be positive"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        replace(SMALL, **changes)


def test_a_step_cannot_be_interrupted() -> None:
    engine = SimulatedEngine(SMALL)
    engine.submit(EngineRequest(words(2), 2), 0.0)
    engine.step(0.0)
    with pytest.raises(ValueError, match="the batch in flight runs until"):
        engine.step(0.001)


def gaps(trace: Trace, number: int = 1) -> list[float]:
    return [b.time - a.time for a, b in pairwise(trace.tokens(number))]
