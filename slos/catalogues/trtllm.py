"""Catalogues of trtllm-serve by generation of ``/prometheus/metrics``.

Names, types, labels and default buckets of 1.4 are in ``data/trtllm.json``.  1.1 and 1.2 serve five
metrics without a prefix.  1.3 starts with the prefix and seven metrics; its last release candidates
have nearly all of 1.4, so both have the same catalogue.
"""

from __future__ import annotations

from dataclasses import replace

from promql.lint.catalogue import Catalogue, Metric, Rename
from slos.catalogues.stored import stored

PREFIXES = ("trtllm_",)
_BOUNDARIES_FROM = "prometheus_metrics_config of the server"

_FIRST_FIVE = (
    "request_success_total",
    "e2e_request_latency_seconds",
    "time_to_first_token_seconds",
    "time_per_output_token_seconds",
    "request_queue_time_seconds",
)
_RATIOS = frozenset(
    {
        "trtllm_kv_cache_hit_rate",
        "trtllm_kv_cache_host_utilization",
        "trtllm_kv_cache_iter_reuse_rate",
        "trtllm_kv_cache_utilization",
        "trtllm_prefill_batch_occupancy",
    }
)
_OLD_INFO, _INFO = "trtllm_cache_config_info", "trtllm_kv_cache_config_info"


def _metric(metric: Metric) -> Metric:
    """Add facts that the declarations lack."""
    if metric.kind == "gauge" and metric.labels is not None:
        # prometheus_client's files of several processes: every gauge has the label of its process.
        unit = "ratio" if metric.name in _RATIOS else metric.unit
        return replace(metric, labels=metric.labels | {"pid"}, unit=unit)
    # The server's configuration has buckets of durations only.
    configurable = metric.kind == "histogram" and metric.unit == "s"
    return replace(metric, boundaries_from=_BOUNDARIES_FROM) if configurable else metric


def trtllm_unprefixed(release: str) -> Catalogue:
    """Return the metrics of 1.1 and 1.2, in fixed buckets."""
    known = stored("trtllm").metrics
    metrics = [replace(known[f"trtllm_{name}"], name=name) for name in _FIRST_FIVE]
    renamed = {
        f"trtllm_{metric.name}": Rename(metric.name, "the prefix came with 1.3")
        for metric in metrics
    }
    return Catalogue(
        f"trtllm-serve {release}", {each.name: each for each in metrics}, PREFIXES, renamed
    )


def trtllm_prefixed(release: str) -> Catalogue:
    """Return the metrics of 1.3 and 1.4."""
    metrics = {name: _metric(metric) for name, metric in stored("trtllm").metrics.items()}
    renamed = {name: Rename(f"trtllm_{name}", "1.3 gave it a prefix") for name in _FIRST_FIVE}
    if release == "1.3":
        metrics[_OLD_INFO] = replace(metrics[_INFO], name=_OLD_INFO)
    else:
        renamed[_OLD_INFO] = Rename(_INFO, "1.3's release candidates renamed it")
    return Catalogue(f"trtllm-serve {release}", metrics, PREFIXES, renamed)
