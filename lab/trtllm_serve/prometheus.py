"""The metrics at /prometheus/metrics, under the names of each generation.

prometheus_client runs in its multiprocess mode, as in trtllm-serve: PROMETHEUS_MULTIPROC_DIR must
be set before this module is imported.  Hence the pid label of every gauge, the absence of
``_created`` series, and the gauges of dead processes that never go away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector

from lab.engine import EngineSettings
from lab.trtllm_serve.perf_metrics import FinishedRequest
from lab.trtllm_serve.settings import ServeSettings

Json = dict[str, Any]

_LONG = (
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
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
_PREFILL = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
    *(2.5, 5, 10, 20, 40, 80, 160, 640, 2560),
)
_CACHED_TOKENS = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_BATCH_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)

_BASIC = ("1.1", "1.3", "1.4")
_GAUGES = ("1.3", "1.4")
_FULL = ("1.4",)


@dataclass(frozen=True, slots=True)
class _RequestTiming:
    """A histogram of a time of a request; nothing is observed where it is 0 or never came to be."""

    name: str
    help: str
    buckets: tuple[float, ...]
    seconds: Callable[[FinishedRequest], float | None]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Value:
    """A gauge or a counter fed from iteration records; None where the record does not have it."""

    name: str
    help: str
    read: Callable[[Json], float | None]
    names: tuple[str, ...] = _FULL


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
    most = cache["maxNumBlocks"]
    return float(cache["usedNumBlocks"] / most) if most else None


def _occupancy(record: Json) -> float | None:
    most = record["maxNumActiveRequests"]
    contexts = record["inflightBatchingStats"]["numContextRequests"]
    return float(contexts / most) if most else None


def _window(key: str) -> Callable[[Json], float | None]:
    """Read the activity of the KV cache since the last record, summed over all windows."""

    def read(record: Json) -> float | None:
        windows = record.get("kvCacheIterationStats")
        return sum(window[key] for window in windows.values()) if windows else None

    return read


_TIMINGS = (
    _RequestTiming(
        "e2e_request_latency_seconds",
        "Histogram of end to end request latency in seconds.",
        _LONG,
        _between("arrival_time", "last_token_time"),
        _BASIC,
    ),
    _RequestTiming(
        "time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        _FIRST_TOKEN,
        _between("arrival_time", "first_token_time"),
        _BASIC,
    ),
    _RequestTiming(
        "time_per_output_token_seconds",
        "Histogram of time per output token in seconds.",
        _PER_TOKEN,
        _per_token,
        _BASIC,
    ),
    _RequestTiming(
        "request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        _LONG,
        _between("arrival_time", "first_scheduled_time"),
        _BASIC,
    ),
    _RequestTiming(
        "request_prefill_time_seconds",
        "Histogram of prefill (context) phase duration in seconds.",
        _PREFILL,
        _between("first_scheduled_time", "first_token_time"),
        _FULL,
    ),
    _RequestTiming(
        "request_decode_time_seconds",
        "Histogram of decode (generation) phase duration in seconds.",
        _LONG,
        _between("first_token_time", "last_token_time"),
        _FULL,
    ),
    _RequestTiming(
        "request_inference_time_seconds",
        "Histogram of total inference duration in seconds.",
        _LONG,
        _between("first_scheduled_time", "last_token_time"),
        _FULL,
    ),
)

_ITERATION_GAUGES = (
    _Value("kv_cache_hit_rate", "KV cache hit rate", _cache("cacheHitRate"), _GAUGES),
    _Value("kv_cache_utilization", "KV cache utilization", _utilization, _GAUGES),
    _Value("num_requests_running", "Number of active requests", _key("numActiveRequests")),
    _Value("num_requests_waiting", "Number of queued requests", _key("numQueuedRequests")),
    _Value(
        "max_num_active_requests",
        "Maximum number of active requests",
        _key("maxNumActiveRequests"),
    ),
    _Value(
        "iteration_latency_seconds",
        "Iteration latency in seconds",
        lambda record: record["iterLatencyMS"] / 1000,
    ),
    _Value("gpu_memory_usage_bytes", "GPU memory usage in bytes", _key("gpuMemUsage")),
    _Value("cpu_memory_usage_bytes", "CPU memory usage in bytes", _key("cpuMemUsage")),
    _Value("pinned_memory_usage_bytes", "Pinned memory usage in bytes", _key("pinnedMemUsage")),
    _Value("max_batch_size_static", "Static maximum batch size", _key("maxBatchSizeStatic")),
    _Value("max_batch_size_runtime", "Runtime maximum batch size", _key("maxBatchSizeRuntime")),
    _Value(
        "max_num_tokens_runtime", "Runtime maximum number of tokens", _key("maxNumTokensRuntime")
    ),
    _Value("kv_cache_max_blocks", "Maximum number of KV cache blocks", _cache("maxNumBlocks")),
    _Value("kv_cache_free_blocks", "Number of free KV cache blocks", _cache("freeNumBlocks")),
    _Value("kv_cache_used_blocks", "Number of used KV cache blocks", _cache("usedNumBlocks")),
    _Value(
        "kv_cache_tokens_per_block",
        "Number of tokens per KV cache block",
        _cache("tokensPerBlock"),
    ),
    _Value(
        "kv_cache_iter_reuse_rate",
        "Per-iteration KV cache block reuse rate",
        _window("iterCacheHitRate"),
    ),
    _Value(
        "num_context_requests",
        "Number of context (prefill) requests",
        _batch("numContextRequests"),
    ),
    _Value(
        "num_generation_requests",
        "Number of generation (decode) requests",
        _batch("numGenRequests"),
    ),
    _Value("num_paused_requests", "Number of paused requests", _batch("numPausedRequests")),
    _Value(
        "num_scheduled_requests", "Number of scheduled requests", _batch("numScheduledRequests")
    ),
    _Value("total_context_tokens", "Total number of context tokens", _batch("numCtxTokens")),
    _Value(
        "avg_decoded_tokens_per_iter",
        "Average number of decoded tokens per iteration",
        _batch("avgNumDecodedTokensPerIter"),
    ),
    _Value(
        "spec_decode_acceptance_length",
        "Acceptance length in speculative decoding",
        _drafts("acceptanceLength"),
    ),
    _Value(
        "spec_decode_draft_overhead",
        "Draft overhead in speculative decoding",
        _drafts("draftOverhead"),
    ),
    _Value(
        "prefill_batch_occupancy",
        "Fraction of max active slots occupied by context requests.",
        _occupancy,
    ),
)

_ITERATION_COUNTERS = (
    _Value(
        "num_requests_completed",
        "Total number of completed requests across iterations",
        _key("numCompletedRequests"),
    ),
    _Value(
        "spec_decode_num_draft_tokens",
        "Total number of draft tokens in speculative decoding",
        _drafts("numDraftTokens"),
    ),
    _Value(
        "spec_decode_num_accepted_tokens",
        "Total number of accepted tokens in speculative decoding",
        _drafts("numAcceptedTokens"),
    ),
    _Value(
        "kv_cache_iter_reused_blocks",
        "Total reused KV cache blocks (full + partial)",
        _window("iterReusedBlocks"),
    ),
    _Value(
        "kv_cache_iter_full_reused_blocks",
        "Total fully reused KV cache blocks",
        _window("iterFullReusedBlocks"),
    ),
    _Value(
        "kv_cache_iter_missed_blocks",
        "Total missed KV cache blocks (context phase)",
        _window("iterMissedBlocks"),
    ),
    _Value(
        "kv_cache_gen_alloc_blocks",
        "Total blocks allocated during generation phase",
        _window("iterGenAllocBlocks"),
    ),
)

_RUNNING_COUNTERS = (
    _Value(
        "kv_cache_reused_blocks",
        "Cumulative number of KV cache blocks reused (cache hits)",
        _cache("reusedBlocks"),
    ),
    _Value(
        "kv_cache_missed_blocks",
        "Cumulative number of KV cache blocks missed (cache misses)",
        _cache("missedBlocks"),
    ),
)
"""Their values in a record run since the start of the engine."""

_TOKEN_COUNTERS = {
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


class Exposition:
    """The metrics of one server; only one of them can be in a process."""

    def __init__(self, settings: ServeSettings, engine: EngineSettings) -> None:
        self._names = settings.prometheus
        old = self._names == "1.1"
        self._prefix = "" if old else "trtllm_"
        self._labels = {
            "model_name": "undefined" if old else settings.model,
            "engine_type": "undefined" if old else settings.engine_type,
        }
        self._success = self._counter(
            "request_success", "Count of successfully processed requests.", "finished_reason"
        )
        self._timings = [
            (timing.seconds, self._histogram(timing.name, timing.help, timing.buckets))
            for timing in _TIMINGS
            if self._names in timing.names
        ]
        self._gauges = [
            (value.read, self._gauge(value.name, value.help))
            for value in _ITERATION_GAUGES
            if self._names in value.names
        ]
        self._full = self._names in _FULL
        if self._full:
            self._make_full(settings, engine)

    def request(self, request: FinishedRequest) -> None:
        """Count a request that has ended."""
        self._success.labels(**self._labels, finished_reason=request.reason).inc()
        for seconds, histogram in self._timings:
            if (value := seconds(request)) is not None and value > 0:
                histogram.labels(**self._labels).observe(value)
        if self._full:
            for counter, field in self._tokens:
                self._add(counter, getattr(request.metrics, field))
            cached = request.metrics.cached_tokens
            self._cached_per_request.labels(**self._labels).observe(cached)

    def iteration(self, record: Json) -> None:
        """Show an iteration record."""
        for read, gauge in self._gauges:
            if (value := read(record)) is not None:
                gauge.labels(**self._labels).set(value)
        if not self._full:
            return
        for read, counter in self._counters:
            self._add(counter, read(record))
        for number, (read, counter) in enumerate(self._running):
            now = read(record) or 0
            self._add(counter, max(0, now - self._before[number]))
            self._before[number] = now
        if tokens := record["inflightBatchingStats"]["numCtxTokens"]:
            self._batch_tokens.labels(**self._labels).observe(tokens)

    def refused(self, code: int) -> None:
        """Count a request that was refused."""
        if self._full:
            self._errors.labels(**self._labels, http_code=str(code)).inc()

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the exposition in the format that a client accepts, and its content type."""
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    def _make_full(self, settings: ServeSettings, engine: EngineSettings) -> None:
        self._counters = [(v.read, self._counter(v.name, v.help)) for v in _ITERATION_COUNTERS]
        self._running = [(v.read, self._counter(v.name, v.help)) for v in _RUNNING_COUNTERS]
        self._before = [0.0] * len(self._running)
        self._tokens = [
            (self._counter(name, text), field) for name, (text, field) in _TOKEN_COUNTERS.items()
        ]
        self._cached_per_request = self._histogram(
            "prompt_cached_tokens_per_request",
            "Histogram of cached prompt tokens per request.",
            _CACHED_TOKENS,
        )
        self._batch_tokens = self._histogram(
            "prefill_batch_tokens",
            "Histogram of total context tokens per iteration.",
            _BATCH_TOKENS,
        )
        self._errors = self._counter(
            "request_error", "Total request errors, labeled by HTTP status code.", "http_code"
        )
        length = engine.kv_blocks * engine.tokens_per_block
        self._info(
            "model_config_info",
            "Model configuration info",
            {
                "model": settings.model,
                "served_model_name": settings.model,
                "dtype": "auto",
                "quantization": "none",
                "max_model_len": str(length),
                "gpu_type": "none",
            },
        )
        self._info(
            "parallel_config_info",
            "Parallelism configuration info",
            {
                "tensor_parallel_size": str(settings.attention_dp_ranks),
                "pipeline_parallel_size": str(engine.micro_batches),
                "context_parallel_size": "1",
                "gpu_count": str(settings.attention_dp_ranks * engine.micro_batches),
            },
        )
        self._info(
            "kv_cache_config_info",
            "KV cache configuration info",
            {
                "cache_dtype": "auto",
                "enable_block_reuse": "True",
                "enable_partial_reuse": "True",
                "free_gpu_memory_fraction": "0.9",
            },
        )

    def _info(self, name: str, text: str, labels: Mapping[str, str]) -> None:
        gauge = self._gauge(name, text, *labels)
        gauge.labels(**self._labels, **labels).set(1)

    def _add(self, counter: Counter, value: float | None) -> None:
        """Series appear with their first increment."""
        if value:
            counter.labels(**self._labels).inc(value)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(self._prefix + name, text, [*self._labels, *labels], registry=None)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(self._prefix + name, text, [*self._labels, *labels], registry=None)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        labels = list(self._labels)
        return Histogram(self._prefix + name, text, labels, buckets=buckets, registry=None)


def leave_worker_behind(
    settings: ServeSettings, engine: EngineSettings, records: list[Json]
) -> None:
    """Have another process show records and end; to be called before there are any threads."""
    child = os.fork()
    if not child:
        worker = Exposition(settings, engine)
        for record in records:
            worker.iteration(record)
        os._exit(0)
    os.waitpid(child, 0)
