"""Iteration records: parsing, gauges, gaps between tokens, and loss."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.methods import METHODS
from exporter.samples import Distribution, Measurement, Missing
from exporter.sources.trtllm.iterations.continuity import Continuity
from exporter.sources.trtllm.iterations.engine import EngineState
from exporter.sources.trtllm.iterations.json_splitter import MAX_OBJECT, JsonSplitter
from exporter.sources.trtllm.iterations.records import TIMESTAMP, dialect_of, read_record
from exporter.sources.trtllm.iterations.report import report
from slos.signals import MAIN_SIGNALS

Json = dict[str, Any]
Make = Callable[..., Json]


def nothing(like: object) -> Distribution:
    """Return a histogram with these edges and nothing in it."""
    assert isinstance(like, Distribution)
    return Distribution(like.boundaries, (0.0,) * len(like.boundaries), 0.0)


BLOCKS: Json = {
    "maxNumBlocks": 1000,
    "freeNumBlocks": 900,
    "usedNumBlocks": 100,
    "tokensPerBlock": 32,
    "allocTotalBlocks": 400,
    "allocNewBlocks": 390,
    "reusedBlocks": 30,
    "missedBlocks": 70,
    "cacheHitRate": 0.3,
}


def stamp(seconds: float) -> str:
    whole, micro = divmod(round(seconds * 1e6), 10**6)
    minute, second = divmod(whole, 60)
    return f"11-20-2026 12:{minute:02}:{second:02}.{micro:06}"


def cpp(
    number: int, latency: float = 20.0, *, gen: float = 2, ctx: int = 0, **changes: Any
) -> Json:
    """Return a record of the C++ executor; keys of the batch go into ``batch``."""
    batch = {
        "numScheduledRequests": gen + ctx,
        "numContextRequests": ctx,
        "numGenRequests": gen,
        "numPausedRequests": 0,
        "numCtxTokens": 100 * ctx,
        "microBatchId": 0,
        "avgNumDecodedTokensPerIter": 1.0,
        **changes.pop("batch", {}),
    }
    return {
        "timestamp": stamp(number * 0.02),
        "iter": number,
        "iterLatencyMS": latency,
        "newActiveRequestsQueueLatencyMS": 0.0,
        "numNewActiveRequests": 0,
        "numActiveRequests": 3,
        "numQueuedRequests": 4,
        "numCompletedRequests": 0,
        "maxNumActiveRequests": 64,
        "maxBatchSizeRuntime": 64,
        "maxBatchSizeStatic": 64,
        "maxNumTokensRuntime": 8192,
        "maxNumTokensStatic": 8192,
        "gpuMemUsage": 36_000_000_000,
        "cpuMemUsage": 68_172,
        "pinnedMemUsage": 2_952_841_216,
        "kvCacheStats": BLOCKS,
        "inflightBatchingStats": batch,
        "staticBatchingStats": None,
        "specDecodingStats": None,
        **changes,
    }


def pytorch(number: int, **changes: Any) -> Json:
    """Return a record of the PyTorch executor without the overlap scheduler, 20 ms a loop."""
    zero = {"cpuMemUsage": 0, "pinnedMemUsage": 0, "numQueuedRequests": 0}
    limits = dict.fromkeys(
        ("maxBatchSizeRuntime", "maxBatchSizeStatic", "maxNumTokensRuntime", "maxNumTokensStatic"),
        0,
    )
    batch = {"avgNumDecodedTokensPerIter": 0.0, **changes.pop("batch", {})}
    return cpp(number, **{**zero, **limits, **changes}, batch=batch)


def fed(*values: Json) -> EngineState:
    engine = EngineState()
    for value in values:
        record = read_record(value)
        assert record is not None
        engine.add(record)
    return engine


def by_signal(engine: EngineState, age: float | None = 0.0) -> dict[str, object]:
    """Return the value of every signal, or the reason why it is unavailable."""
    measurements, missing = report(engine, age, 5.0, "chat", "1")
    assert sorted(one.signal for one in (*measurements, *missing)) == sorted(MAIN_SIGNALS)
    assert {(one.model, one.version) for one in (*measurements, *missing)} == {("chat", "1")}
    values: dict[str, object] = {gap.signal: gap.reason for gap in missing}
    return values | {one.signal: one.samples[()] for one in measurements}


def one(engine: EngineState, signal: str) -> Measurement | Missing:
    measurements, missing = report(engine, 0.0, 5.0, "chat", "1")
    (found,) = [item for item in (*measurements, *missing) if item.signal == signal]
    return found


def gaps(engine: EngineState) -> list[tuple[float, float]]:
    """Return count and sum of the gaps so far as (number, mean in ms)."""
    measurement = one(engine, "itl")
    assert isinstance(measurement, Measurement), measurement
    value = measurement.samples[()]
    assert isinstance(value, Distribution)
    return [(value.count, round(value.sum / value.count * 1000, 3))] if value.count else []


class TestDialects:
    """Executors are distinguished by keys and values: records have no version."""

    @pytest.mark.parametrize(
        ("record", "dialect"),
        [
            pytest.param(cpp(1), "cpp", id="C++"),
            pytest.param(pytorch(1), "pytorch", id="PyTorch"),
            pytest.param({"iter": 1, "cpuMemUsage": 3492}, "cpp", id="only C++ sets CPU memory"),
            pytest.param({"iter": 1, "maxBatchSizeRuntime": 0}, "pytorch", id="no batch limit"),
            pytest.param({"iter": 1, "attentionDpRank": 0}, "pytorch", id="a key of PyTorch's"),
            pytest.param({"iter": 154, "iterLatencyMS": 7.0, "numActiveRequests": 1}, None,
                         id="the documentation's example shows neither"),
        ],
    )  # fmt: skip
    def test_record_identifies_its_executor(self, record: Json, dialect: str | None) -> None:
        assert dialect_of(record) == dialect

    def test_unidentified_executor_has_gauges_and_no_gaps(self) -> None:
        plain = {"iter": 154, "iterLatencyMS": 7.0, "numActiveRequests": 1, "kvCacheStats": BLOCKS}
        reported = by_signal(fed(plain))
        assert reported["sequences_active"] == 1
        assert reported["kv_utilization"] == 0.1
        assert str(reported["itl"]).startswith("nothing in the records shows whether the C++")

    def test_another_executor_at_the_same_address_starts_over(self) -> None:
        engine = fed(cpp(5), cpp(6), pytorch(7), pytorch(8), pytorch(9))
        assert engine.dialect == "pytorch"
        assert (engine.restarts, engine.lost) == (1, 0)


class TestIterationGauges:
    def test_every_gauge_of_the_cpp_executor(self) -> None:
        reported = by_signal(fed(cpp(7)))
        assert {
            signal: value for signal, value in reported.items() if not isinstance(value, str)
        } == {
            "itl": nothing(reported["itl"]),
            "queue": Distribution((math.inf,), (0.0,), 0.0),
            "input_tokens": 0,
            "output_tokens": 2,
            "sequences_active": 3,
            "sequences_decoding": 2,
            "sequences_waiting": 5,
            "sequences_paused": 0,
            "sequences_max": 64,
            "kv_utilization": 0.1,
            "kv_blocks_used": 100,
            "kv_blocks_free": 900,
            "kv_blocks_max": 1000,
            "kv_reused_blocks": 30,
            "kv_missed_blocks": 70,
            "preemptions": 0,
            "memory_gpu": 36_000_000_000,
            "memory_cpu": 68_172,
            "memory_pinned": 2_952_841_216,
        }

    def test_what_pytorch_never_sets_is_absent(self) -> None:
        reported = by_signal(fed(pytorch(7)))
        assert (
            reported["memory_cpu"]
            == reported["memory_pinned"]
            == "the PyTorch backend never sets it"
        )
        # Its numQueuedRequests is a queue that every loop empties.
        assert reported["sequences_waiting"] == 1
        assert one(fed(pytorch(7)), "sequences_waiting").method == "trtllm_waiting"  # type: ignore[union-attr]

    def test_engine_without_requests_has_zero_gauges(self) -> None:
        # PyTorch writes no record when it is done: the last one still has what it completes.
        last = pytorch(8, numActiveRequests=2, numCompletedRequests=2)
        reported = by_signal(fed(pytorch(7), last), age=900.0)
        assert [reported[f"sequences_{state}"] for state in ("active", "decoding", "waiting")] == [
            0
        ] * 3

    def test_an_overlapped_engine_completes_two_batches_at_its_end(self) -> None:
        overlap = {"schedulerMode": "overlap", "iterLatencyMS": 40.0}
        engine = fed(
            pytorch(7, **overlap, numActiveRequests=3, numCompletedRequests=1),
            pytorch(8, **overlap, numActiveRequests=3, numCompletedRequests=2),
        )
        assert by_signal(engine)["sequences_active"] == 0

    def test_active_engine_without_new_records_has_no_gauges(self) -> None:
        engine = fed(cpp(7))
        assert by_signal(engine, age=5.0)["sequences_active"] == 3
        reported = by_signal(engine, age=6.0)
        assert str(reported["sequences_active"]).startswith(
            "the last iteration record is 6 s old and left 3 of its sequences active"
        )
        assert reported["kv_utilization"] == reported["sequences_active"]
        assert reported["sequences_max"] == 64

    def test_pauses_are_counted(self) -> None:
        engine = fed(*(cpp(n, batch={"numPausedRequests": n}) for n in (1, 2)),
                     cpp(3, iterSuspendedRequests=4))  # fmt: skip
        assert by_signal(engine)["preemptions"] == 7

    def test_before_the_first_record_the_fix_names_the_setting(self) -> None:
        gap = one(EngineState(), "sequences_active")
        assert isinstance(gap, Missing)
        assert gap.reason == "no iteration record was read yet"
        assert "enable_iter_perf_stats: true" in gap.fix


class TestBlocks:
    def test_a_cache_of_no_blocks_has_no_utilization(self) -> None:
        reported = by_signal(fed(pytorch(7, kvCacheStats=dict.fromkeys(BLOCKS, 0))))
        assert str(reported["kv_utilization"]).startswith(
            "the engine reports a KV cache of 0 blocks"
        )
        assert isinstance(reported["kv_reused_blocks"], str)

    @pytest.mark.parametrize("change", [{"usedNumBlocks": 1001}, {"freeNumBlocks": 100}])
    def test_contradictions_are_refused(self, change: Json) -> None:
        reported = by_signal(fed(cpp(7, kvCacheStats=BLOCKS | change)))
        assert str(reported["kv_utilization"]).startswith("KV-cache values contradict each other")

    def test_unused_blocks_belong_to_the_host(self) -> None:
        # 7240 blocks of which 5245 are the host's: a running engine with 250 in use.
        host = {"maxNumBlocks": 7240, "freeNumBlocks": 1745, "usedNumBlocks": 5495,
                "allocTotalBlocks": 250, "reusedBlocks": 0}  # fmt: skip
        engine = fed(cpp(0, kvCacheStats=host))
        assert by_signal(engine)["kv_utilization"] == 250 / 1995
        measurement = one(engine, "kv_utilization")
        assert (measurement.method, measurement.note) == (  # type: ignore[union-attr]
            "trtllm_without_host_pool",
            "5245 blocks are subtracted",
        )

    def test_blocks_used_when_idle_belong_to_the_host(self) -> None:
        idle = BLOCKS | {"usedNumBlocks": 600, "freeNumBlocks": 400, "allocTotalBlocks": 9000}
        live = BLOCKS | {"usedNumBlocks": 700, "freeNumBlocks": 300, "allocTotalBlocks": 9000}
        engine = fed(
            cpp(7, kvCacheStats=live),
            cpp(8, 0.0, gen=0, numActiveRequests=0, kvCacheStats=idle),
            cpp(9, 0.0, kvCacheStats=live),
        )
        assert by_signal(engine)["kv_utilization"] == 100 / 400

    @staticmethod
    def pool(used: float, most: float = 1000, host: float = 0) -> Json:
        return {
            "primaryMaxNumBlocks": most,
            "primaryFreeNumBlocks": most - used,
            "primaryUsedNumBlocks": used,
            "secondaryMaxNumBlocks": host,
            "secondaryFreeNumBlocks": host,
            "secondaryUsedNumBlocks": 0,
        }

    @staticmethod
    def cache(engine: EngineState) -> tuple[dict[str, object], str]:
        """Return the gauges of the cache and the quality of their method."""
        reported = by_signal(engine)
        measurement = one(engine, "kv_utilization")
        assert isinstance(measurement, Measurement)
        names = ("kv_utilization", "kv_blocks_used", "kv_blocks_free", "kv_blocks_max")
        return {name: reported[name] for name in names}, METHODS[measurement.method].quality

    def test_the_second_manager_reports_pools_only(self) -> None:
        zero = dict.fromkeys(BLOCKS, 0)
        windows = {"4096": self.pool(0, most=0), "32768": self.pool(0, most=0)}
        record = pytorch(
            7,
            kvCacheStats=zero,
            kvCacheIterationStats=windows,
            kvCacheIterationStatsByPoolGroup={"0": {"poolGroupId": 0, **self.pool(620)}},
        )
        values = {
            "kv_utilization": 0.62,
            "kv_blocks_used": 620,
            "kv_blocks_free": 380,
            "kv_blocks_max": 1000,
        }
        assert self.cache(fed(record)) == (values, "exact")
        record["kvCacheIterationStats"] = {"32768": self.pool(620)}
        del record["kvCacheIterationStatsByPoolGroup"]
        assert self.cache(fed(record)) == (values, "exact")
        # With an interval the last known pools are those of an earlier iteration.
        assert self.cache(fed(record, pytorch(8, kvCacheStats=zero))) == (values, "estimate")

    def test_an_engine_with_host_offload_that_is_never_idle(self) -> None:
        """KvCacheStats counts 4,000 blocks of the host: 4,620 of 5,000 used are 620 of 1,000."""
        host = BLOCKS | {
            "maxNumBlocks": 5000, "freeNumBlocks": 380, "usedNumBlocks": 4620,
            "allocTotalBlocks": 90_000,
        }  # fmt: skip
        values, quality = self.cache(fed(pytorch(7, kvCacheStats=host)))
        assert (values["kv_utilization"], quality) == (0.924, "estimate")
        pools = {"32768": self.pool(620, host=4000)}
        reported = pytorch(7, kvCacheStats=host, kvCacheIterationStats=pools)
        values, quality = self.cache(fed(reported))
        assert (values["kv_utilization"], quality) == (0.62, "exact")
        # The size of the host's pool holds for records without pools, too.
        later = host | {"freeNumBlocks": 300, "usedNumBlocks": 4700}
        values, quality = self.cache(fed(reported, pytorch(8, kvCacheStats=later)))
        assert (values["kv_utilization"], quality) == (0.7, "exact")

    def test_an_engine_that_was_idle_without_used_blocks_has_no_host_pool(self) -> None:
        assert self.cache(fed(cpp(8)))[1] == "estimate"
        idle = BLOCKS | {"usedNumBlocks": 0, "freeNumBlocks": 1000}
        engine = fed(cpp(7, 0.0, gen=0, numActiveRequests=0, kvCacheStats=idle), cpp(8))
        assert self.cache(engine)[1] == "exact"

    def test_of_several_pools_the_fullest_counts(self) -> None:
        pools = {"0": self.pool(100), "1": self.pool(90, most=100)}
        reported = by_signal(fed(pytorch(7, kvCacheIterationStatsByPoolGroup=pools)))
        assert reported["kv_utilization"] == 0.9
        assert str(reported["kv_blocks_used"]).startswith("the KV cache has several pools")

    @pytest.mark.parametrize("bad", [{"primaryUsedNumBlocks": 1001}, {"primaryUsedNumBlocks": "x"}])
    def test_invalid_pools_are_ignored(self, bad: Json) -> None:
        pools = {"1": self.pool(500) | bad}
        assert by_signal(fed(pytorch(7, kvCacheIterationStats=pools)))["kv_utilization"] == 0.1

    def test_few_leftover_blocks_are_no_host_pool(self) -> None:
        idle = BLOCKS | {"usedNumBlocks": 3, "freeNumBlocks": 997}
        engine = fed(cpp(7, 0.0, gen=0, numActiveRequests=0, kvCacheStats=idle), cpp(8))
        assert by_signal(engine)["kv_utilization"] == 0.1


class TestGaps:
    def test_cpp_latency_is_that_of_the_batch_before(self) -> None:
        # As an engine with 16,000-token prompts wrote it: 2104 ms were the first prefill's.
        assert gaps(fed(cpp(0, 0.0, gen=0, ctx=1), cpp(1, 2104.673455, gen=1, ctx=1))) == []
        engine = fed(cpp(0, 0.0, gen=0, ctx=1), cpp(1, 2104.0, gen=1, ctx=1), cpp(2, 20.0, gen=2))
        assert gaps(engine) == [(1, 20.0)]

    def test_cpp_latency_of_nothing_is_no_gap(self) -> None:
        assert gaps(fed(cpp(1, gen=5), cpp(2, 0.0, gen=0), cpp(3, 0.0, gen=2), cpp(4, 30.0))) == [
            (2, 30.0)
        ]

    def test_pytorch_gaps_lie_between_the_ends_of_batches(self) -> None:
        assert gaps(fed(pytorch(1), pytorch(2, batch={"numGenRequests": 3}))) == [(3, 20.0)]

    def test_an_overlapped_latency_covers_two_batches(self) -> None:
        # Batch n is launched while n - 1 computes: made at 20(n - 1) ms, out at 20(n + 1) ms.
        engine = fed(*(pytorch(n, iterLatencyMS=40.0) for n in range(1, 6)))
        assert gaps(engine) == [(8, 20.0)]

    def test_the_wait_for_requests_is_no_gap(self) -> None:
        # As a server wrote it: the first iteration after 67 s of rest, latency and all.
        engine = fed(
            pytorch(1, iterLatencyMS=67526.0, numNewActiveRequests=3, batch={"numGenRequests": 0}),
            *(pytorch(n) for n in range(2, 5)),
        )
        assert gaps(engine) == [(4, 20.0)]

    def test_a_short_wait_for_requests_does_not_shorten_the_next_gap(self) -> None:
        # 10 ms of the second record's 30 ms are the wait.
        engine = fed(
            pytorch(1),
            pytorch(2, iterLatencyMS=30.0, numNewActiveRequests=3, batch={"numGenRequests": 0}),
            *(pytorch(n) for n in (3, 4)),
        )
        assert gaps(engine) == [(2, 20.0)]

    def test_a_rest_in_attention_dp_shows_in_the_time_between_records(self) -> None:
        rows = [
            pytorch(n, attentionDpRank=rank, timestamp=stamp(n * 0.02 + (10 if n > 3 else 0)),
                    iterLatencyMS=20 if n != 4 else 10_020)
            for n in range(1, 7)
            for rank in (0, 1)
        ]  # fmt: skip
        assert gaps(fed(*rows)) == [(12, 20.0)]

    @pytest.mark.parametrize("batches", [1, 3])
    @pytest.mark.parametrize("jump", [900.0, -900.0, 0.5, -0.5])
    def test_a_clock_that_is_set_makes_no_gap(self, jump: float, batches: int) -> None:
        records = [
            pytorch(n, timestamp=stamp(1800 + n * 0.02 + (jump if n > 10 else 0)),
                    iterLatencyMS=20.0 * batches, batch={"microBatchId": n % batches})
            for n in range(20)
        ]  # fmt: skip
        ((count, mean),) = gaps(fed(*records))
        assert mean == 20.0 * batches
        assert count >= 2 * (20 - 1 - 2 * batches)

    def test_lost_iterations_leave_no_gap_behind(self) -> None:
        engine = fed(*(pytorch(n) for n in (1, 2, 3, 9, 10)))
        assert gaps(engine) == [(6, 20.0)]
        engine = fed(*(cpp(n) for n in (1, 2, 3, 9, 10)))
        assert gaps(engine) == [(6, 20.0)]

    @pytest.mark.parametrize(("make", "latency"), [(cpp, 20.0), (pytorch, 40.0)])
    def test_micro_batches_take_turns(self, make: Make, latency: float) -> None:
        turns = ({"microBatchId": n % 2} for n in range(1, 9))
        records = [make(n, iterLatencyMS=latency, batch=turn) for n, turn in enumerate(turns)]
        ((_, mean),) = gaps(fed(*records))
        assert mean == 40.0

    def test_without_timestamps_the_host_step_of_the_next_record_counts(self) -> None:
        engine = fed(*(pytorch(n, timestamp="", hostStepTimeMS=19.0) for n in range(3)))
        assert gaps(engine) == [(4, 19.0)]
        engine = fed(*(pytorch(n, timestamp="", schedulerMode="non_overlap") for n in range(3)))
        assert gaps(engine) == [(6, 20.0)]

    def test_an_overlapped_latency_alone_is_refused(self) -> None:
        reported = by_signal(fed(*(pytorch(n, timestamp="") for n in range(3))))
        assert str(reported["itl"]).startswith("the records have no timestamps")

    def test_drafts_come_in_one_chunk_and_the_note_says_how_many(self) -> None:
        drafts = {"numDraftTokens": 6, "numAcceptedTokens": 3, "numRequestsWithDraftTokens": 2,
                  "acceptanceLength": 2.5}  # fmt: skip
        engine = fed(*(pytorch(n, specDecodingStats=drafts) for n in (1, 2)))
        assert gaps(engine) == [(2, 20.0)]
        reported = by_signal(engine)
        assert (reported["output_tokens"], reported["draft_tokens"]) == (10, 12)
        assert reported["accepted_draft_tokens"] == 6
        note = "speculative decoding: a gap brings 2.50 tokens on average"
        assert one(engine, "itl").note == note  # type: ignore[union-attr]
        engine = fed(cpp(1, batch={"avgNumDecodedTokensPerIter": 2.5}))
        assert by_signal(engine)["output_tokens"] == 5


class TestRanks:
    ROWS = tuple(
        pytorch(n, attentionDpRank=rank, batch={"numGenRequests": 1 + rank, "numPausedRequests": 1},
                **({"numNewActiveRequests": 1, "numCompletedRequests": 1} if rank == 0 else {}))
        for n in range(1, 4)
        for rank in (0, 1)
    )  # fmt: skip

    def test_only_the_batch_of_copied_rows_is_added_up(self) -> None:
        engine = fed(*self.ROWS)
        reported = by_signal(engine)
        assert reported["sequences_decoding"] == 3
        assert reported["kv_blocks_used"] == 100
        assert one(engine, "kv_utilization").note == "of attention-DP rank 0"  # type: ignore[union-attr]
        assert reported["memory_gpu"] == 36_000_000_000
        assert reported["kv_reused_blocks"] == 30
        assert str(reported["sequences_active"]).startswith("with attention data parallelism")
        assert gaps(engine) == [(6, 20.0)]
        assert engine.lost == engine.repeated == 0

    def test_drafts_of_copied_rows_count_once(self) -> None:
        drafts = {"numDraftTokens": 6, "numAcceptedTokens": 3, "numRequestsWithDraftTokens": 2,
                  "acceptanceLength": 2.5}  # fmt: skip
        assert by_signal(fed(*(row | {"specDecodingStats": drafts} for row in self.ROWS)))[
            "draft_tokens"
        ] == 18  # fmt: skip

    def test_rank_0_running_empty_does_not_empty_the_others(self) -> None:
        rows = [row | {"numActiveRequests": 1} for row in self.ROWS]
        assert by_signal(fed(*rows))["sequences_decoding"] == 3
        assert "may have left none of its" in str(
            by_signal(fed(*rows), age=9.0)["sequences_decoding"]
        )

    def test_ranks_that_report_themselves_are_added_up(self) -> None:
        rows = [
            row | {"rank": row["attentionDpRank"], "numCompletedRequests": 0} for row in self.ROWS
        ]
        reported = by_signal(fed(*rows))
        assert reported["sequences_active"] == 6
        assert reported["kv_blocks_max"] == 2000
        assert reported["memory_gpu"] == 72_000_000_000

    def test_a_row_that_comes_twice_counts_once(self) -> None:
        engine = fed(cpp(1), cpp(2), cpp(2), cpp(3))
        assert (engine.repeated, by_signal(engine)["output_tokens"]) == (1, 6)

    def test_invented_ranks_do_not_fill_the_memory(self) -> None:
        engine = fed(*(pytorch(1, attentionDpRank=rank) for rank in range(1000)))
        assert (len(engine.ranks), engine.refused) == (256, 744)
        engine = fed(*(cpp(n, batch={"microBatchId": n}) for n in range(1000)))
        assert engine.refused == 1000 - 64


class TestContinuity:
    @staticmethod
    def follow(numbers: Iterable[int], idle_before: Iterable[int] = ()) -> Continuity:
        continuity = Continuity()
        for number in numbers:
            continuity.follow(number, was_idle=number in idle_before)
        return continuity

    @pytest.mark.parametrize(
        ("numbers", "lost", "interval"),
        [
            pytest.param([1, 2, 3, 4], 0, 1, id="all there"),
            pytest.param([1, 2, 6, 7], 3, 1, id="three missing"),
            pytest.param([1, 4, 5, 11, 12], 7, 1, id="twice"),
            pytest.param([5, 6, 1, 2], 0, 1, id="a restart"),
            pytest.param(range(0, 100, 10), 0, 10, id="every tenth"),
            pytest.param([*range(0, 100, 10), 130, 140], 3, 10, id="every tenth, three missing"),
            pytest.param([*range(0, 100, 10), 91, 92], 0, 1, id="every tenth, then every one"),
            pytest.param([1, 3, 5, 7, 8, 9], 3, 1, id="too few to be an interval"),
            pytest.param([1, 1, 2, 2, 3, 3], 0, 1, id="numbered per micro-batch"),
            pytest.param([1, 10**12, 10**12 + 1], 0, 1, id="another engine"),
        ],
    )
    def test_loss_and_sampling(self, numbers: Iterable[int], lost: int, interval: int) -> None:
        found = self.follow(numbers)
        assert (found.lost, found.interval) == (lost, interval)

    def test_a_loop_without_a_batch_has_a_number_and_no_record(self) -> None:
        assert self.follow([1, 2, 4, 5, 9, 10], idle_before=[4, 9]).lost == 2

    def test_an_overlapped_engine_skips_a_number_when_it_runs_empty(self) -> None:
        overlap = {"schedulerMode": "overlap", "iterLatencyMS": 40.0}
        first = {"numNewActiveRequests": 3, "iterLatencyMS": 9000.0, "batch": {"numGenRequests": 0}}
        engine = fed(
            *(pytorch(n, **overlap) for n in (1, 2, 3)),
            *(pytorch(5, **{**overlap, **first}), pytorch(6, **overlap)),
        )
        assert (engine.lost, gaps(engine)) == (0, [(4, 20.0)])

    def test_sampled_records_add_up_to_nothing(self) -> None:
        engine = fed(*(pytorch(n, iterLatencyMS=20.0) for n in range(0, 200, 10)))
        reported = by_signal(engine)
        assert {reported["itl"], reported["output_tokens"], reported["input_tokens"]} == {
            "only every 10th iteration is recorded, and the counts of the others are unknown"
        }
        assert (engine.lost, reported["sequences_active"]) == (0, 3)

    @given(st.lists(st.integers(0, 60), max_size=80))
    def test_loss_is_at_most_the_missing_numbers(self, numbers: list[int]) -> None:
        missing = sum(max(0, b - a - 1) for a, b in pairwise(numbers))
        assert 0 <= self.follow(numbers).lost <= missing


class TestQueueTime:
    def test_cpp_queue_time_is_in_milliseconds(self) -> None:
        records = [
            cpp(n, numNewActiveRequests=2, newActiveRequestsQueueLatencyMS=30) for n in (1, 2)
        ]
        assert by_signal(fed(*records))["queue"] == Distribution((math.inf,), (4,), 0.06)

    def test_pytorch_queue_time_is_a_sum_of_seconds(self) -> None:
        sums = (5.0, 5.5, 5.5, 7.0)
        records = [
            pytorch(n, numNewActiveRequests=1, newActiveRequestsQueueLatencyMS=value)
            for n, value in enumerate(sums)
        ]
        assert by_signal(fed(*records))["queue"] == Distribution((math.inf,), (3,), 2.0)

    def test_pytorch_requests_that_meet_an_idle_engine_are_counted(self) -> None:
        """An idle PyTorch loop takes an iteration number and emits no record."""
        records, number, waited = [], 0, 0.0
        for _ in range(40):
            waited += 0.25
            queue = {"newActiveRequestsQueueLatencyMS": waited, "numActiveRequests": 1}
            batch = {"batch": {"numGenRequests": 0}}
            records.append(pytorch(number, numNewActiveRequests=1, **queue, **batch))
            records += [pytorch(number + 1 + n, gen=1, **queue) for n in range(3)]
            number += 5  # three decoding loops, and the idle one
        reported = by_signal(fed(*records))["queue"]
        # The first record is the baseline.
        assert reported == Distribution((math.inf,), (39,), 9.75)

    def test_pytorch_requests_of_lost_records_are_left_out_with_their_queue_time(self) -> None:
        records = [
            pytorch(n, numNewActiveRequests=1, newActiveRequestsQueueLatencyMS=float(n))
            for n in (1, 2, 3, 9, 10)
        ]
        assert by_signal(fed(*records))["queue"] == Distribution((math.inf,), (3,), 3.0)

    def test_falling_sum_is_ignored(self) -> None:
        records = [pytorch(1, newActiveRequestsQueueLatencyMS=5), pytorch(2)]
        assert str(by_signal(fed(*records))["queue"]).startswith(
            "newActiveRequestsQueueLatencyMS falls"
        )
        restarted = [pytorch(9, newActiveRequestsQueueLatencyMS=5), pytorch(1), pytorch(2)]
        assert isinstance(by_signal(fed(*restarted))["queue"], Distribution)


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([10**400, -1, "11-20-2026 12:00:00.000001", math.nan, math.inf]),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
KEYS = sorted(
    {*cpp(1), "kvCacheIterationStats", "attentionDpRank", "rank", "hostStepTimeMS", "schedulerMode"}
)
BATCH_KEYS = sorted(cpp(1)["inflightBatchingStats"])


@st.composite
def broken(draw: st.DrawFn) -> Json:
    """Return a record of either executor with some values replaced and some keys removed."""
    make = draw(st.sampled_from([cpp, pytorch]))
    record = make(draw(st.integers(0, 30)), iterLatencyMS=draw(st.floats(0, 50)))
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=4)):
        record[key] = draw(junk)
    for key in draw(st.lists(st.sampled_from(BATCH_KEYS), max_size=2)):
        if isinstance(record["inflightBatchingStats"], dict):
            record["inflightBatchingStats"][key] = draw(junk)
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=3)):
        record.pop(key, None)
    return record


@given(st.lists(broken() | junk, max_size=25), st.none() | st.floats(0, 100))
def test_any_record_is_accepted_or_refused(values: list[Any], age: float | None) -> None:
    engine = EngineState({"itl": [0.05]})
    counted: dict[tuple[str, str], float] = {}
    for value in values:
        record = read_record(value)
        if record:
            engine.add(record)
        measurements, missing = report(engine, age, 5.0, "chat", "1")
        assert sorted(one.signal for one in (*measurements, *missing)) == sorted(MAIN_SIGNALS)
        for measurement in measurements:
            (sample,) = measurement.samples.values()
            number = sample.count if isinstance(sample, Distribution) else sample
            total = sample.sum if isinstance(sample, Distribution) else 0.0
            assert 0 <= number < math.inf
            assert 0 <= total < math.inf
            if measurement.signal in ("itl", "output_tokens", "input_tokens", "queue"):
                key = (measurement.signal, measurement.method)
                assert number >= counted.get(key, 0.0)
                counted[key] = number


class TestSplitter:
    @staticmethod
    def split(body: bytes, sizes: Iterable[int]) -> tuple[list[Json], int]:
        splitter, found, position = JsonSplitter(), list[Json](), 0
        for size in sizes:
            found += splitter.feed(body[position : position + size])
            position += size
        found += splitter.feed(body[position:])
        found += splitter.end()
        return found, splitter.malformed

    @given(
        st.lists(st.dictionaries(st.text(max_size=6), junk, min_size=1, max_size=4), max_size=6),
        st.lists(st.integers(1, 40), max_size=40),
        st.sampled_from([(", ", "[", "]"), ("\n", "", "\n"), (",\n ", "[\n ", "\n]\n")]),
    )
    def test_every_object_is_found_in_any_segmentation(
        self, objects: list[Json], sizes: list[int], form: tuple[str, str, str]
    ) -> None:
        between, begin, end = form
        body = (begin + between.join(map(json.dumps, objects)) + end).encode()
        found, malformed = self.split(body, sizes)
        assert json.dumps(found) == json.dumps(objects)
        assert malformed == 0

    @given(st.integers(0, 2000), st.lists(st.integers(1, 500), max_size=8))
    def test_truncated_body_has_its_complete_objects(self, length: int, sizes: list[int]) -> None:
        objects = [cpp(n) for n in range(3)]
        body = json.dumps(objects).encode()
        ends = [len(json.dumps(objects[: n + 1])) - 1 for n in range(3)]
        found, _ = self.split(body[:length], sizes)
        assert found == objects[: sum(end <= length for end in ends)]

    @given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=10))
    def test_malformed_text_is_skipped(self, garbage: bytes, sizes: list[int]) -> None:
        found, _ = self.split(garbage, sizes)
        assert all(isinstance(value, dict) for value in found)

    def test_malformed_object_does_not_affect_others(self) -> None:
        body = b'[{"iter": 1}, {"iter": 2,, "x"}, {"iter": 3}, nonsense, {"iter": 4}]'
        for size in (1, 5, 1000):
            found, malformed = self.split(body, [size] * 200)
            assert [value["iter"] for value in found] == [1, 3, 4]
            assert malformed == 2

    def test_endless_object_is_dropped(self) -> None:
        splitter, chunk = JsonSplitter(), b'{"x": "' + b"y" * 65536
        tracemalloc.start()
        try:
            for _ in range(32 * MAX_OBJECT // 65536):
                assert list(splitter.feed(chunk)) == []
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8 * MAX_OBJECT
        assert splitter.malformed >= 1

    def test_deep_nesting_and_long_numbers_are_malformed(self) -> None:
        for bad in (b'{"a":' * 100_000, b'{"iter": ' + b"9" * 5000 + b"}"):
            found, malformed = self.split(bad + b'\n{"iter": 7}', [])
            assert (found[-1:], malformed > 0) == ([{"iter": 7}], True)


def test_timestamps_have_the_format_of_the_records() -> None:
    record = read_record(cpp(1, timestamp="04-07-2025 20:33:17.747028"))
    later = read_record(cpp(1, timestamp="04-07-2025 20:33:18.000000"))
    assert record
    assert record.timestamp
    assert later
    assert later.timestamp
    assert later.timestamp - record.timestamp == pytest.approx(0.252972, abs=1e-6)
    assert TIMESTAMP == "%m-%d-%Y %H:%M:%S.%f"
