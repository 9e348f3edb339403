"""Defects of published dashboards and rules for LLM servers, in hand-written files.

Each is found, and the corrected file has no findings.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.lint_files import dashboard, ids, panel, record, rules


def show(query: str, **more: object) -> str:
    return dashboard(panel(query, **more))  # type: ignore[arg-type]


def average_by_rule(query: str) -> str:
    return rules(record(query, "triton:request_duration:avg"))


def scaler(query: str) -> str:
    metadata = {"query": query, "threshold": "5", "ignoreNullValues": "false"}
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 600}}
    scaled = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "vllm"},
        "spec": {
            "triggers": [{"type": "prometheus", "metadata": metadata}],
            "fallback": {"failureThreshold": 3, "replicas": 1},
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
        },
    }
    return yaml.safe_dump(scaled)


def two_panels(query: str) -> str:
    chosen = 'sum(rate(x_total{namespace="$namespace"}[5m]))'
    return dashboard(panel(query), panel(chosen))


def latency(query: str) -> str:
    average = (
        "sum(rate(vllm:e2e_request_latency_seconds_sum[5m]))"
        " / sum(rate(vllm:e2e_request_latency_seconds_count[5m]))"
    )
    return dashboard(panel(average, title="Average", unit="s"), *([panel(query)] if query else []))


def availability(query: str) -> str:
    return rules(record(query, "up:burnrate5m", slo="availability"))


TRITON = ("--catalogue", "triton-25.04")
VLLM = ("--catalogue", "vllm-0.33")

DEFECTS: dict[str, tuple[Callable[[str], str], str, list[str], str, tuple[str, ...]]] = {
    "a recorded average whose divisor is held at one request per second": (
        average_by_rule,
        "sum(rate(nv_inference_request_duration_us[1m]))"
        " / clamp_min(sum(rate(nv_inference_request_success[1m])), 1)",
        ["TL014"],
        "sum(rate(nv_inference_request_duration_us[1m]))"
        " / (sum(rate(nv_inference_request_success[1m])) > 0)",
        TRITON,
    ),
    "the ratio of a queue that the engine's own queue is not part of": (
        average_by_rule,
        "sum(rate(nv_inference_queue_duration_us[1m]))"
        " / (sum(rate(nv_inference_request_success[1m])) > 0)",
        ["TL007"],
        "sum(rate(nv_inference_request_duration_us[1m]))"
        " / (sum(rate(nv_inference_request_success[1m])) > 0)",
        ("--catalogue", "triton-llmapi-25.04"),
    ),
    "the rate of a gauge, averaged over a time of day and a counter": (
        show,
        "avg(rate(nv_trt_llm_general_metrics[5m]))",
        ["TL011", "TL021"],
        'avg(rate(nv_trt_llm_general_metrics{general_type="iteration_counter"}[5m]))',
        TRITON,
    ),
    "token counts and a micro-batch number added up": (
        show,
        "sum(nv_trt_llm_inflight_batcher_metrics)",
        ["TL021"],
        "sum by (inflight_batcher_specific_metric) (nv_trt_llm_inflight_batcher_metrics)",
        TRITON,
    ),
    "the rate of how many requests there are now": (
        show,
        "rate(nv_trt_llm_request_metrics[5m])",
        ["TL011"],
        "nv_trt_llm_request_metrics",
        TRITON,
    ),
    "one added to a divisor, and a window of one scrape": (
        show,
        "rate(nv_inference_queue_duration_us[30s]) / (1 + rate(nv_inference_request_success[30s]))",
        ["TL014", "TL016"],
        "rate(nv_inference_queue_duration_us[2m]) / (rate(nv_inference_request_success[2m]) > 0)",
        TRITON,
    ),
    "a histogram that is no more": (
        show,
        "sum by (le) (rate(nv_inference_load_ratio_bucket[5m]))",
        ["TL002"],
        "sum by (le) (rate(nv_inference_first_response_histogram_ms_bucket[5m]))",
        TRITON,
    ),
    "a counter that is no more": (
        show,
        "sum(rate(nv_inference_compute_duration_us[5m]))",
        ["TL002"],
        "sum(rate(nv_inference_compute_infer_duration_us[5m]))",
        TRITON,
    ),
    "an average since the start": (
        show,
        "avg(vllm:request_time_per_output_token_seconds_sum)"
        " / avg(vllm:request_time_per_output_token_seconds_count)",
        ["TL013"],
        "histogram_quantile(0.5, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[5m])))",
        VLLM,
    ),
    "the mean of each request called inter-token latency": (
        lambda query: dashboard(panel(query, title="Average ITL")),
        "histogram_quantile(0.5,"
        " sum by (le) (rate(vllm:request_time_per_output_token_seconds_bucket[5m])))",
        ["TL043"],
        "histogram_quantile(0.5, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[5m])))",
        VLLM,
    ),
    "a distribution since the start": (
        show,
        "sum by (le) (vllm:time_to_first_token_seconds_bucket)",
        ["TL012"],
        "sum by (le) (increase(vllm:time_to_first_token_seconds_bucket[$__rate_interval]))",
        VLLM,
    ),
    "seconds of queueing per second shown as queue time": (
        lambda query: dashboard(panel(query, title="Queue Time", unit="s"), panel(QUANTILE)),
        "sum(rate(vllm:request_queue_time_seconds_sum[5m]))",
        ["TL017"],
        "sum(rate(vllm:request_queue_time_seconds_sum[5m]))"
        " / sum(rate(vllm:request_queue_time_seconds_count[5m]))",
        VLLM,
    ),
    "a scaler with one series per pod": (
        scaler,
        "vllm:num_requests_waiting",
        ["TL035"],
        'sum(vllm:num_requests_waiting{model_name="llama"})',
        VLLM,
    ),
    "an error rate of counters without rate": (
        show,
        "sum(gen_ai_requests_errors_total) / sum(gen_ai_requests_total)",
        ["TL013"],
        "sum(rate(gen_ai_requests_errors_total[5m])) / sum(rate(gen_ai_requests_total[5m]))",
        (),
    ),
    "a latency of which there is only the average": (
        latency,
        "",
        ["TL025"],
        "histogram_quantile(0.99, sum by (le) (rate(vllm:e2e_request_latency_seconds_bucket[5m])))",
        VLLM,
    ),
    "a fixed namespace in one query": (
        two_panels,
        'sum(rate(y_total{namespace="robert"}[5m]))',
        ["TL042"],
        'sum(rate(y_total{namespace="$namespace"}[5m]))',
        (),
    ),
    "KV-cache utilization added up over pods": (
        show,
        "sum(vllm:kv_cache_usage_perc)",
        ["TL022"],
        "max(vllm:kv_cache_usage_perc)",
        VLLM,
    ),
    "availability that is whether a scrape succeeded": (
        availability,
        "(sum(count_over_time(up[5m])) - sum(sum_over_time(up[5m])))"
        " / sum(count_over_time(up[5m]))",
        ["TL034"],
        'sum(rate(llm_requests_total{outcome=~"error|timeout"}[5m]))'
        " / sum(rate(llm_requests_total[5m]))",
        (),
    ),
    "a name that has been another since 0.13": (
        show,
        "sum by (le) (rate(vllm:time_per_output_token_seconds_bucket[5m]))",
        ["TL002"],
        "sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[5m]))",
        VLLM,
    ),
}  # fmt: skip
QUANTILE = "histogram_quantile(0.9, sum by (le) (rate(vllm:request_queue_time_seconds_bucket[5m])))"


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_defect_is_found(defect: str, tmp_path: Path) -> None:
    file, broken, checks, _, options = DEFECTS[defect]
    assert ids(tmp_path, file(broken), *options) == checks


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_corrected_file_has_no_findings(defect: str, tmp_path: Path) -> None:
    file, _, _, mended, options = DEFECTS[defect]
    assert ids(tmp_path, file(mended), *options) == []
