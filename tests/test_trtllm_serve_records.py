"""The iteration records of both executors: shapes and known oddities."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.engine_events import EngineRequest
from lab.engine_settings import EngineSettings
from lab.trtllm_serve.iteration_json import records
from lab.trtllm_serve.settings import ServeSettings
from tests.test_engine import CAPACITY, SMALL, Arrival, Trace, run, words, workloads
from tests.test_trtllm_serve_engine import settings, undisturbed

Json = dict[str, Any]

STEADY = replace(SMALL, jitter=0)
CPP = ServeSettings(schema="tensorrt")
OLD = ServeSettings(schema="pytorch-1.2")
NEW = ServeSettings(schema="pytorch-1.4")

# One request after a second of idleness: 4 prompt tokens, 3 tokens.
ONE = [Arrival(1.0, EngineRequest(words(4), 3))]
PREFILL, DECODE = 22.0, 21.0

CPP_KEYS = {
    *("timestamp", "iter", "iterLatencyMS", "newActiveRequestsQueueLatencyMS"),
    *("numNewActiveRequests", "numActiveRequests", "numQueuedRequests", "numCompletedRequests"),
    *("maxNumActiveRequests", "maxBatchSizeStatic", "maxBatchSizeTunerRecommended"),
    *("maxBatchSizeRuntime", "maxNumTokensStatic", "maxNumTokensTunerRecommended"),
    *("maxNumTokensRuntime", "gpuMemUsage", "cpuMemUsage", "pinnedMemUsage", "kvCacheStats"),
    *("inflightBatchingStats", "staticBatchingStats", "specDecodingStats"),
}
NEW_KEYS = {
    *("attentionDpRank", "hostStepTimeMS", "prevDeviceStepTimeMS", "gpuForwardTimeMS"),
    "schedulerMode",
}


def convert(serve: ServeSettings, engine: EngineSettings, trace: Trace) -> list[Json]:
    of = records(serve, engine).of
    return [record for now, step in trace.steps for record in of(now, step)]


def of_one(serve: ServeSettings) -> list[Json]:
    return convert(serve, STEADY, run(STEADY, ONE))


def column(found: Iterable[Json], *path: str) -> list[Any]:
    values = []
    for record in found:
        value: Any = record
        for key in path:
            value = value[key]
        values.append(value)
    return values


def seconds(record: Json) -> float:
    return datetime.strptime(record["timestamp"], "%m-%d-%Y %H:%M:%S.%f").timestamp()


def local(moment: float) -> str:
    return datetime.fromtimestamp(moment).strftime("%m-%d-%Y %H:%M:%S.%f")


def gaps(trace: Trace) -> list[float]:
    """Return the true times between the tokens of every request, shortest first."""
    return sorted(
        after.time - before.time
        for number in trace.by_request
        for before, after in pairwise(trace.tokens(number))
    )


def are_among(reported: list[float], true: list[float]) -> bool:
    """Return whether every reported time is a true one, each used once, up to rounding."""
    left = iter(true)
    return all(any(abs(each - one) < 3e-6 for one in left) for each in sorted(reported))


# Shapes


def test_a_record_of_the_cpp_executor() -> None:
    found = of_one(CPP)
    assert [set(record) for record in found] == [CPP_KEYS] * 4
    assert found[1] == {
        "cpuMemUsage": 68172,
        "gpuMemUsage": 36100332423,
        "inflightBatchingStats": {
            "avgNumDecodedTokensPerIter": 1.0,
            "microBatchId": 0,
            "numContextRequests": 0,
            "numCtxTokens": 0,
            "numGenRequests": 1,
            "numPausedRequests": 0,
            "numScheduledRequests": 1,
        },
        "iter": 2,
        "iterLatencyMS": pytest.approx(PREFILL),
        "kvCacheStats": {
            "allocNewBlocks": 2,
            "allocTotalBlocks": 2,
            "cacheHitRate": 0.0,
            "freeNumBlocks": 10,
            "maxNumBlocks": 12,
            "missedBlocks": 1,
            "reusedBlocks": 0,
            "tokensPerBlock": 4,
            "usedNumBlocks": 2,
        },
        "maxBatchSizeRuntime": 4,
        "maxBatchSizeStatic": 4,
        "maxBatchSizeTunerRecommended": 0,
        "maxNumActiveRequests": 6,
        "maxNumTokensRuntime": 64,
        "maxNumTokensStatic": 64,
        "maxNumTokensTunerRecommended": 0,
        "newActiveRequestsQueueLatencyMS": 0.0,
        "numActiveRequests": 1,
        "numCompletedRequests": 0,
        "numNewActiveRequests": 0,
        "numQueuedRequests": 0,
        "pinnedMemUsage": 2952841216,
        "specDecodingStats": None,
        "staticBatchingStats": None,
        "timestamp": local(1.022),
    }
    assert list(found[1]) == sorted(found[1])


def test_a_record_of_the_pytorch_executor() -> None:
    found = of_one(OLD)
    assert [set(record) for record in found] == [CPP_KEYS] * 3
    assert found[0] == {
        "cpuMemUsage": 0,
        "gpuMemUsage": 40560164864,
        "inflightBatchingStats": {
            "avgNumDecodedTokensPerIter": 0.0,
            "microBatchId": 0,
            "numContextRequests": 1,
            "numCtxTokens": 4,
            "numGenRequests": 0,
            "numPausedRequests": 0,
            "numScheduledRequests": 1,
        },
        "iter": 1,
        "iterLatencyMS": pytest.approx(1000 + PREFILL),
        "kvCacheStats": {
            "allocNewBlocks": 2,
            "allocTotalBlocks": 2,
            "cacheHitRate": 0.0,
            "freeNumBlocks": 10,
            "maxNumBlocks": 12,
            "missedBlocks": 1,
            "reusedBlocks": 0,
            "tokensPerBlock": 4,
            "usedNumBlocks": 2,
        },
        "maxBatchSizeRuntime": 0,
        "maxBatchSizeStatic": 0,
        "maxBatchSizeTunerRecommended": 0,
        "maxNumActiveRequests": 6,
        "maxNumTokensRuntime": 0,
        "maxNumTokensStatic": 0,
        "maxNumTokensTunerRecommended": 0,
        "newActiveRequestsQueueLatencyMS": 0.0,
        "numActiveRequests": 1,
        "numCompletedRequests": 0,
        "numNewActiveRequests": 1,
        "numQueuedRequests": 0,
        "pinnedMemUsage": 0,
        "specDecodingStats": None,
        "staticBatchingStats": {
            "emptyGenSlots": 0,
            "numContextRequests": 0,
            "numCtxTokens": 0,
            "numGenTokens": 0,
            "numScheduledRequests": 0,
        },
        "timestamp": local(1.0),
    }


def test_keys_added_by_later_pytorch_releases() -> None:
    found = of_one(NEW)
    assert [set(record) for record in found] == [CPP_KEYS | NEW_KEYS] * 3
    last = found[-1]
    assert {key: last[key] for key in NEW_KEYS} == {
        "attentionDpRank": 0,
        "hostStepTimeMS": pytest.approx(DECODE),
        "prevDeviceStepTimeMS": pytest.approx(DECODE),
        "gpuForwardTimeMS": pytest.approx(DECODE),
        "schedulerMode": "overlap",
    }
    assert found[0]["prevDeviceStepTimeMS"] is None
    assert last["inflightBatchingStats"] == {
        "avgNumDecodedTokensPerIter": 0.0,
        "microBatchId": 0,
        "numContextRequests": 0,
        "numCtxKvTokens": 0,
        "numCtxTokens": 0,
        "numGenKvTokens": 6,
        "numGenRequests": 1,
        "numPausedKvTokens": 0,
        "numPausedRequests": 0,
        "numQueuedContextRequests": 0,
        "numQueuedCtxTokens": 0,
        "numQueuedGenKvTokens": 0,
        "numQueuedGenRequests": 0,
        "numScheduledRequests": 1,
    }


# Latency and time


def test_cpp_latency_is_that_of_the_batch_before_and_zero_at_the_end() -> None:
    found = of_one(CPP)
    assert column(found, "iterLatencyMS") == pytest.approx([0, PREFILL, DECODE, 0])
    assert column(found, "numActiveRequests") == [1, 1, 1, 0]
    assert column(found, "numCompletedRequests") == [0, 0, 0, 1]
    assert column(found, "timestamp") == [local(t) for t in (1.0, 1.022, 1.043, 1.064)]


def test_without_overlap_latency_is_that_of_the_batch_and_the_wait() -> None:
    found = of_one(replace(NEW, overlap=False))
    latencies = [1000 + PREFILL, DECODE, DECODE]
    assert column(found, "iterLatencyMS") == pytest.approx(latencies)
    assert column(found, "timestamp") == [local(t) for t in (1.0, 1.022, 1.043)]
    assert column(found, "hostStepTimeMS") == pytest.approx([PREFILL, DECODE, DECODE])
    assert column(found, "schedulerMode") == ["non_overlap"] * 3
    assert column(found, "numActiveRequests") == [1, 1, 1]
    assert column(found, "numCompletedRequests") == [0, 0, 1]


@pytest.mark.parametrize("serve", [OLD, NEW])
def test_with_overlap_latency_spans_two_batches_and_time_is_one_early(
    serve: ServeSettings,
) -> None:
    found = of_one(serve)
    latencies = [1000 + PREFILL, PREFILL + DECODE, 2 * DECODE]
    assert column(found, "iterLatencyMS") == pytest.approx(latencies)
    assert column(found, "timestamp") == [local(t) for t in (1.0, 1.0, 1.022)]
    assert column(found, "numCompletedRequests") == [0, 0, 1]


def test_the_wait_is_in_the_first_latency_after_every_idle_time() -> None:
    two = [*ONE, Arrival(3.0, EngineRequest(words(4, "x"), 2))]
    found = convert(replace(NEW, overlap=False), STEADY, run(STEADY, two))
    idle = (3.0 - 1.064) * 1000
    assert column(found, "iterLatencyMS")[3:] == pytest.approx([idle + PREFILL, DECODE])
    assert column(found, "iter") == [1, 2, 3, 4, 5]


def test_time_in_the_queue_is_in_seconds_and_never_reset() -> None:
    narrow = replace(STEADY, max_batch_size=1, max_num_active_requests=1)
    three = [Arrival(0.0, EngineRequest(words(2), 1)) for _ in range(3)]
    trace = run(narrow, three)
    queued = "newActiveRequestsQueueLatencyMS"
    assert column(convert(CPP, narrow, trace), queued) == pytest.approx([0, 21, 42, 0])
    assert column(convert(OLD, narrow, trace), queued) == pytest.approx([0, 0.021, 0.063])
    assert column(convert(CPP, narrow, trace), "numQueuedRequests") == [2, 1, 0, 0]
    assert column(convert(OLD, narrow, trace), "numQueuedRequests") == [0, 0, 0]


def durations(serve: ServeSettings, found: list[Json]) -> list[float | None]:
    """Return the duration of each record's batch, as far as records contain it."""
    if serve.schema == "tensorrt":
        latencies = [record["iterLatencyMS"] / 1000 or None for record in found]
        return [*latencies[1:], None]
    ahead = 2 if serve.overlap else 1
    times = [seconds(record) for record in found]
    return [
        times[n + ahead] - times[n + ahead - 1] if n + ahead < len(found) else None
        for n in range(len(found))
    ]


