"""One iteration record, as TensorRT-LLM's executors write it in JSON, read with distrust.

The C++ executor (jsonSerialization.cpp) and the PyTorch one (py_executor.py) share the keys but not
what they mean; :func:`dialect_of` tells them apart.  A value that is missing, null, of another
type, negative or not finite is None here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Literal

Dialect = Literal["cpp", "pytorch"]

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
class Drafts:
    """Speculative decoding in one iteration; ``length`` is tokens per drafting sequence."""

    drafted: float
    accepted: float
    sequences: float
    length: float


@dataclass(frozen=True, slots=True)
class Record:
    """One row of iteration statistics; times are in seconds.

    ``timestamp`` is the server's local time read as if it were UTC: only differences mean anything.
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
    gpu_memory: float | None
    cpu_memory: float | None
    pinned_memory: float | None
    drafts: Drafts | None


def read_record(value: object) -> Record | None:
    """Return the record in a JSON value, or None if it is none: a record has an iteration."""
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
        active=_number(value.get("numActiveRequests")),
        queued=_number(value.get("numQueuedRequests")),
        completed=_number(value.get("numCompletedRequests")),
        new=_number(value.get("numNewActiveRequests")),
        max_active=_number(value.get("maxNumActiveRequests")),
        queue_latency=_number(value.get("newActiveRequestsQueueLatencyMS")),
        batching=bool(batch),
        scheduled=_number(batch.get("numScheduledRequests")),
        contexts=_number(batch.get("numContextRequests")),
        generating=_number(batch.get("numGenRequests")),
        paused=_number(batch.get("numPausedRequests")),
        context_tokens=_number(batch.get("numCtxTokens")),
        decoded_per_iteration=_number(batch.get("avgNumDecodedTokensPerIter")),
        suspended=_number(value.get("iterSuspendedRequests")),
        kv_cache=_kv_cache(value.get("kvCacheStats")),
        gpu_memory=_number(value.get("gpuMemUsage")),
        cpu_memory=_number(value.get("cpuMemUsage")),
        pinned_memory=_number(value.get("pinnedMemUsage")),
        drafts=_drafts(value.get("specDecodingStats")),
    )


def dialect_of(value: Mapping[str, object]) -> Dialect | None:
    """Tell which executor wrote a record, by its keys and values; None if nothing shows it."""
    if any(key in value for key in _ONLY_PYTORCH):
        return "pytorch"
    batch = _mapping(value.get("inflightBatchingStats"))
    decoded = _number(batch.get("avgNumDecodedTokensPerIter"))
    if decoded or any(_number(value.get(key)) for key in _POSITIVE_IN_CPP):
        return "cpp"
    if any(_number(value.get(key)) == 0 for key in _ALWAYS_POSITIVE_IN_CPP):
        return "pytorch"
    return None


def _kv_cache(value: object) -> KvCache | None:
    cache = _mapping(value)
    if not cache:
        return None
    return KvCache(
        most=_number(cache.get("maxNumBlocks")),
        free=_number(cache.get("freeNumBlocks")),
        used=_number(cache.get("usedNumBlocks")),
        allocated=_number(cache.get("allocTotalBlocks")),
        reused=_number(cache.get("reusedBlocks")),
        missed=_number(cache.get("missedBlocks")),
    )


def _drafts(value: object) -> Drafts | None:
    stats = _mapping(value)
    drafted, accepted, sequences, length = (
        _number(stats.get(key))
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


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) and number >= 0 else None


def _whole(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number.is_integer() else None


def _milliseconds(value: object) -> float | None:
    number = _number(value)
    return None if number is None else number / 1000


def _timestamp(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        return datetime.strptime(value, TIMESTAMP).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
