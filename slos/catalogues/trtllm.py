"""trtllm-serve: what ``/prometheus/metrics`` of each generation emits.

Names, labels and buckets: TensorRT-LLM, ``tensorrt_llm/metrics/collector.py``.  1.1 and 1.2 serve
five metrics without a prefix; 1.3 begins with the prefix and with seven, and its last release
candidates have nearly all that 1.4 has, so both are taken to have the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from promql.lint.catalogue import Catalogue, Metric, Rename, Unit, unit_of
from slos.signals import FIRST_TOKEN_BUCKETS, REQUEST_BUCKETS, STAGE_BUCKETS

PREFIXES = ("trtllm_",)
_LABELS = frozenset({"model_name", "engine_type"})
# Files of several processes: every gauge says whose it is.
_GAUGE_LABELS = _LABELS | {"pid"}
_EDGES_FROM = "prometheus_metrics_config of the server"

_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip

_FIRST_FIVE: Mapping[str, tuple[float, ...]] = {
    "e2e_request_latency_seconds": REQUEST_BUCKETS,
    "time_to_first_token_seconds": FIRST_TOKEN_BUCKETS,
    "time_per_output_token_seconds": _TOKEN,
    "request_queue_time_seconds": REQUEST_BUCKETS,
}
_SECONDS: Mapping[str, tuple[float, ...]] = {
    **_FIRST_FIVE,
    "request_decode_time_seconds": REQUEST_BUCKETS,
    "request_inference_time_seconds": REQUEST_BUCKETS,
    "request_prefill_time_seconds": STAGE_BUCKETS,
}
_COUNTERS: Mapping[str, tuple[str, ...]] = {
    "prompt_tokens": (),
    "generation_tokens": (),
    "kv_cache_reused_blocks": (),
    "kv_cache_missed_blocks": (),
    "kv_cache_iter_reused_blocks": (),
    "kv_cache_iter_full_reused_blocks": (),
    "kv_cache_iter_partial_reused_blocks": (),
    "kv_cache_iter_missed_blocks": (),
    "kv_cache_gen_alloc_blocks": (),
    "kv_cache_onboard_bytes": (),
    "kv_cache_offload_bytes": (),
    "kv_cache_intra_device_copy_bytes": (),
    "kv_cache_disk_prefetch_blocks": (),
    "num_requests_completed": (),
    "spec_decode_num_draft_tokens": (),
    "spec_decode_num_accepted_tokens": (),
    "spec_decode_drafted_tokens": ("token_position",),
    "spec_decode_accepted_tokens": ("token_position",),
    "prompt_cached_tokens": (),
    "prompt_cache_hit_tokens": ("cache_level", "cache_tier"),
    "request_error": ("http_code",),
}
_GAUGES: Mapping[str, Unit] = {
    **dict.fromkeys(
        (
            "kv_cache_hit_rate", "kv_cache_utilization", "kv_cache_host_utilization",
            "kv_cache_iter_reuse_rate", "prefill_batch_occupancy",
        ),
        "ratio",
    ),
    **dict.fromkeys(
        (
            "kv_cache_max_blocks", "kv_cache_free_blocks", "kv_cache_used_blocks",
            "kv_cache_tokens_per_block", "num_requests_running", "num_requests_waiting",
            "max_num_active_requests", "max_batch_size_static", "max_batch_size_runtime",
            "max_num_tokens_runtime", "num_context_requests", "num_generation_requests",
            "num_paused_requests", "num_scheduled_requests", "total_context_tokens",
            "avg_decoded_tokens_per_iter", "spec_decode_acceptance_length",
            "spec_decode_draft_overhead",
        ),
        "",
    ),
    "iteration_latency_seconds": "s",
    **dict.fromkeys(
        ("gpu_memory_usage_bytes", "cpu_memory_usage_bytes", "pinned_memory_usage_bytes"), "bytes"
    ),
}  # fmt: skip
_OTHER_HISTOGRAMS = (
    "prompt_cached_tokens_per_request", "prefill_batch_tokens", "prefill_perplexity",
    "generation_perplexity",
)  # fmt: skip
_INFOS = ("model", "parallel", "speculative", "kv_cache", "cache")


def _histogram(name: str, edges: tuple[float, ...], edges_from: str = "") -> Metric:
    return Metric(
        name,
        "histogram",
        _LABELS | {"le"},
        unit=unit_of(name),
        edges=edges,
        edges_from=edges_from,
        whole_edges="1.0",
    )


def _success(name: str) -> Metric:
    return Metric(name, "counter", _LABELS | {"finished_reason"})


def _prefixed() -> Iterable[Metric]:
    yield _success("trtllm_request_success_total")
    for name, edges in _SECONDS.items():
        yield _histogram(f"trtllm_{name}", edges, _EDGES_FROM)
    for name in _OTHER_HISTOGRAMS:
        yield _histogram(f"trtllm_{name}", ())
    for name, labels in _COUNTERS.items():
        unit = unit_of(name)
        yield Metric(f"trtllm_{name}_total", "counter", _LABELS | set(labels), unit=unit)
    for name, unit in _GAUGES.items():
        yield Metric(f"trtllm_{name}", "gauge", _GAUGE_LABELS, unit=unit)
    yield Metric("trtllm_scheduled_batch_size", "gauge", _GAUGE_LABELS | {"rank"})
    for name in _INFOS:  # their labels are settings
        yield Metric(f"trtllm_{name}_config_info", "untyped", None)


def trtllm_unprefixed(release: str) -> Catalogue:
    """Return what 1.1 and 1.2 emit."""
    metrics = [_success("request_success_total")]
    metrics += [_histogram(name, edges) for name, edges in _FIRST_FIVE.items()]
    renamed = {
        f"trtllm_{metric.name}": Rename(metric.name, "the prefix came with 1.3")
        for metric in metrics
    }
    return Catalogue(
        f"trtllm-serve {release}", {each.name: each for each in metrics}, PREFIXES, renamed
    )


def trtllm_prefixed(release: str) -> Catalogue:
    """Return what 1.3 and 1.4 emit."""
    metrics = {metric.name: metric for metric in _prefixed()}
    renamed = {
        name: Rename(f"trtllm_{name}", "1.3 gave it a prefix")
        for name in ("request_success_total", *_FIRST_FIVE)
    }
    return Catalogue(f"trtllm-serve {release}", metrics, PREFIXES, renamed)