@pytest.mark.parametrize("serve", [CPP, OLD, replace(OLD, overlap=False), NEW])
@given(undisturbed)
def test_true_gaps_can_be_derived_from_the_records(
    serve: ServeSettings, workload: list[Arrival]
) -> None:
    """Every decoding request of a batch waited for its token as long as the batch took."""
    engine = replace(SMALL, kv_blocks=1000, max_num_tokens=20 * CAPACITY)
    busy = [replace(arrival, time=0.0) for arrival in workload]
    trace = run(engine, busy)
    found = convert(serve, engine, trace)
    reported: list[float] = []
    unknown = 0
    for record, duration in zip(found, durations(serve, found), strict=True):
        decoding = record["inflightBatchingStats"]["numGenRequests"]
        if duration is None:
            unknown += decoding
        else:
            reported += [duration] * decoding
    assert len(reported) + unknown == len(gaps(trace))
    assert are_among(reported, gaps(trace))


# Counts


@given(settings, workloads)
def test_records_count_everything_exactly_once(
    engine: EngineSettings, workload: list[Arrival]
) -> None:
    trace = run(engine, workload)
    cpp, old, new = (convert(serve, engine, trace) for serve in (CPP, OLD, NEW))
    scheduled = [r for r in cpp if r["inflightBatchingStats"]["numScheduledRequests"]]
    assert len(old) == len(new) == len(scheduled)
    assert column(new, "iter") == list(range(1, len(new) + 1))
    for key in ("numGenRequests", "numContextRequests", "numCtxTokens", "numPausedRequests"):
        expected = column(scheduled, "inflightBatchingStats", key)
        assert column(old, "inflightBatchingStats", key) == expected
        assert column(new, "inflightBatchingStats", key) == expected
    turns = column(scheduled, "inflightBatchingStats", "microBatchId")
    assert column(new, "inflightBatchingStats", "microBatchId") == turns
    assert set(column(old, "inflightBatchingStats", "microBatchId")) <= {0}
    assert column(new, "specDecodingStats") == [
        spec and spec | {"draftOverhead": pytest.approx(new_spec["draftOverhead"])}
        for spec, new_spec in zip(
            column(scheduled, "specDecodingStats"), column(new, "specDecodingStats"), strict=True
        )
    ]
    ended = [event for event in trace.events if event.final]
    assert sum(column(cpp, "numCompletedRequests")) == len(ended)
    late = len(ended) - sum(column(new, "numCompletedRequests"))
    # Only requests that end with no batch after them are not yet reported.
    assert 0 <= late <= sum(event.finish_reason == "cancelled" for event in ended)


