"""Definitions of trtllm-serve's Prometheus metrics: name, help, buckets, value, generations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lab.trtllm_serve.perf_metrics import FinishedRequest

Json = dict[str, Any]

_LONG_BUCKETS = (
    0.3,
    0.5,
    0.8,
    1,
    1.5,
    2,
    2.5,
    5,
    10,
    15,
    20,
    30,
    40,
    50,
    60,
    120,
    240,
    480,
    960,
    1920,
    7680,
)
_TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_TPOT_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
_PREFILL_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
    *(2.5, 5, 10, 20, 40, 80, 160, 640, 2560),
)
CACHED_TOKENS_BUCKETS = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
BATCH_TOKENS_BUCKETS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)

_ALL = ("1.1", "1.3", "1.4")
_SINCE_1_3 = ("1.3", "1.4")
FULL = ("1.4",)


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """A histogram of a request's time; times of 0 and missing ones are not observed."""

    name: str
    help: str
    buckets: tuple[float, ...]
    seconds: Callable[[FinishedRequest], float | None]
    generations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IterationMetric:
    """A gauge or counter of iteration records; ``read`` returns None without a value."""

    name: str
    help: str
    read: Callable[[Json], float | None]
    generations: tuple[str, ...] = FULL


def _between(start: str, end: str) -> Callable[[FinishedRequest], float | None]:
    def seconds(request: FinishedRequest) -> float | None:
        times = (getattr(request.metrics, start), getattr(request.metrics, end))
        return None if None in times else float(times[1] - times[0])

    return seconds


def _per_token(request: FinishedRequest) -> float | None:
    decode = _between("first_token_time", "last_token_time")(request)
    tokens = request.metrics.output_tokens - 1
    return decode / tokens if decode is not None and tokens > 0 else None


def _key(*path: str) -> Callable[[Json], float | None]:
    def read(record: Json) -> float | None:
        value: Any = record
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return None if value is None else float(value)

    return read


def _batch(key: str) -> Callable[[Json], float | None]:
    return _key("inflightBatchingStats", key)


def _cache(key: str) -> Callable[[Json], float | None]:
    return _key("kvCacheStats", key)


def _drafts(key: str) -> Callable[[Json], float | None]:
    return _key("specDecodingStats", key)


def _utilization(record: Json) -> float | None:
    cache = record["kvCacheStats"]
    maximum = cache["maxNumBlocks"]
    return float(cache["usedNumBlocks"] / maximum) if maximum else None


def _occupancy(record: Json) -> float | None:
    maximum = record["maxNumActiveRequests"]
    contexts = record["inflightBatchingStats"]["numContextRequests"]
    return float(contexts / maximum) if maximum else None


def _window(key: str) -> Callable[[Json], float | None]:
    """Read a KV-cache delta since the last record, summed over all windows."""

    def read(record: Json) -> float | None:
        windows = record.get("kvCacheIterationStats")
        return sum(window[key] for window in windows.values()) if windows else None

    return read


TIMINGS = (
    RequestTiming(
        "e2e_request_latency_seconds",
        "Histogram of end to end request latency in seconds.",
        _LONG_BUCKETS,
        _between("arrival_time", "last_token_time"),
        _ALL,
    ),
    RequestTiming(
        "time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        _TTFT_BUCKETS,
        _between("arrival_time", "first_token_time"),
        _ALL,
    ),
    RequestTiming(
        "time_per_output_token_seconds",
        "Histogram of time per output token in seconds.",
        _TPOT_BUCKETS,
        _per_token,
        _ALL,
    ),
    RequestTiming(
        "request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        _LONG_BUCKETS,
        _between("arrival_time", "first_scheduled_time"),
        _ALL,
    ),
    RequestTiming(
        "request_prefill_time_seconds",
        "Histogram of prefill (context) phase duration in seconds.",
        _PREFILL_BUCKETS,
        _between("first_scheduled_time", "first_token_time"),
        FULL,
    ),
    RequestTiming(
        "request_decode_time_seconds",
        "Histogram of decode (generation) phase duration in seconds.",
        _LONG_BUCKETS,
        _between("first_token_time", "last_token_time"),
        FULL,
    ),
    RequestTiming(
        "request_inference_time_seconds",
        "Histogram of total inference duration in seconds.",
        _LONG_BUCKETS,
        _between("first_scheduled_time", "last_token_time"),
        FULL,
    ),
)

