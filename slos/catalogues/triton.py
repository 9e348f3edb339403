"""Catalogues of Triton Inference Server: core, TensorRT-LLM backend, vLLM backend.

Names, types and labels: Triton core, ``metrics.cc``, ``metric_model_reporter.cc``;
``custom_metrics_reporter.cc`` of the TensorRT-LLM backend; ``utils/metrics.py`` of the vLLM
backend.  The first release of a metric is the first release branch with its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from promql.lint.catalogue import Catalogue, Metric, Spelling, Unit

Release = tuple[int, int]

FIRST, LAST = (23, 4), (26, 9)
"""The releases whose names are known, as year and month."""

PREFIXES = (
    "nv_cache_", "nv_cpu_", "nv_energy_", "nv_gpu_", "nv_inference_", "nv_llm_", "nv_model_",
    "nv_pinned_", "nv_trt_llm_", "vllm:",
)  # fmt: skip
_MODEL = frozenset({"model", "version", "namespace", "gpu_uuid"})
_PER_MODEL = frozenset({"model", "version"})
_WHOLE: Spelling = "1"  # prometheus-cpp writes whole numbers without a point

_HIDDEN_QUEUE = (
    "the backend hands every request on to its engine at once, so this sees milliseconds while "
    "requests wait inside the engine"
)


def _counters(*names: str, unit: Unit = "", caution: str = "") -> Iterable[Metric]:
    return (Metric(name, "counter", _MODEL, unit=unit, caution=caution) for name in names)


def _core(release: Release) -> Iterable[Metric]:
    yield from _counters(
        "nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count",
        "nv_cache_num_hits_per_model", "nv_cache_num_misses_per_model",
    )  # fmt: skip
    yield from _counters(
        "nv_inference_request_duration_us", "nv_inference_queue_duration_us",
        "nv_inference_compute_input_duration_us", "nv_inference_compute_infer_duration_us",
        "nv_inference_compute_output_duration_us", "nv_cache_hit_duration_per_model",
        "nv_cache_miss_duration_per_model",
        unit="us",
    )  # fmt: skip
    reasons = frozenset({"REJECTED", "CANCELED", "BACKEND", "OTHER"})
    if release >= (24, 7):
        yield Metric(
            "nv_inference_request_failure", "counter", _MODEL | {"reason"}, {"reason": reasons}
        )
    else:
        yield Metric("nv_inference_request_failure", "counter", _MODEL)
    for stage in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
        yield _summary(f"nv_inference_{stage}_summary_us")
    yield _summary("nv_cache_hit_summary_per_model")
    yield _summary("nv_cache_miss_summary_per_model")
    if release >= (23, 9):
        yield Metric("nv_inference_pending_request_count", "gauge", _MODEL)
    if release >= (24, 11):
        yield Metric("nv_model_load_duration_secs", "gauge", _MODEL, unit="s")
        yield Metric(
            "nv_inference_first_response_histogram_ms",
            "histogram",
            _MODEL | {"le"},
            unit="ms",
            boundaries=(100, 500, 2000, 5000),
            boundaries_from="histogram_options of the model's config.pbtxt",
            whole_boundaries=_WHOLE,
        )
    # Gauges by type, although they count; their rate makes sense.
    for what in ("hits", "misses", "lookups", "evictions"):
        yield Metric(f"nv_cache_num_{what}", "untyped")
    yield Metric("nv_cache_lookup_duration", "untyped", unit="us")
    yield Metric("nv_cache_insertion_duration", "untyped", unit="us")
    yield Metric("nv_cache_num_entries", "gauge")
    yield Metric("nv_cache_util", "gauge", unit="ratio")
    if release >= (24, 1):
        yield Metric("nv_pinned_memory_pool_total_bytes", "gauge", unit="bytes")
        yield Metric("nv_pinned_memory_pool_used_bytes", "gauge", unit="bytes")
    gpu = frozenset({"gpu_uuid"})
    yield Metric("nv_gpu_utilization", "gauge", gpu, unit="ratio")
    yield Metric("nv_gpu_memory_total_bytes", "gauge", gpu, unit="bytes")
    yield Metric("nv_gpu_memory_used_bytes", "gauge", gpu, unit="bytes")
    yield Metric("nv_gpu_power_usage", "gauge", gpu)
    yield Metric("nv_gpu_power_limit", "gauge", gpu)
    yield Metric("nv_energy_consumption", "counter", gpu)
    yield Metric("nv_cpu_utilization", "gauge", unit="ratio")
    yield Metric("nv_cpu_memory_total_bytes", "gauge", unit="bytes")
    yield Metric("nv_cpu_memory_used_bytes", "gauge", unit="bytes")


def _summary(name: str) -> Metric:
    return Metric(name, "summary", _MODEL | {"quantile"}, kinds="quantile", unit="us")


def _by_kind(
    name: str, label: str, kinds: Iterable[str], growing: Iterable[str] = (), unit: Unit = ""
) -> Metric:
    values = frozenset(kinds)
    labels = _PER_MODEL | {label}
    return Metric(name, "gauge", labels, {label: values}, label, frozenset(growing), unit=unit)


def _tensorrt_llm(release: Release) -> Iterable[Metric]:
    """Yield the metrics of the C++ backend; the Python backend has some of them."""
    if release < (23, 11):
        return
    late = release >= (25, 4)
    requests = ["active", "max", "scheduled", "context", *(["waiting"] if late else [])]
    yield _by_kind("nv_trt_llm_request_metrics", "request_type", requests)
    memory = _by_kind(
        "nv_trt_llm_runtime_memory_metrics", "memory_type", ("cpu", "gpu", "pinned"), unit="bytes"
    )
    yield replace(memory, kinds="")  # bytes of each: their sum is a total
    blocks = ["max", "free", "used", "tokens_per"]
    blocks += ["reused"] * (release >= (24, 10)) + ["fraction"] * late
    kv_cache = _by_kind(
        "nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", blocks, ("reused",)
    )
    yield replace(kv_cache, ratios=frozenset({"fraction"}))
    batching = ["total_context_tokens", "generation_requests", "micro_batch_id"]
    batching += ["paused_requests"] * (release >= (24, 4))
    yield _by_kind(
        "nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric", batching
    )
    static = ("total_context_tokens", "total_generation_tokens", "empty_generation_slots")
    yield _by_kind("nv_trt_llm_v1_metrics", "v1_specific_metric", static)
    general = ("timestamp", "iteration_counter")
    yield _by_kind("nv_trt_llm_general_metrics", "general_type", general, general)
    if release >= (24, 11):  # TensorRT-LLM 0.15
        transfers = _by_kind(
            "nv_trt_llm_disaggregated_serving_metrics",
            "disaggregated_serving_type",
            ("kv_cache_transfer_ms", "request_count"),
        )
        yield replace(transfers, kind="counter")
    if release < (25, 2):
        return
    for direction in ("input", "output"):
        yield Metric(
            f"nv_llm_{direction}_token_len",
            "histogram",
            _PER_MODEL | {"response_metric_type", "le"},
            {"response_metric_type": frozenset({f"total_{direction}_tokens"})},
            boundaries=(10, 50, 100, 500, 1000),
            whole_boundaries=_WHOLE,
        )


_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_TOKEN_GAP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_REQUEST = (1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)


def _vllm(release: Release) -> Iterable[Metric]:
    if release < (24, 8):
        return
    for counter in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total"):
        yield Metric(counter, "counter", _PER_MODEL)
    seconds = {
        "vllm:time_to_first_token_seconds": _FIRST_TOKEN,
        "vllm:time_per_output_token_seconds": _TOKEN_GAP,
        **({"vllm:e2e_request_latency_seconds": _REQUEST} if release >= (24, 9) else {}),
    }
    for name, boundaries in seconds.items():
        yield Metric(
            name,
            "histogram",
            _PER_MODEL | {"le"},
            unit="s",
            boundaries=boundaries,
            whole_boundaries=_WHOLE,
        )
    if release < (24, 9):
        return
    of_requests = ["prompt_tokens", "generation_tokens", "params_n"]
    of_requests += ["params_best_of"] * (release <= (24, 12))
    for what in of_requests:
        yield Metric(
            f"vllm:request_{what}", "histogram", _PER_MODEL | {"le"}, whole_boundaries=_WHOLE
        )


def triton(release: Release) -> Catalogue:
    """Return the metrics of a release with the C++ TensorRT-LLM or the vLLM backend."""
    metrics = (*_core(release), *_tensorrt_llm(release), *_vllm(release))
    return _catalogue(f"Triton {_text(release)}", metrics)


def triton_llmapi(release: Release) -> Catalogue:
    """Return the metrics of a release with TensorRT-LLM's LLM API model: those of the core only."""
    insensitive = ("nv_inference_queue_duration_us", "nv_inference_pending_request_count")
    metrics = (
        replace(metric, caution=_HIDDEN_QUEUE) if metric.name in insensitive else metric
        for metric in _core(release)
    )
    return _catalogue(f"Triton {_text(release)} with the LLM API model", metrics)


def _catalogue(title: str, metrics: Iterable[Metric]) -> Catalogue:
    return Catalogue(title, {metric.name: metric for metric in metrics}, PREFIXES)


def _text(release: Release) -> str:
    return f"{release[0]}.{release[1]:02}"