@given(settings, workloads, st.integers(1, 4))
def test_rows_of_all_ranks_add_up_to_those_of_one(
    engine: EngineSettings, workload: list[Arrival], ranks: int
) -> None:
    trace = run(engine, workload)
    whole = convert(NEW, engine, trace)
    rows = convert(replace(NEW, attention_dp_ranks=ranks), engine, trace)
    assert len(rows) == ranks * len(whole)
    for number, record in enumerate(whole):
        of_it = rows[number * ranks : (number + 1) * ranks]
        assert column(of_it, "attentionDpRank") == list(range(ranks))
        assert set(column(of_it, "iter")) == {record["iter"]}
        for path in (
            ("numActiveRequests",),
            ("maxNumActiveRequests",),
            ("numCompletedRequests",),
            ("numNewActiveRequests",),
            ("inflightBatchingStats", "numScheduledRequests"),
            ("inflightBatchingStats", "numGenRequests"),
            ("inflightBatchingStats", "numCtxTokens"),
            ("inflightBatchingStats", "numGenKvTokens"),
            ("kvCacheStats", "maxNumBlocks"),
            ("kvCacheStats", "usedNumBlocks"),
            ("kvCacheStats", "missedBlocks"),
        ):
            assert sum(column(of_it, *path)) == column([record], *path)[0]
        for row in of_it[1:]:
            assert row["numCompletedRequests"] == row["numNewActiveRequests"] == 0
            assert row["newActiveRequestsQueueLatencyMS"] == 0
        if record["specDecodingStats"]:
            accepted = column(of_it, "specDecodingStats", "numAcceptedTokens")
            assert sum(accepted) == record["specDecodingStats"]["numAcceptedTokens"]


