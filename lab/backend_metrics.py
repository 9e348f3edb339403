"""The metrics of TensorRT-LLM's Triton backends, updated from iteration statistics.

Names, labels, kinds and units are those of the C++ backend (tensorrtllm_backend,
custom_metrics_reporter.cc) and of the Python backend up to 25.03 (inflight_batcher_llm,
1/model.py).  Both set every gauge from each record in turn, so only the last iteration between two
refreshes is visible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lab.iteration_stats import IterationStats

Publish = Literal["cpp", "python", "none"]

_TOKEN_BUCKETS = [10.0, 50.0, 100.0, 500.0, 1000.0]


@dataclass(frozen=True, slots=True)
class _Gauge:
    """One value of the family's label; ``only`` names the backend, if a single one has it."""

    value: str
    read: Callable[[IterationStats], float]
    only: Publish | None = None


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    help: str
    label: str
    gauges: tuple[_Gauge, ...]


_FAMILIES = (
    _Family(
        "nv_trt_llm_request_metrics",
        "Requests in the executor at its last iteration",
        "request_type",
        (
            _Gauge("active", lambda s: s.numActiveRequests),
            _Gauge("max", lambda s: s.maxNumActiveRequests),
            _Gauge("scheduled", lambda s: s.inflightBatchingStats.numScheduledRequests),
            _Gauge("context", lambda s: s.inflightBatchingStats.numContextRequests),
            _Gauge(
                "waiting",
                lambda s: s.numActiveRequests - s.inflightBatchingStats.numScheduledRequests,
                only="cpp",
            ),
        ),
    ),
    _Family(
        "nv_trt_llm_runtime_memory_metrics",
        "Memory allocated by the executor, in bytes",
        "memory_type",
        (
            _Gauge("cpu", lambda s: s.cpuMemUsage),
            _Gauge("gpu", lambda s: s.gpuMemUsage),
            _Gauge("pinned", lambda s: s.pinnedMemUsage),
        ),
    ),
    _Family(
        "nv_trt_llm_kv_cache_block_metrics",
        "Blocks of the paged KV cache at the last iteration",
        "kv_cache_block_type",
        (
            _Gauge("max", lambda s: s.kvCacheStats.maxNumBlocks),
            _Gauge("free", lambda s: s.kvCacheStats.freeNumBlocks),
            _Gauge("used", lambda s: s.kvCacheStats.usedNumBlocks),
            _Gauge("tokens_per", lambda s: s.kvCacheStats.tokensPerBlock),
            _Gauge("reused", lambda s: s.kvCacheStats.reusedBlocks, only="cpp"),
            _Gauge(
                "fraction",
                lambda s: s.kvCacheStats.usedNumBlocks / s.kvCacheStats.maxNumBlocks,
                only="cpp",
            ),
        ),
    ),
    _Family(
        "nv_trt_llm_inflight_batcher_metrics",
        "The batch of the last iteration",
        "inflight_batcher_specific_metric",
        (
            _Gauge("total_context_tokens", lambda s: s.inflightBatchingStats.numCtxTokens),
            _Gauge("generation_requests", lambda s: s.inflightBatchingStats.numGenRequests),
            _Gauge("micro_batch_id", lambda s: s.inflightBatchingStats.microBatchId),
            _Gauge("paused_requests", lambda s: s.inflightBatchingStats.numPausedRequests),
        ),
    ),
    _Family(
        "nv_trt_llm_general_metrics",
        "The last iteration: its number and its time",
        "general_type",
        (
            _Gauge("timestamp", lambda s: int(s.timestamp * 1e6), only="cpp"),
            _Gauge("timestamp", lambda s: int(s.timestamp), only="python"),
            _Gauge("iteration_counter", lambda s: s.iter),
        ),
    ),
)


class BackendMetrics:
    """The metric families of one backend for one model; all gauges are 0 until the first record.

    ``metric_family`` is the Python backend's ``MetricFamily`` class, which is usable from a model's
    ``initialize`` on.  With ``publish="none"`` there are no metrics, as in the LLM API model.
    """

    def __init__(self, metric_family: Any, model: str, version: str, publish: Publish) -> None:
        self._api = metric_family
        self._labels = {"model": model, "version": version}
        self._families: list[Any] = []  # Triton removes a family without a reference
        self._gauges: list[tuple[Any, Callable[[IterationStats], float]]] = []
        self._lengths: list[Any] = []
        if publish == "none":
            return
        for family in _FAMILIES:
            created = self._family(family.name, family.help, self._api.GAUGE)
            for gauge in family.gauges:
                if gauge.only in {None, publish}:
                    labels = {**self._labels, family.label: gauge.value}
                    self._gauges.append((created.Metric(labels=labels), gauge.read))
        if publish == "cpp":
            self._transfers = self._disaggregated()
        self._lengths = [
            self._length("nv_llm_input_token_len", "total_input_tokens"),
            self._length("nv_llm_output_token_len", "total_output_tokens"),
        ]

    def iteration(self, stats: IterationStats) -> None:
        """Set every gauge from one record."""
        for metric, read in self._gauges:
            metric.set(read(stats))

    def request(self, *tokens: int) -> None:
        """Observe the input tokens and output tokens of an ended request."""
        for metric, count in zip(self._lengths, tokens, strict=False):
            metric.observe(count)

    def _family(self, name: str, text: str, kind: Any) -> Any:
        self._families.append(self._api(name=name, description=text, kind=kind))
        return self._families[-1]

    def _disaggregated(self) -> list[Any]:
        """Return counters that stay 0 if prefill and decode share a server."""
        name, text = "nv_trt_llm_disaggregated_serving_metrics", "KV-cache transfers"
        family = self._family(name, text, self._api.COUNTER)
        return [
            family.Metric(labels={**self._labels, "disaggregated_serving_type": value})
            for value in ("kv_cache_transfer_ms", "request_count")
        ]

    def _length(self, name: str, value: str) -> Any:
        family = self._family(name, "Tokens per finished request", self._api.HISTOGRAM)
        labels = {**self._labels, "response_metric_type": value}
        return family.Metric(labels=labels, buckets=_TOKEN_BUCKETS)
