"""Iteration records of the two executors of TensorRT-LLM, with their inaccuracies.

The C++ executor takes a record right after the launch of a batch, so its latency is that of the
previous batch (executorImpl.cpp, executionLoop); its keys are those of jsonSerialization.cpp.  The
PyTorch executor (py_executor.py) creates a record at the top of its loop, after fetching requests,
and completes it after processing the batch's results, one loop later with the overlap scheduler.
Its latency includes the wait for requests and, overlapped, a second batch.  The overlap scheduler
launches a batch before it waits for the previous one, so a record's timestamp is the start of the
previous batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Any

from lab.engine import EngineStep
from lab.engine_settings import EngineSettings
from lab.iteration_stats import IterationStats, KvCacheStats, SpecDecodingStats
from lab.trtllm_serve.settings import ServeSettings

Json = dict[str, Any]

_DEVICE_MEMORY = 40_560_164_864
"""Bytes in use on the device, by all processes, which PyTorch's executor reports."""
_DRAFT_SHARE = 0.2
"""The share of a batch's time that drafting takes."""
_KV_TOKENS = ("numCtxKvTokens", "numGenKvTokens", "numPausedKvTokens")
_ZERO_TUNING = {
    f"max{name}{kind}": 0
    for name in ("BatchSize", "NumTokens")
    for kind in ("Static", "TunerRecommended", "Runtime")
}
_ZERO_STATIC_BATCHING = dict.fromkeys(
    ("numScheduledRequests", "numContextRequests", "numCtxTokens", "numGenTokens", "emptyGenSlots"),
    0,
)
_ZERO_QUEUED = dict.fromkeys(
    (
        "numQueuedContextRequests",
        "numQueuedCtxTokens",
        "numQueuedGenRequests",
        "numQueuedGenKvTokens",
    ),
    0,
)


class TensorrtRecords:
    """Records of the C++ executor: one for every step with a batch or events."""

    def __init__(self, settings: ServeSettings, engine: EngineSettings) -> None:
        self._settings = settings
        self._tuning = {
            "maxBatchSizeStatic": engine.max_batch_size,
            "maxBatchSizeTunerRecommended": 0,
            "maxBatchSizeRuntime": engine.max_batch_size,
            "maxNumTokensStatic": engine.max_num_tokens,
            "maxNumTokensTunerRecommended": 0,
            "maxNumTokensRuntime": engine.max_num_tokens,
        }

    def of(self, _: float, step: EngineStep) -> list[Json]:
        """Return the step's records, oldest first."""
        if not step.stats:
            return []
        stats = step.stats
        batch = asdict(stats.inflightBatchingStats)
        record = {
            **_common(stats, stats.timestamp, self._tuning),
            "iter": stats.iter,
            "iterLatencyMS": stats.iterLatencyMS,
            "newActiveRequestsQueueLatencyMS": stats.newActiveRequestsQueueLatencyMS,
            "numNewActiveRequests": stats.numNewActiveRequests,
            "numQueuedRequests": stats.numQueuedRequests,
            "numCompletedRequests": stats.numCompletedRequests,
            "gpuMemUsage": stats.gpuMemUsage,
            "cpuMemUsage": stats.cpuMemUsage,
            "pinnedMemUsage": stats.pinnedMemUsage,
            "kvCacheStats": _kv_cache_stats(stats.kvCacheStats, self._settings),
            "inflightBatchingStats": {k: v for k, v in batch.items() if k not in _KV_TOKENS},
            "staticBatchingStats": None,
            "specDecodingStats": _spec_decoding_stats(
                stats.specDecodingStats, stats.seconds, stats.iterLatencyMS
            ),
        }
        return [_sorted(record)]


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop of PyTorch's executor that launched a batch; times are on the engine's clock.

    ``top`` is the start of fetching requests, ``created`` the creation of the record, ``launched``
    the launch of the batch; ``due`` is the number of the step with its results.
    """

    iteration: int
    top: float
    created: float
    launched: float
    due: int
    stats: IterationStats
    new: int
    queue_seconds: float
    device_before: float | None


class PytorchRecords:
    """Records of the PyTorch executor, complete at the step with the batch's results."""

    def __init__(self, settings: ServeSettings, engine: EngineSettings) -> None:
        self._settings = settings
        self._micro_batches = engine.micro_batches
        self._overlapped = settings.overlap and engine.micro_batches == 1
        self._loops: deque[_Loop] = deque()
        self._steps = self._iteration = 0
        self._idle_since: float | None = None
        self._previous = 0.0
        self._queue_seconds = 0.0
        self._new = self._unreported = self._completed = 0
        self._device_before: float | None = None
        self._kv = _KvDeltas(settings, engine)

    def of(self, now: float, step: EngineStep) -> list[Json]:
        """Return the records that a step completes, oldest first."""
        self._steps += 1
        self._completed += sum(event.final for event in step.events)
        records: list[Json] = []
        if self._loops and self._loops[0].due == self._steps:
            records = self._finish(self._loops.popleft(), now, step.stats)
        if step.stats:
            self._new += step.stats.numNewActiveRequests
            self._queue_seconds += step.stats.newActiveRequestsQueueLatencyMS / 1000
        if step.stats and step.stats.seconds is not None:
            self._loops.append(self._begin(now, step.stats))
        if step.seconds is not None:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        self._previous = now
        return records

    def _begin(self, now: float, stats: IterationStats) -> _Loop:
        new, self._new = self._new, 0
        idle = self._idle_since
        first = self._steps == 1 or idle is not None
        created = self._previous if self._overlapped and not first else now
        self._iteration += 1
        device_before, self._device_before = self._device_before, stats.seconds
        return _Loop(
            iteration=self._iteration,
            top=created if idle is None else idle,
            created=created,
            launched=now,
            due=self._steps + self._micro_batches,
            stats=stats,
            new=new,
            queue_seconds=self._queue_seconds,
            device_before=device_before,
        )

    def _finish(self, loop: _Loop, now: float, at_end: IterationStats | None) -> list[Json]:
        self._unreported += loop.new
        kv_cache = (at_end or loop.stats).kvCacheStats
        self._kv.add(kv_cache, loop.stats.generationBlocks)
        if loop.iteration % self._settings.iteration_interval:
            return []  # the next record includes its new and completed requests
        new, completed = self._unreported, self._completed
        self._unreported = self._completed = 0
        stats, latency = loop.stats, (now - loop.top) * 1000
        record = {
            **_common(stats, loop.created, _ZERO_TUNING),
            "iter": loop.iteration,
            "iterLatencyMS": latency,
            "newActiveRequestsQueueLatencyMS": loop.queue_seconds,
            "numNewActiveRequests": new,
            "numQueuedRequests": 0,
            "numCompletedRequests": completed,
            "gpuMemUsage": _DEVICE_MEMORY,
            "cpuMemUsage": 0,
            "pinnedMemUsage": 0,
            "kvCacheStats": _kv_cache_stats(kv_cache, self._settings),
            "inflightBatchingStats": self._batch(stats),
            "staticBatchingStats": _ZERO_STATIC_BATCHING,
            "specDecodingStats": _spec_decoding_stats(
                stats.specDecodingStats, stats.seconds, latency
            ),
        }
        if self._settings.schema == "pytorch-1.2":
            return [_sorted(record)]
        assert stats.seconds is not None  # noqa: S101 - a loop has a batch
        record |= {
            "hostStepTimeMS": ((loop.launched if self._overlapped else now) - loop.created) * 1000,
            "gpuForwardTimeMS": stats.seconds * 1000,
            "prevDeviceStepTimeMS": loop.device_before and loop.device_before * 1000,
            "schedulerMode": "overlap" if self._settings.overlap else "non_overlap",
            **self._kv.emit(loop.iteration, kv_cache),
        }
        return [_sorted(row) for row in _rows(record, self._settings.attention_dp_ranks)]

    def _batch(self, stats: IterationStats) -> Json:
        batch = asdict(stats.inflightBatchingStats) | {"avgNumDecodedTokensPerIter": 0.0}
        if self._settings.schema == "pytorch-1.2":
            kept = {key: value for key, value in batch.items() if key not in _KV_TOKENS}
            return kept | {"microBatchId": 0}
        return batch | _ZERO_QUEUED


