"""The simulated engine: drafts, micro-batches and request metrics."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.engine_events import EngineRequest
from lab.engine_settings import EngineSettings
from tests.test_engine import CAPACITY, SMALL, Arrival, Trace, run, words, workloads

settings = st.builds(
    replace,
    st.sampled_from([SMALL, replace(SMALL, chunked_context=True, max_num_tokens=20)]),
    policy=st.sampled_from(["guaranteed_no_evict", "max_utilization"]),
    draft_tokens=st.integers(0, 3),
    acceptance=st.sampled_from([0.0, 0.5, 1.0]),
    micro_batches=st.integers(1, 3),
    seed=st.integers(0, 3),
)
undisturbed = st.lists(
    st.builds(
        Arrival,
        st.floats(0, 1.5),
        st.builds(
            EngineRequest,
            st.tuples(st.uuids(), st.integers(0, CAPACITY // 2)).map(
                lambda d: (d[0], *range(d[1]))
            ),
            st.integers(1, CAPACITY // 2),
        ),
    ),
    min_size=1,
    max_size=10,
)


def token_times(trace: Trace, number: int = 1) -> list[float]:
    return [event.time for event in trace.tokens(number)]


@given(settings, workloads)
def test_every_request_ends_once_with_its_tokens_in_order(
    settings: EngineSettings, workload: list[Arrival]
) -> None:
    trace = run(settings, workload)
    assert len(trace.by_request) == len(workload)
    for events in trace.by_request.values():
        tokens = [event.index for event in events if event.index is not None]
        assert tokens == list(range(len(tokens)))
        assert [event.final for event in events] == [False] * (len(events) - 1) + [True]
        for event, following in pairwise(events):
            assert event.more == (event.time == following.time)


@given(settings, workloads)
def test_limits_hold_for_every_batch(settings: EngineSettings, workload: list[Arrival]) -> None:
    for record in run(settings, workload).records:
        batch, cache = record.inflightBatchingStats, record.kvCacheStats
        drafted = record.specDecodingStats.numDraftTokens if record.specDecodingStats else 0
        assert batch.numScheduledRequests <= settings.max_batch_size
        assert batch.numCtxTokens + batch.numGenRequests + drafted <= settings.max_num_tokens
        assert 0 <= cache.usedNumBlocks <= settings.kv_blocks
        assert 0 <= batch.microBatchId < settings.micro_batches


@given(settings, undisturbed)
def test_decoding_and_accepted_tokens_are_all_but_the_first_of_each_request(
    settings: EngineSettings, workload: list[Arrival]
) -> None:
    settings = replace(settings, policy="guaranteed_no_evict", chunked_context=False)
    trace = run(replace(settings, max_num_tokens=2 * CAPACITY), workload)
    decoded = sum(record.inflightBatchingStats.numGenRequests for record in trace.records)
    drafts = [record.specDecodingStats for record in trace.records if record.specDecodingStats]
    accepted = sum(each.numAcceptedTokens for each in drafts)
    tokens = sum(event.index is not None for event in trace.events)
    assert decoded + accepted + len(workload) == tokens
    assert all(each.numAcceptedTokens <= each.numDraftTokens for each in drafts)


@given(settings, workloads)
def test_the_metrics_of_all_requests_add_up_to_those_of_the_engine(
    settings: EngineSettings, workload: list[Arrival]
) -> None:
    trace = run(settings, workload)
    ordered = sorted(workload, key=lambda arrival: arrival.time)
    found = []
    for number, events in trace.by_request.items():
        metrics = events[-1].metrics
        assert metrics is not None
        assert all(event.metrics is None for event in events[:-1])
        times = [event.time for event in events if event.index is not None]
        assert metrics.output_tokens == len(times)
        assert metrics.prompt_tokens == len(ordered[number - 1].request.prompt)
        assert (metrics.first_token_time, metrics.last_token_time) == (
            (times[0], times[-1]) if times else (None, None)
        )
        if metrics.first_scheduled_time is not None:
            assert metrics.arrival_time <= metrics.first_scheduled_time
        if metrics.first_token_time is not None and metrics.first_scheduled_time is not None:
            assert metrics.first_scheduled_time < metrics.first_token_time
        found.append(metrics)
    cache = trace.records[-1].kvCacheStats
    assert sum(m.num_total_allocated_blocks for m in found) == cache.allocTotalBlocks
    assert sum(m.num_new_allocated_blocks for m in found) == cache.allocNewBlocks
    assert sum(m.num_reused_blocks for m in found) == cache.reusedBlocks
    assert sum(m.num_missed_blocks for m in found) == cache.missedBlocks


def test_accepted_drafts_arrive_with_the_token_they_follow() -> None:
    settings = replace(SMALL, jitter=0, draft_tokens=3, acceptance=1.0, kv_blocks=40)
    trace = run(settings, [Arrival(0, EngineRequest(words(4), 10))])
    first = 0.020 + 4 * 0.0005
    steps = [first, *[first + 0.021] * 4, *[first + 0.042] * 4, first + 0.063]
    assert token_times(trace) == pytest.approx(steps)
    drafts = [r.specDecodingStats for r in trace.records if r.specDecodingStats]
    counts = [(each.numDraftTokens, each.numAcceptedTokens) for each in drafts]
    assert counts == [(0, 0), (3, 3), (3, 3), (0, 0), (0, 0)]
    metrics = trace.tokens(1)[-1].metrics
    assert metrics is not None
    assert (metrics.total_draft_tokens, metrics.total_accepted_draft_tokens) == (6, 6)
    assert [r.inflightBatchingStats.avgNumDecodedTokensPerIter for r in trace.records] == [
        *(0.0, 1.0, pytest.approx(5 / 2), pytest.approx(9 / 3), 0.0),
    ]


def test_drafts_take_room_in_the_cache_and_in_the_iteration() -> None:
    settings = replace(SMALL, draft_tokens=3, acceptance=1.0, chunked_context=True, kv_blocks=40)
    alone = run(settings, [Arrival(0, EngineRequest(words(3), 14))])
    # 3 tokens, then 4 and 3 drafts, 8 and 3, 12 and 3, and 16, the last that are needed.
    used = [record.kvCacheStats.usedNumBlocks for record in alone.records]
    assert used == [1, 2, 3, 4, 4, 0]
    both = [
        Arrival(0, EngineRequest(words(4), 14)),
        Arrival(0.03, EngineRequest(words(40, "b"), 1)),
    ]
    trace = run(replace(settings, max_num_tokens=21), both)
    chunks = [record.inflightBatchingStats.numCtxTokens for record in trace.records]
    assert chunks[2] == 21 - 1 - 3 - 1  # in whole blocks of 4


def test_rejected_drafts_cost_nothing() -> None:
    plain = run(replace(SMALL, jitter=0), [Arrival(0, EngineRequest(words(4), 10))])
    settings = replace(SMALL, jitter=0, draft_tokens=3, acceptance=0.0)
    assert token_times(run(settings, [Arrival(0, EngineRequest(words(4), 10))])) == token_times(
        plain
    )


def test_a_sequence_advances_once_in_a_round_of_the_micro_batches() -> None:
    settings = replace(SMALL, jitter=0, micro_batches=3, kv_blocks=100, max_batch_size=1)
    trace = run(settings, [Arrival(0, EngineRequest(words(4, name), 6)) for name in "abc"])
    rounds = [after - before for before, after in pairwise(token_times(trace)[1:])]
    assert rounds == pytest.approx([3 * 0.021] * 4)
    turns = [r.inflightBatchingStats.microBatchId for r in trace.records]
    assert turns[:7] == [0, 1, 2, 0, 1, 2, 0]
    assert all(r.inflightBatchingStats.numScheduledRequests <= 1 for r in trace.records)


def test_a_round_with_one_request_is_as_long_but_for_the_work() -> None:
    settings = replace(SMALL, jitter=0, micro_batches=3)
    trace = run(settings, [Arrival(0, EngineRequest(words(4), 5))])
    rounds = [after - before for before, after in pairwise(token_times(trace))]
    assert rounds == pytest.approx([0.021 + 2 * 0.020] * 4)
    assert len(trace.records) == 6
    assert trace.records[-1].numActiveRequests == 0