ITERATION_GAUGES = (
    IterationMetric("kv_cache_hit_rate", "KV cache hit rate", _cache("cacheHitRate"), _SINCE_1_3),
    IterationMetric("kv_cache_utilization", "KV cache utilization", _utilization, _SINCE_1_3),
    IterationMetric("num_requests_running", "Number of active requests", _key("numActiveRequests")),
    IterationMetric("num_requests_waiting", "Number of queued requests", _key("numQueuedRequests")),
    IterationMetric(
        "max_num_active_requests",
        "Maximum number of active requests",
        _key("maxNumActiveRequests"),
    ),
    IterationMetric(
        "iteration_latency_seconds",
        "Iteration latency in seconds",
        lambda record: record["iterLatencyMS"] / 1000,
    ),
    IterationMetric("gpu_memory_usage_bytes", "GPU memory usage in bytes", _key("gpuMemUsage")),
    IterationMetric("cpu_memory_usage_bytes", "CPU memory usage in bytes", _key("cpuMemUsage")),
    IterationMetric(
        "pinned_memory_usage_bytes", "Pinned memory usage in bytes", _key("pinnedMemUsage")
    ),
    IterationMetric(
        "max_batch_size_static", "Static maximum batch size", _key("maxBatchSizeStatic")
    ),
    IterationMetric(
        "max_batch_size_runtime", "Runtime maximum batch size", _key("maxBatchSizeRuntime")
    ),
    IterationMetric(
        "max_num_tokens_runtime", "Runtime maximum number of tokens", _key("maxNumTokensRuntime")
    ),
    IterationMetric(
        "kv_cache_max_blocks", "Maximum number of KV cache blocks", _cache("maxNumBlocks")
    ),
    IterationMetric(
        "kv_cache_free_blocks", "Number of free KV cache blocks", _cache("freeNumBlocks")
    ),
    IterationMetric(
        "kv_cache_used_blocks", "Number of used KV cache blocks", _cache("usedNumBlocks")
    ),
    IterationMetric(
        "kv_cache_tokens_per_block",
        "Number of tokens per KV cache block",
        _cache("tokensPerBlock"),
    ),
    IterationMetric(
        "kv_cache_iter_reuse_rate",
        "Per-iteration KV cache block reuse rate",
        _window("iterCacheHitRate"),
    ),
    IterationMetric(
        "num_context_requests",
        "Number of context (prefill) requests",
        _batch("numContextRequests"),
    ),
    IterationMetric(
        "num_generation_requests",
        "Number of generation (decode) requests",
        _batch("numGenRequests"),
    ),
    IterationMetric(
        "num_paused_requests", "Number of paused requests", _batch("numPausedRequests")
    ),
    IterationMetric(
        "num_scheduled_requests", "Number of scheduled requests", _batch("numScheduledRequests")
    ),
    IterationMetric(
        "total_context_tokens", "Total number of context tokens", _batch("numCtxTokens")
    ),
    IterationMetric(
        "avg_decoded_tokens_per_iter",
        "Average number of decoded tokens per iteration",
        _batch("avgNumDecodedTokensPerIter"),
    ),
    IterationMetric(
        "spec_decode_acceptance_length",
        "Acceptance length in speculative decoding",
        _drafts("acceptanceLength"),
    ),
    IterationMetric(
        "spec_decode_draft_overhead",
        "Draft overhead in speculative decoding",
        _drafts("draftOverhead"),
    ),
    IterationMetric(
        "prefill_batch_occupancy",
        "Fraction of max active slots occupied by context requests.",
        _occupancy,
    ),
)

ITERATION_COUNTERS = (
    IterationMetric(
        "num_requests_completed",
        "Total number of completed requests across iterations",
        _key("numCompletedRequests"),
    ),
    IterationMetric(
        "spec_decode_num_draft_tokens",
        "Total number of draft tokens in speculative decoding",
        _drafts("numDraftTokens"),
    ),
    IterationMetric(
        "spec_decode_num_accepted_tokens",
        "Total number of accepted tokens in speculative decoding",
        _drafts("numAcceptedTokens"),
    ),
    IterationMetric(
        "kv_cache_iter_reused_blocks",
        "Total reused KV cache blocks (full + partial)",
        _window("iterReusedBlocks"),
    ),
    IterationMetric(
        "kv_cache_iter_full_reused_blocks",
        "Total fully reused KV cache blocks",
        _window("iterFullReusedBlocks"),
    ),
    IterationMetric(
        "kv_cache_iter_missed_blocks",
        "Total missed KV cache blocks (context phase)",
        _window("iterMissedBlocks"),
    ),
    IterationMetric(
        "kv_cache_gen_alloc_blocks",
        "Total blocks allocated during generation phase",
        _window("iterGenAllocBlocks"),
    ),
)

CUMULATIVE_COUNTERS = (
    IterationMetric(
        "kv_cache_reused_blocks",
        "Cumulative number of KV cache blocks reused (cache hits)",
        _cache("reusedBlocks"),
    ),
    IterationMetric(
        "kv_cache_missed_blocks",
        "Cumulative number of KV cache blocks missed (cache misses)",
        _cache("missedBlocks"),
    ),
)
"""Counters whose values in a record are cumulative since the start of the engine."""

TOKEN_COUNTERS = {
    "prompt_tokens": ("Cumulative number of prompt (input) tokens processed.", "prompt_tokens"),
    "generation_tokens": (
        "Cumulative number of generation (output) tokens produced.",
        "output_tokens",
    ),
    "prompt_cached_tokens": (
        "Process-lifetime total prompt tokens served from KV cache.",
        "cached_tokens",
    ),
}