class _KvDeltas:
    """KV-cache activity since the previous record (kvCacheIterationStats)."""

    def __init__(self, settings: ServeSettings, engine: EngineSettings) -> None:
        self._interval = settings.kv_iteration_interval
        self._host_blocks = settings.host_blocks
        self._window = str(engine.kv_blocks * engine.tokens_per_block)
        self._reported = self._latest = (0, 0, 0, 0)
        self._generation = 0

    def add(self, cache: KvCacheStats, generation_blocks: int) -> None:
        self._latest = (
            cache.allocTotalBlocks,
            cache.allocNewBlocks,
            cache.reusedBlocks,
            cache.missedBlocks,
        )
        self._generation += generation_blocks

    def emit(self, iteration: int, cache: KvCacheStats) -> Json:
        """Return ``kvCacheIterationStats``, or nothing if this iteration has none."""
        if not self._interval or iteration % self._interval:
            return {}
        pairs = zip(self._latest, self._reported, strict=True)
        total, new, reused, missed = (now - then for now, then in pairs)
        self._reported = self._latest
        generation, self._generation = self._generation, 0
        looked_up = reused + missed
        window = {
            "primaryMaxNumBlocks": cache.maxNumBlocks,
            "primaryFreeNumBlocks": cache.freeNumBlocks,
            "primaryUsedNumBlocks": cache.usedNumBlocks,
            "secondaryMaxNumBlocks": self._host_blocks,
            "secondaryFreeNumBlocks": self._host_blocks,
            "secondaryUsedNumBlocks": 0,
            "iterAllocTotalBlocks": total,
            "iterAllocNewBlocks": new,
            "iterReusedBlocks": reused,
            "iterFullReusedBlocks": reused,
            "iterPartialReusedBlocks": 0,
            "iterMissedBlocks": missed,
            "iterCacheHitRate": reused / looked_up if looked_up else 0.0,
            "iterGenAllocBlocks": generation,
            **{
                f"iter{name}{unit}": 0
                for name in ("Onboard", "Offload", "IntraDeviceCopy")
                for unit in ("Blocks", "Bytes")
            },
        }
        return {"kvCacheIterationStats": {self._window: window}}