@given(settings, workloads, st.integers(2, 4))
def test_sampled_records_have_all_new_and_completed_requests(
    engine: EngineSettings, workload: list[Arrival], interval: int
) -> None:
    trace = run(engine, workload)
    all_of_them = convert(NEW, engine, trace)
    sampled = convert(replace(NEW, iteration_interval=interval), engine, trace)
    assert column(sampled, "iter") == list(range(interval, len(all_of_them) + 1, interval))
    reported = all_of_them[: len(sampled) * interval]
    for key in ("numNewActiveRequests", "numCompletedRequests"):
        assert sum(column(sampled, key)) == sum(column(reported, key))
    expected = column(reported[interval - 1 :: interval], "inflightBatchingStats", "numGenRequests")
    assert column(sampled, "inflightBatchingStats", "numGenRequests") == expected


# The KV cache


def test_blocks_of_the_host_count_as_used() -> None:
    engine = replace(STEADY, kv_blocks=12)
    found = convert(replace(CPP, host_blocks=100), engine, run(engine, ONE))
    assert column(found, "kvCacheStats", "maxNumBlocks") == [112] * 4
    assert column(found, "kvCacheStats", "usedNumBlocks") == [101, 102, 102, 100]
    assert column(found, "kvCacheStats", "freeNumBlocks") == [11, 10, 10, 12]


def test_second_kv_cache_manager_reports_no_blocks() -> None:
    found = of_one(replace(NEW, kv_manager_v2=True))
    for record in found:
        assert set(record["kvCacheStats"].values()) == {0}


@given(settings, workloads, st.integers(1, 4))
def test_the_deltas_of_the_kv_cache_add_up_to_its_counters(
    engine: EngineSettings, workload: list[Arrival], interval: int
) -> None:
    found = convert(replace(NEW, kv_iteration_interval=interval), engine, run(engine, workload))
    (window,) = {str(engine.kv_blocks * engine.tokens_per_block)}
    missed = reused = allocated = 0
    for record in found:
        assert ("kvCacheIterationStats" in record) == (record["iter"] % interval == 0)
        if deltas := record.get("kvCacheIterationStats"):
            missed += deltas[window]["iterMissedBlocks"]
            reused += deltas[window]["iterReusedBlocks"]
            allocated += deltas[window]["iterAllocTotalBlocks"]
            cache = record["kvCacheStats"]
            assert missed == cache["missedBlocks"]
            assert reused == cache["reusedBlocks"]
            assert allocated == cache["allocTotalBlocks"]
            assert deltas[window]["iterGenAllocBlocks"] <= allocated


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"schema 'x' is none of tensorrt, pytorch-1.2, pytorch"):
        ServeSettings(schema="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"attention_dp_ranks needs the schema pytorch-1\.4"):
        ServeSettings(schema="tensorrt", attention_dp_ranks=2)
    with pytest.raises(ValueError, match="must be at least 1"):
        ServeSettings(stream_interval=0)
    with pytest.raises(ValueError, match="must not be negative"):
        ServeSettings(host_blocks=-1)
