"""Parse one iteration record of TensorRT-LLM's executors from untrusted JSON.

The C++ executor (jsonSerialization.cpp) and the PyTorch one (py_executor.py) share the keys but
not their meaning; :func:`dialect_of` distinguishes them.  A value that is missing, null, of another
type, negative or not finite is None here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from exporter.sources.json_numbers import amount

Dialect = Literal["cpp", "pytorch"]

MAX_POOLS = 64

TIMESTAMP = "%m-%d-%Y %H:%M:%S.%f"

_ONLY_PYTORCH = (
    "attentionDpRank",
    "schedulerMode",
    "hostStepTimeMS",
    "prevDeviceStepTimeMS",
    "gpuForwardTimeMS",
    "kvCacheIterationStats",
    "rank",
)
# PyTorch leaves all of these 0; a running C++ executor has limits and memory of its own.
_POSITIVE_IN_CPP = (
    "maxBatchSizeRuntime",
    "maxBatchSizeStatic",
    "maxNumTokensRuntime",
    "maxNumTokensStatic",
    "cpuMemUsage",
    "pinnedMemUsage",
)
_ALWAYS_POSITIVE_IN_CPP = ("maxBatchSizeRuntime", "maxNumTokensRuntime")


@dataclass(frozen=True, slots=True)
class KvCache:
    """Blocks of the KV cache; ``allocated``, ``reused`` and ``missed`` run since the start."""

    most: float | None
    free: float | None
    used: float | None
    allocated: float | None
    reused: float | None
    missed: float | None


@dataclass(frozen=True, slots=True)
class KvPool:
    """One pool of the KV cache in GPU memory, and the blocks of its pool on the host."""

    most: float
    used: float
    host: float


@dataclass(frozen=True, slots=True)
class Drafts:
    """Speculative decoding in one iteration; ``length`` is tokens per drafting sequence."""

    drafted: float
    accepted: float
    sequences: float
    length: float


@dataclass(frozen=True, slots=True)
class Record:
    """One row of iteration statistics; times are in seconds.

    ``timestamp`` is the server's local time read as UTC: only differences are meaningful.
    ``dp_rank`` is the attention-DP rank of the row, ``rank`` is given where every rank reports
    itself.  ``queue_latency`` is as the server wrote it: its unit depends on the dialect.
    """

    iteration: int
    dialect: Dialect | None
    rank: int | None
    dp_rank: int
    micro_batch: int
    timestamp: float | None
    latency: float | None
    host_step: float | None
    overlap: bool | None
    active: float | None
    queued: float | None
    completed: float | None
    new: float | None
    max_active: float | None
    queue_latency: float | None
    batching: bool
    scheduled: float | None
    contexts: float | None
    generating: float | None
    paused: float | None
    context_tokens: float | None
    decoded_per_iteration: float | None
    suspended: float | None
    kv_cache: KvCache | None
    kv_pools: tuple[KvPool, ...]
    gpu_memory: float | None
    cpu_memory: float | None
    pinned_memory: float | None
    drafts: Drafts | None


def read_record(value: object) -> Record | None:
    """Parse a JSON value; None for a value without an iteration number."""
    if not isinstance(value, dict):
        return None
    iteration = _whole(value.get("iter"))
    if iteration is None:
        return None
    batch = _mapping(value.get("inflightBatchingStats"))
    return Record(
        iteration=iteration,
        dialect=dialect_of(value),
        rank=_whole(value.get("rank")),
        dp_rank=_whole(value.get("attentionDpRank")) or 0,
        micro_batch=_whole(batch.get("microBatchId")) or 0,
        timestamp=_timestamp(value.get("timestamp")),
        latency=_milliseconds(value.get("iterLatencyMS")),
        host_step=_milliseconds(value.get("hostStepTimeMS")),
        overlap=_overlap(value.get("schedulerMode")),
        active=amount(value.get("numActiveRequests")),
        queued=amount(value.get("numQueuedRequests")),
        completed=amount(value.get("numCompletedRequests")),
        new=amount(value.get("numNewActiveRequests")),
        max_active=amount(value.get("maxNumActiveRequests")),
        queue_latency=amount(value.get("newActiveRequestsQueueLatencyMS")),
        batching=bool(batch),
        scheduled=amount(batch.get("numScheduledRequests")),
        contexts=amount(batch.get("numContextRequests")),
        generating=amount(batch.get("numGenRequests")),
        paused=amount(batch.get("numPausedRequests")),
        context_tokens=amount(batch.get("numCtxTokens")),
        decoded_per_iteration=amount(batch.get("avgNumDecodedTokensPerIter")),
        suspended=amount(value.get("iterSuspendedRequests")),
        kv_cache=_kv_cache(value.get("kvCacheStats")),
        kv_pools=_kv_pools(value),
        gpu_memory=amount(value.get("gpuMemUsage")),
        cpu_memory=amount(value.get("cpuMemUsage")),
        pinned_memory=amount(value.get("pinnedMemUsage")),
        drafts=_drafts(value.get("specDecodingStats")),
    )


def dialect_of(value: Mapping[str, object]) -> Dialect | None:
    """Detect the executor that wrote a record by its keys and values; None if ambiguous."""
    if any(key in value for key in _ONLY_PYTORCH):
        return "pytorch"
    batch = _mapping(value.get("inflightBatchingStats"))
    decoded = amount(batch.get("avgNumDecodedTokensPerIter"))
    if decoded or any(amount(value.get(key)) for key in _POSITIVE_IN_CPP):
        return "cpp"
    if any(amount(value.get(key)) == 0 for key in _ALWAYS_POSITIVE_IN_CPP):
        return "pytorch"
    return None


def _kv_cache(value: object) -> KvCache | None:
    cache = _mapping(value)
    if not cache:
        return None
    return KvCache(
        most=amount(cache.get("maxNumBlocks")),
        free=amount(cache.get("freeNumBlocks")),
        used=amount(cache.get("usedNumBlocks")),
        allocated=amount(cache.get("allocTotalBlocks")),
        reused=amount(cache.get("reusedBlocks")),
        missed=amount(cache.get("missedBlocks")),
    )


def _kv_pools(record: Mapping[str, object]) -> tuple[KvPool, ...]:
    """Return the pools in kvCacheIterationStats, empty if there are none or one is unusable.

    With the second KV-cache manager windows may share a pool and then show none; the pools are
    those of ``...ByPoolGroup``.  Without it each window has its own.
    """
    for key in ("kvCacheIterationStatsByPoolGroup", "kvCacheIterationStats"):
        found = [_kv_pool(_mapping(stats)) for stats in _mapping(record.get(key)).values()]
        pools = [pool for pool in found if pool and pool.most > 0]
        if pools:
            usable = None not in found and all(pool.used <= pool.most for pool in pools)
            return tuple(pools) if usable and len(pools) <= MAX_POOLS else ()
    return ()


def _kv_pool(stats: Mapping[str, object]) -> KvPool | None:
    most, used = amount(stats.get("primaryMaxNumBlocks")), amount(stats.get("primaryUsedNumBlocks"))
    if most is None or used is None:
        return None
    return KvPool(most, used, amount(stats.get("secondaryMaxNumBlocks")) or 0.0)


def _drafts(value: object) -> Drafts | None:
    stats = _mapping(value)
    drafted, accepted, sequences, length = (
        amount(stats.get(key))
        for key in (
            "numDraftTokens",
            "numAcceptedTokens",
            "numRequestsWithDraftTokens",
            "acceptanceLength",
        )
    )
    if drafted is None or accepted is None:
        return None
    return Drafts(drafted, accepted, sequences or 0.0, length or 0.0)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _overlap(value: object) -> bool | None:
    return None if value not in ("overlap", "non_overlap") else value == "overlap"


def _whole(value: object) -> int | None:
    number = amount(value)
    return int(number) if number is not None and number.is_integer() else None


def _milliseconds(value: object) -> float | None:
    number = amount(value)
    return None if number is None else number / 1000


def _timestamp(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        return datetime.strptime(value, TIMESTAMP).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