def records(settings: ServeSettings, engine: EngineSettings) -> TensorrtRecords | PytorchRecords:
    """Return the converter from engine steps to records of the configured schema."""
    kind = TensorrtRecords if settings.schema == "tensorrt" else PytorchRecords
    return kind(settings, engine)


def _common(stats: IterationStats, time: float, tuning: Mapping[str, int]) -> Json:
    return {
        "timestamp": datetime.fromtimestamp(time).strftime("%m-%d-%Y %H:%M:%S.%f"),
        "numActiveRequests": stats.numActiveRequests,
        "maxNumActiveRequests": stats.maxNumActiveRequests,
        **tuning,
    }


def _kv_cache_stats(cache: KvCacheStats, settings: ServeSettings) -> Json:
    stats = asdict(cache)
    if settings.kv_manager_v2:
        return {**dict.fromkeys(stats, 0), "cacheHitRate": 0.0}
    # The maximum includes the host's pool, the free blocks do not; used is the difference.
    maximum = cache.maxNumBlocks + settings.host_blocks
    return stats | {"maxNumBlocks": maximum, "usedNumBlocks": maximum - cache.freeNumBlocks}


def _spec_decoding_stats(
    drafts: SpecDecodingStats | None, seconds: float | None, latency: float
) -> Json | None:
    if drafts is None:
        return None
    drafting = _DRAFT_SHARE * 1000 * seconds if seconds and drafts.numDraftTokens else 0.0
    drafting_requests = drafts.numRequestsWithDraftTokens
    tokens = drafts.numAcceptedTokens + drafting_requests
    return {
        **asdict(drafts),
        "acceptanceLength": tokens / drafting_requests if drafting_requests else 0.0,
        "iterLatencyMS": drafting,
        "draftOverhead": drafting / latency if latency else 0.0,
    }


# Attention data parallelism: every rank has a share of the requests and its own cache.


def _rows(record: Json, ranks: int) -> list[Json]:
    """Split a record into one per rank; only the first has the totals of all ranks."""
    if ranks == 1:
        return [record | {"attentionDpRank": 0}]
    batch, cache = record["inflightBatchingStats"], record["kvCacheStats"]
    even = [1] * ranks
    contexts = _parts(batch["numContextRequests"], even)
    generations = _parts(batch["numGenRequests"], even)
    paused = _parts(batch["numPausedRequests"], even)
    split = {
        "numContextRequests": contexts,
        "numGenRequests": generations,
        "numScheduledRequests": [c + g for c, g in zip(contexts, generations, strict=True)],
        "numPausedRequests": paused,
        "numCtxTokens": _parts(batch["numCtxTokens"], contexts),
        "numCtxKvTokens": _parts(batch["numCtxKvTokens"], contexts),
        "numGenKvTokens": _parts(batch["numGenKvTokens"], generations),
        "numPausedKvTokens": _parts(batch["numPausedKvTokens"], paused),
    }
    blocks = {key: _parts(value, even) for key, value in cache.items() if key not in _NOT_PER_RANK}
    drafts = record["specDecodingStats"]
    active = _parts(record["numActiveRequests"], even)
    maximum = _parts(record["maxNumActiveRequests"], even)
    rows = []
    for rank in range(ranks):
        row = record | {
            "attentionDpRank": rank,
            "numActiveRequests": active[rank],
            "maxNumActiveRequests": maximum[rank],
            "inflightBatchingStats": batch | {key: part[rank] for key, part in split.items()},
            "kvCacheStats": cache | {key: part[rank] for key, part in blocks.items()},
            "specDecodingStats": drafts
            and drafts | {key: _parts(drafts[key], generations)[rank] for key in _DRAFT_COUNTS},
        }
        if rank:
            row |= dict.fromkeys(_FIRST_RANK_ONLY, 0) | {"newActiveRequestsQueueLatencyMS": 0.0}
            row.pop("kvCacheIterationStats", None)
        rows.append(row)
    return rows


_NOT_PER_RANK = ("tokensPerBlock", "cacheHitRate")
_FIRST_RANK_ONLY = ("numQueuedRequests", "numCompletedRequests", "numNewActiveRequests")
_DRAFT_COUNTS = ("numDraftTokens", "numAcceptedTokens", "numRequestsWithDraftTokens")


def _parts(total: int, weights: Sequence[int]) -> list[int]:
    """Split an integer in proportion to weights; without any, the first part gets all."""
    whole = sum(weights)
    if not whole:
        return [total, *[0] * (len(weights) - 1)]
    bounds = [total * weight // whole for weight in accumulate(weights, initial=0)]
    return [after - before for before, after in pairwise(bounds)]


def _sorted(record: Json) -> Json:
    """Sort the keys, also nested ones, as both executors do."""
    return {
        key: _sorted(value) if isinstance(value, dict) else value
        for key, value in sorted(record.items())
    }
