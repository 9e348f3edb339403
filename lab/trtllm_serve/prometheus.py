"""The metrics at /prometheus/metrics, under the names of each generation.

prometheus_client runs in its multiprocess mode, as in trtllm-serve: PROMETHEUS_MULTIPROC_DIR must
be set before this module is imported.  Hence the pid label of every gauge, the absence of
``_created`` series, and the gauges of dead processes that remain in the exposition.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector

from lab.engine_settings import EngineSettings
from lab.trtllm_serve.metric_definitions import (
    BATCH_TOKENS_BUCKETS,
    CACHED_TOKENS_BUCKETS,
    CUMULATIVE_COUNTERS,
    FULL,
    ITERATION_COUNTERS,
    ITERATION_GAUGES,
    TIMINGS,
    TOKEN_COUNTERS,
)
from lab.trtllm_serve.perf_metrics import FinishedRequest
from lab.trtllm_serve.settings import ServeSettings

Json = dict[str, Any]


class Exposition:
    """The metrics of one server; a process can have only one."""

    def __init__(self, settings: ServeSettings, engine: EngineSettings) -> None:
        self._generation = settings.prometheus
        old = self._generation == "1.1"
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
            for timing in TIMINGS
            if self._generation in timing.generations
        ]
        self._gauges = [
            (value.read, self._gauge(value.name, value.help))
            for value in ITERATION_GAUGES
            if self._generation in value.generations
        ]
        self._full = self._generation in FULL
        if self._full:
            self._add_full(settings, engine)

    def request(self, request: FinishedRequest) -> None:
        """Record an ended request."""
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
        """Update the metrics from an iteration record."""
        for read, gauge in self._gauges:
            if (value := read(record)) is not None:
                gauge.labels(**self._labels).set(value)
        if not self._full:
            return
        for read, counter in self._counters:
            self._add(counter, read(record))
        for number, (read, counter) in enumerate(self._running):
            now = read(record) or 0
            self._add(counter, max(0, now - self._previous[number]))
            self._previous[number] = now
        if tokens := record["inflightBatchingStats"]["numCtxTokens"]:
            self._batch_tokens.labels(**self._labels).observe(tokens)

    def rejected(self, code: int) -> None:
        """Count a rejected request by HTTP status."""
        if self._full:
            self._errors.labels(**self._labels, http_code=str(code)).inc()

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the exposition in the format of the Accept header, and its content type."""
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    def _add_full(self, settings: ServeSettings, engine: EngineSettings) -> None:
        self._counters = [(v.read, self._counter(v.name, v.help)) for v in ITERATION_COUNTERS]
        self._running = [(v.read, self._counter(v.name, v.help)) for v in CUMULATIVE_COUNTERS]
        self._previous = [0.0] * len(self._running)
        self._tokens = [
            (self._counter(name, text), field) for name, (text, field) in TOKEN_COUNTERS.items()
        ]
        self._cached_per_request = self._histogram(
            "prompt_cached_tokens_per_request",
            "Histogram of cached prompt tokens per request.",
            CACHED_TOKENS_BUCKETS,
        )
        self._batch_tokens = self._histogram(
            "prefill_batch_tokens",
            "Histogram of total context tokens per iteration.",
            BATCH_TOKENS_BUCKETS,
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
        """Increment a counter; its series appears with the first increment."""
        if value:
            counter.labels(**self._labels).inc(value)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(self._prefix + name, text, [*self._labels, *labels], registry=None)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(self._prefix + name, text, [*self._labels, *labels], registry=None)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        labels = list(self._labels)
        return Histogram(self._prefix + name, text, labels, buckets=buckets, registry=None)


def simulate_dead_worker(
    settings: ServeSettings, engine: EngineSettings, records: list[Json]
) -> None:
    """Write records from a child process that exits; call it before starting threads."""
    child = os.fork()
    if not child:
        worker = Exposition(settings, engine)
        for record in records:
            worker.iteration(record)
        os._exit(0)
    os.waitpid(child, 0)
