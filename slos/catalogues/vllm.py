"""Catalogues of vLLM 0.33 (V1 engine), with renamed metrics, and of its router.

Names, labels and buckets of vLLM are in ``data/vllm.json``.  The router is that of vLLM's
production-stack, ``src/vllm_router/services/metrics_service/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from promql.lint.catalogue import Catalogue, Metric, Rename
from slos.catalogues.stored import release_of, stored

PREFIXES = ("vllm:",)
_LABELS = frozenset({"model_name", "engine"})
_FINISHED = frozenset({"stop", "length", "abort", "error", "repetition"})

# Buckets of the core's histograms; those of connectors are fixed.
_BOUNDARIES_FROM = "custom_histogram_buckets of the server's observability config"
_FIXED_BOUNDARIES = ("hf3fs_", "hisparse_", "kv_offload_", "mooncake_", "nixl_", "rl_", "sleep_",
                "websocket_")  # fmt: skip

_RENAMED = {
    "vllm:gpu_cache_usage_perc": Rename("vllm:kv_cache_usage_perc", "0.13 renamed it"),
    "vllm:time_per_output_token_seconds": Rename(
        "vllm:inter_token_latency_seconds", "0.13 renamed it"
    ),
}


def _metric(metric: Metric) -> Metric:
    """Add facts that the declarations lack."""
    if metric.name == "vllm:request_success_total":
        return replace(metric, values={"finished_reason": _FINISHED})
    fixed = metric.name.removeprefix("vllm:").startswith(_FIXED_BOUNDARIES)
    return (
        metric
        if fixed or not metric.boundaries
        else replace(metric, boundaries_from=_BOUNDARIES_FROM)
    )


def vllm() -> Catalogue:
    """Return the metrics of vLLM."""
    known = stored("vllm")
    metrics = {name: _metric(metric) for name, metric in known.metrics.items()}
    # The kvcr_ families are named by a package of their own.
    return Catalogue(
        f"vLLM {release_of(known)}", metrics, PREFIXES, _RENAMED, vague=("vllm:kvcr_",)
    )


def vllm_before_013() -> Catalogue:
    """Return the metrics that 0.13 dropped, for older releases."""
    token = stored("vllm").metrics["vllm:inter_token_latency_seconds"].boundaries
    gap, usage = "vllm:time_per_output_token_seconds", "vllm:gpu_cache_usage_perc"
    metrics = (
        Metric(
            gap, "histogram", _LABELS | {"le"}, unit="s", boundaries=token, whole_boundaries="1.0"
        ),
        Metric(usage, "gauge", _LABELS, unit="ratio"),
    )
    return Catalogue("vLLM before 0.13", {metric.name: metric for metric in metrics}, PREFIXES)


_ROUTER_GAUGES = (
    "num_requests_running", "num_requests_waiting", "num_requests_swapped",
    "gpu_prefix_cache_hit_rate", "current_qps", "avg_decoding_length", "num_prefill_requests",
    "num_decoding_requests", "healthy_pods_total", "avg_latency", "avg_itl",
)  # fmt: skip
# Gauges by type, although they count.
_ROUTER_COUNTS = ("gpu_prefix_cache_hits_total", "gpu_prefix_cache_queries_total")
_ROUTER_COUNTERS: Mapping[str, tuple[str, ...]] = {
    "num_incoming_requests_total": ("model",),
    "input_tokens_total": ("server", "model"),
    "output_tokens_total": ("server", "model"),
    "request_errors_total": ("server", "model", "error_type"),
}


def vllm_router() -> Catalogue:
    """Return the metrics of production-stack's router under vLLM's prefix."""
    metrics = [
        Metric(
            "vllm:request_latency_seconds",
            "histogram",
            frozenset({"server", "model", "status", "le"}),
            unit="s",
            boundaries=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
            whole_boundaries="1.0",
        )
    ]
    metrics += [Metric(f"vllm:{name}", "gauge", frozenset({"server"})) for name in _ROUTER_GAUGES]
    metrics += [Metric(f"vllm:{name}", "untyped", frozenset({"server"})) for name in _ROUTER_COUNTS]
    metrics += [
        Metric(f"vllm:{name}", "counter", frozenset(labels))
        for name, labels in _ROUTER_COUNTERS.items()
    ]
    return Catalogue(
        "vLLM's router",
        {metric.name: metric for metric in metrics},
        PREFIXES,
        vague=("vllm:semantic_cache_",),
    )
