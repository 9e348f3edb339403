"""vLLM 0.33 (V1 engine), what became of the names of older releases, and the router before it.

Names, labels and buckets: vLLM, ``vllm/v1/metrics/loggers.py``; of the router, vLLM's
production-stack, ``src/vllm_router/services/metrics_service/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from promql.lint.catalogue import Catalogue, Metric, Rename, unit_of
from slos.signals import FIRST_TOKEN_BUCKETS, REQUEST_BUCKETS

PREFIXES = ("vllm:",)
_LABELS = frozenset({"model_name", "engine"})
_FINISHED = frozenset({"stop", "length", "abort", "error", "repetition"})

_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_HISTOGRAMS: Mapping[str, tuple[float, ...]] = {
    "time_to_first_token_seconds": FIRST_TOKEN_BUCKETS,
    "inter_token_latency_seconds": _TOKEN,
    "request_time_per_output_token_seconds": _TOKEN,
    **dict.fromkeys(
        (
            "e2e_request_latency_seconds", "request_queue_time_seconds",
            "request_inference_time_seconds", "request_prefill_time_seconds",
            "request_decode_time_seconds",
        ),
        REQUEST_BUCKETS,
    ),
    **dict.fromkeys(
        (
            "request_prompt_tokens", "request_generation_tokens",
            "request_max_num_generation_tokens", "request_params_max_tokens", "request_params_n",
            "request_num_preemptions", "request_prefill_kv_computed_tokens",
            "iteration_tokens_total",
        ),
        (),
    ),
}  # fmt: skip
_COUNTERS: Mapping[str, tuple[str, ...]] = {
    "num_preemptions": (),
    "prompt_tokens": (),
    "prompt_tokens_by_source": ("source",),
    "prompt_tokens_cached": (),
    "prompt_tokens_cached_by_source": ("source",),
    "generation_tokens": (),
    "prefix_cache_queries": (),
    "prefix_cache_hits": (),
    "external_prefix_cache_queries": (),
    "external_prefix_cache_hits": (),
    "mm_cache_queries": (),
    "mm_cache_hits": (),
    "admission_rejections": ("reason",),
    "corrupted_requests": (),
    "spec_decode_num_drafts": (),
    "spec_decode_num_draft_tokens": (),
    "spec_decode_num_accepted_tokens": (),
    "spec_decode_num_accepted_tokens_per_pos": ("position",),
}
_GAUGES: Mapping[str, tuple[str, ...]] = {
    "num_requests_running": (),
    "num_requests_waiting": (),
    "num_requests_waiting_by_reason": ("reason",),
    "engine_sleep_state": ("sleep_state",),
    "num_requests_kv_fetch_by_stage": ("stage",),
}
# What they say is in their labels.
_INFOS = ("lora_requests_info", "cache_config_info")

_RENAMED = {
    "vllm:gpu_cache_usage_perc": Rename("vllm:kv_cache_usage_perc", "0.13 renamed it"),
    "vllm:time_per_output_token_seconds": Rename(
        "vllm:inter_token_latency_seconds", "0.13 renamed it"
    ),
}


def _metrics() -> Iterable[Metric]:
    for name, edges in _HISTOGRAMS.items():
        yield Metric(
            f"vllm:{name}",
            "histogram",
            _LABELS | {"le"},
            unit=unit_of(name),
            edges=edges,
            whole_edges="1.0",
        )
    for name, labels in _COUNTERS.items():
        yield Metric(f"vllm:{name}_total", "counter", _LABELS | set(labels))
    yield Metric(
        "vllm:request_success_total",
        "counter",
        _LABELS | {"finished_reason"},
        {"finished_reason": _FINISHED},
    )
    for name, labels in _GAUGES.items():
        yield Metric(f"vllm:{name}", "gauge", _LABELS | set(labels))
    yield Metric("vllm:kv_cache_usage_perc", "gauge", _LABELS, unit="ratio")
    for name in _INFOS:
        yield Metric(f"vllm:{name}", "untyped", None)


def vllm(release: str) -> Catalogue:
    """Return what a release emits."""
    metrics = {metric.name: metric for metric in _metrics()}
    # The kv_block histograms are opt-in, and not all of their names are known.
    return Catalogue(f"vLLM {release}", metrics, PREFIXES, _RENAMED, ("vllm:kv_block_",))


def vllm_before_013() -> Catalogue:
    """Return the names that 0.13 dropped, as older releases emit them."""
    gap, usage = "vllm:time_per_output_token_seconds", "vllm:gpu_cache_usage_perc"
    metrics = (
        Metric(gap, "histogram", _LABELS | {"le"}, unit="s", edges=_TOKEN, whole_edges="1.0"),
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
    """Return what the router of production-stack emits under vLLM's prefix."""
    metrics = [
        Metric(
            "vllm:request_latency_seconds",
            "histogram",
            frozenset({"server", "model", "status", "le"}),
            unit="s",
            edges=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
            whole_edges="1.0",
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
