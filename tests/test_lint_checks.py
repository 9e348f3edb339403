"""Every lint check finds its defect, and accepts similar correct queries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from promql.lint.findings import CHECKS
from tests.lint_files import alert, dashboard, ids, panel, record, rules, run
from tokenslo.commands.lint import lint

TTFT = "vllm:time_to_first_token_seconds"
KV = "nv_trt_llm_kv_cache_block_metrics"
TRITON, VLLM = ("--catalogue", "triton-25.04"), ("--catalogue", "vllm-0.33")
OLD_TRITON = ("--catalogue", "triton-24.06")

Case = tuple[str, tuple[str, ...]]

WRONG: dict[str, list[Case]] = {
    "TL001": [
        ("sum(x", ()),
        ("rate(x)", ()),
        ('rate({__name__="x"})', ()),
        ("sum(job:requests:rate5m[5m])", ()),
        ("rates(x[5m])", ()),
        ("x{a=~'('}", ()),
    ],
    "TL002": [
        ("vllm:gpu_cache_usage_perc", VLLM),
        ("vllm:gpu_cache_usage_perc", ()),
        ("vllm:num_request_running", VLLM),
        ("nv_trt_llm_kv_cache_metrics", ()),
        ("nv_inference_pending_request_count", ("--catalogue", "triton-23.08")),
        ("trtllm_kv_cache_utilization", ("--catalogue", "trtllm-1.2")),
        ("rate(request_success_total[5m])", ("--catalogue", "trtllm-1.4")),
        ("nv_trt_llm_request_metrics", ("--catalogue", "triton-llmapi-25.04")),
        ("vllm:num_requests_running", TRITON),
        ("absent(nv_inference_load_ratio_count)", ()),
    ],
    "TL003": [
        ('vllm:num_requests_running{model="a"}', VLLM),
        ("sum by (model_name) (rate(nv_inference_count[5m]))", TRITON),
        ('rate(vllm:prompt_tokens_total{finished_reason="stop"}[5m])', VLLM),
        (f'rate({TTFT}_count{{le="0.1"}}[5m])', VLLM),
    ],
    "TL004": [
        ('nv_trt_llm_request_metrics{request_type="running"}', TRITON),
        (f'{KV}{{kv_cache_block_type=~"fraction|share"}}', OLD_TRITON),
        ('rate(nv_inference_request_failure{reason="TIMEOUT"}[5m])', TRITON),
        ('rate(llm_requests_total{outcome="success"}[5m])', ()),
    ],
    "TL005": [
        (f'rate({TTFT}_bucket{{le="0.8"}}[5m])', VLLM),
        (f'rate({TTFT}_bucket{{le=~"3(\\\\.0)?"}}[5m])', VLLM),
        ('rate(nv_inference_first_response_histogram_ms_bucket{le="800"}[5m])', TRITON),
    ],
    "TL006": [
        (f'rate({TTFT}_bucket{{le="1"}}[5m])', VLLM),
        ('rate(nv_inference_first_response_histogram_ms_bucket{le="500.0"}[5m])', TRITON),
        ('rate(http_request_duration_seconds_bucket{le="1"}[5m])', ()),
    ],
    "TL007": [("nv_inference_pending_request_count", ("--catalogue", "triton-llmapi-25.04"))],
    "TL008": [
        ('x{a=~"b"}', ()),
        ('x{a!~"b"}', ()),
        ('x{a=~".*"}', ()),
        ('x{a=~".+"}', ()),
        ('x{a=~"^b.*$"}', ()),
    ],
    "TL011": [
        ("rate(vllm:num_requests_running[5m])", VLLM),
        ("increase(nv_gpu_memory_used_bytes[5m])", ()),
        ('rate(nv_trt_llm_request_metrics{request_type="active"}[5m])', TRITON),
        (f'rate({KV}{{kv_cache_block_type=~"reused|used"}}[5m])', TRITON),
        ("irate(nv_inference_request_summary_us[5m])", TRITON),
    ],
    "TL012": [
        ("sum(vllm:prompt_tokens_total)", VLLM),
        ("nv_inference_count > 100", TRITON),
        ("http_requests_total", ()),
        ("sum(vllm:generation_tokens_total) / 1000", VLLM),
        (f"sum by (le) ({TTFT}_bucket)", VLLM),
        ("vllm:prompt_tokens_total and vllm:num_requests_running", VLLM),
    ],
    "TL013": [
        (f"{TTFT}_sum / {TTFT}_count", VLLM),
        ("sum(errors_total) / (sum(errors_total) + sum(successes_total))", ()),
        ("100 * sum(a_total) / sum(b_total)", ()),
    ],
    "TL014": [
        ("rate(a_total[5m]) / clamp_min(rate(b_total[5m]), 1)", ()),
        ("sum(rate(a_total[5m])) / clamp_min(sum(rate(b_total[5m])), 0.1)", ()),
        ("rate(a_total[5m]) / (rate(b_total[5m]) + 1)", ()),
        (
            f"rate({TTFT}_sum[5m]) / (rate({TTFT}_count[5m]) > 0 or vector(1))",
            VLLM,
        ),
    ],
    "TL015": [
        ("rate(sum(http_requests_total)[5m:1m])", ()),
        ("rate(sum(http_requests_total))", ()),
        ("increase(sum by (model) (nv_inference_count)[1h:])", TRITON),
    ],
    "TL016": [
        ("rate(http_requests_total[30s])", ()),
        ("rate(http_requests_total[1m])", ("--scrape-interval", "1m")),
        ("rate(http_requests_total[$__interval])", ()),
        ("deriv(temperature[59s])", ()),
    ],
    "TL021": [
        ("sum(nv_trt_llm_request_metrics)", TRITON),
        ("avg by (model) (nv_trt_llm_inflight_batcher_metrics)", TRITON),
        ("sum without (state) (llm_sequences)", ()),
        ("sum(rate(llm_tokens_total[5m]))", ()),
        (f"sum(rate({TTFT}_bucket[5m]))", VLLM),
        ("sum(max by (model, request_type) (nv_trt_llm_request_metrics))", TRITON),
    ],
    "TL022": [
        ("sum(vllm:kv_cache_usage_perc)", VLLM),
        ("sum(nv_gpu_utilization) * 100", ()),
        (f'sum({KV}{{kv_cache_block_type="fraction"}})', TRITON),
        ("sum(nv_gpu_memory_used_bytes / nv_gpu_memory_total_bytes)", ()),
        (f"sum(histogram_quantile(0.9, sum by (le, pod) (rate({TTFT}_bucket[5m]))))", VLLM),
    ],
    "TL023": [
        (f"avg(histogram_quantile(0.9, sum by (le, pod) (rate({TTFT}_bucket[5m]))))", VLLM),
        ('avg(nv_inference_request_summary_us{quantile="0.99"})', TRITON),
        ("avg(rate(a_total[5m]) / rate(b_total[5m]))", ()),
        ("avg_over_time(job:errors:ratio_rate5m[30d])", ()),
        ("sum_over_time(a:ratio[30d]) / ignoring (x) count_over_time(a:ratio[30d])", ()),
    ],
    "TL024": [
        (f"histogram_quantile(0.9, {TTFT}_bucket)", VLLM),
        (f"histogram_quantile(0.9, sum by (le) ({TTFT}_bucket))", VLLM),
        (f"histogram_quantile(0.9, sum by (model_name) (rate({TTFT}_bucket[5m])))", VLLM),
        (f"histogram_quantile(0.9, sum without (le) (rate({TTFT}_bucket[5m])))", VLLM),
    ],
    "TL027": [
        ("sum by (a) (x) / sum by (b) (y)", ()),
        ("sum by (a, b) (rate(x_total[5m])) / sum by (a) (rate(x_total[5m]))", ()),
        ("sum by (a) (x) / on (b) sum by (a, b) (y)", ()),
        ("x * on (pod) group_left (node) sum by (node) (y)", ()),
        ("sum(x) and max by (a) (y)", ()),
        ("sum by (a) (x) > sum(y) / 2", ()),
    ],
    "TL026": [
        (f"histogram_quantile(0.9, rate({TTFT}_bucket[5m]))", VLLM),
        ("histogram_quantile(0.9, rate(x_bucket[5m]) * 2)", ()),
    ],
}  # fmt: skip

RIGHT: list[Case] = [
    ("sum(rate(http_requests_total[5m])) by (code)", ()),
    (f"histogram_quantile(0.99, sum by (le, model_name) (rate({TTFT}_bucket[5m])))", VLLM),
    (f"max(histogram_quantile(0.99, rate({TTFT}_bucket[5m])))", VLLM),
    ("histogram_quantile(0.99, sum(rate(native_seconds[5m])))", ()),
    (f'sum(rate({TTFT}_bucket{{le="+Inf"}}[5m]))', VLLM),
    (f'1 - sum(rate({TTFT}_bucket{{le=~"1(\\\\.0)?"}}[5m])) / sum(rate({TTFT}_count[5m]))', VLLM),
    (f'rate({TTFT}_bucket{{le=~"0.5|0.75"}}[5m])', VLLM),
    ("sum(rate(a_total[5m])) / clamp_min(sum(rate(b_total[5m])), 1e-9)", ()),
    ("sum(increase(a_total[1h])) / clamp_min(sum(increase(b_total[1h])), 1)", ()),
    ("sum(rate(errors_total[5m])) / (sum(rate(b_total[5m])) > 0 or vector(1))", ()),
    ("used / clamp_min(all, 1)", ()),
    ("rate(a_total[5m]) / clamp_min(rate(nv_inference_queue_duration_us[5m]), 1)", ()),
    ("avg_over_time(job:request_duration_seconds:mean5m[1h])", ()),
    ("vllm:current_qps + vllm:semantic_cache_size", ()),
    ('rate(vllm:time_per_output_token_seconds_sum{model_name="m"}[5m])', ()),
    ("increase(http_requests_total[1h])", ()),
    ("http_requests_total - http_requests_total offset 1h", ()),
    ("http_requests_total unless http_requests_total offset 5m", ()),
    ("count(http_requests_total)", ()),
    ("up or on (job) http_requests_total * 0", ()),
    ("absent(http_requests_total)", ()),
    ("up and on (job) http_requests_total", ()),
    ("changes(process_start_time_seconds[1h])", ()),
    ("rate(http_requests_total[1m])", ()),
    ("avg_over_time(temperature[30s])", ()),
    ('rate(nv_trt_llm_general_metrics{general_type="iteration_counter"}[1m])', TRITON),
    (f'increase({KV}{{kv_cache_block_type="reused"}}[1h])', TRITON),
    (f'rate({KV}{{kv_cache_block_type="$kind"}}[5m])', TRITON),
    ("rate(nv_cache_num_hits[5m])", TRITON),
    ("nv_trt_llm_request_metrics", TRITON),
    ("sum by (request_type) (nv_trt_llm_request_metrics)", TRITON),
    ('sum(nv_trt_llm_request_metrics{request_type="active"})', TRITON),
    ('sum(nv_trt_llm_request_metrics{request_type=~"$type"})', TRITON),
    ("sum without (pod) (nv_trt_llm_request_metrics)", TRITON),
    ("max(nv_trt_llm_request_metrics)", TRITON),
    ("sum(nv_trt_llm_runtime_memory_metrics)", TRITON),
    (f'{KV}{{kv_cache_block_type=~"used|other"}}', TRITON),
    ('sum by (model) (rate(x_bucket[5m])) > 0', ()),
    ("sum by (a) (x) / scalar(sum(y))", ()),
    ("sum by (a, b) (x) / on (a) group_left () sum by (a) (y)", ()),
    ("sum by (a, b) (x) / ignoring (b) group_left () sum by (a) (y)", ()),
    ("sum by ($label) (x) / sum by (b) (y)", ()),
    ('x{a=~"$a",b=~"b|c",c=~"d.*",d=~"(?i)e"}', ()),
    ('nv_trt_llm_request_metrics{request_type!="running"}', TRITON),
    ('nv_trt_llm_request_metrics{request_type=~"|running"}', TRITON),
    ("sum(nv_trt_llm_request_metrics * on (request_type) group_left () weights)", TRITON),
    ("avg(vllm:kv_cache_usage_perc)", VLLM),
    ("sum by (pod) (vllm:kv_cache_usage_perc)", VLLM),
    ("sum(vllm:kv_cache_usage_perc) / count(vllm:kv_cache_usage_perc)", VLLM),
    ("sum(nv_gpu_memory_used_bytes) / sum(nv_gpu_memory_total_bytes)", ()),
    ("vllm:prefix_cache_hits_created", VLLM),
    ("rate(vllm:iteration_tokens_total_sum[5m])", VLLM),
    ("vllm:kvcr_operations offset 5m", VLLM),
    ("node_load1{model=\"a\"} / node_cpus", VLLM),
    ('vllm:num_requests_running{namespace="a",pod="b",service="c"}', VLLM),
    ('nv_inference_pending_request_count{_team="nlp"}', TRITON),
    ('sum by (model) (label_replace(vllm:num_requests_running,"model","$1","pod","(.*)"))', VLLM),
    ("sum by (model) (vllm:num_requests_running * on (pod) group_left (model) kube_labels)", VLLM),
    ("rate(x[$__rate_interval]) + rate(y[$window])", ()),
    ("vllm:e2e_request_latency_seconds:burnrate1h", VLLM),
    ("cluster_members_total", ()),
    ("pending_requests_total", ()),
    ("app_uptime_seconds_total > 60", ()),
    ("requests_received_total - requests_processed_total", ()),
    ("sum without (path) (disk_free_bytes / disk_size_bytes)", ()),
    ('{"http.server.duration", "le"="1.5"}', ()),
    ("histogram_quantile(0.9, sum(rate(x_seconds[5m] @ end() offset 1h)))", ()),
    ("histogram_avg(rate(native_seconds[5m:30s])) # and a comment", ()),
    ("mad_over_time(x[5m]) + ts_of_max_over_time(x[5m]) + sort_by_label(x, 'a')", ()),
    ("increase(x_total[1m + 30s] smoothed) + fill(0) rate(y_total[2m] anchored)", ()),
    ('x{a=~"${var:regex}",b="[[var]]",c=~"[[var:pipe]]"} * $factor', ()),
    ("rate(x_total[${window}]) / rate(y_total[[[window]]])", ()),
    ("rate(nv_inference_count[5m]) > 3", TRITON),
    ("sum(rate(x_total[5m])) * 60", ()),
    ("vector(1)", ()),
    ("$anything", ()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "case"), [(check, case) for check, cases in WRONG.items() for case in cases]
)
def test_a_defective_query_is_found(check: str, case: Case, tmp_path: Path) -> None:
    query, options = case
    assert check in ids(tmp_path, dashboard(panel(query)), *options)


@pytest.mark.parametrize("case", RIGHT)
def test_a_correct_query_has_no_finding(case: Case, tmp_path: Path) -> None:
    query, options = case
    assert run(tmp_path, dashboard(panel(query)), *options) == []


def test_every_check_has_test_cases() -> None:
    of_others = {
        "TL017",
        "TL025",
        "TL031",
        "TL032",
        "TL033",
        "TL034",
        "TL035",
        "TL036",
        "TL037",
        "TL041",
        "TL042",
        "TL043",
        *(f"TL05{number}" for number in range(1, 7)),
    }
    assert WRONG.keys() | of_others == CHECKS.keys()


RATIO = "sum(rate(errors_total[5m])) / sum(rate(all_total[5m]))"


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        ("slo:sli_error:ratio_rate1h > (14.4 * 0.1)", True),
        ("max(slo:sli_error:ratio_rate1h{a=\"b\"} > (14.4 * 0.01)) without (w)", False),
        ("max(slo:sli_error:ratio_rate1h{a=\"b\"} > (14.4 * 0.1)) without (w)", True),
        ("slo:error_ratio:rate1h > 1", True),
        ("slo:error_ratio:rate1h >= 1", False),
        ("1.2 < slo:error_ratio:rate1h", True),
        ("http:burnrate5m > (14 * (1-0.9)) and http:burnrate1h > (14 * (1-0.9))", True),
        ("http_requests:burnrate5m > (14 * (1-0.99))", False),
        ("http_requests:burnrate5m > 14", False),
        ("slo:current_burn_rate:ratio > 14", False),
        (f"{RATIO} > 14.4 * 0.1", True),
        (f"{RATIO} > 14.4 * 0.01", False),
        (f"{RATIO} > 2", False),
        ("max(vllm:kv_cache_usage_perc) > 90", True),
        ("max by (pod) (max_over_time(vllm:kv_cache_usage_perc[5m])) > 0.9", False),
        ("vllm:kv_cache_usage_perc * 100 > 90", False),
        ("vllm:kv_cache_usage_perc > 2 / 0", False),
        ("nv_gpu_memory_used_bytes / nv_gpu_memory_total_bytes > 90", True),
        ("nv_gpu_memory_used_bytes / nv_gpu_memory_total_bytes > 0.9", False),
        ("slo:good:ratio_rate1h < (1 - 14.4 * 0.1)", True),
        ("slo:good:ratio_rate1h < (1 - 14.4 * 0.05)", False),
        ("(1 - 14.4 * 0.1) > sum(rate(good_total[1h])) / sum(rate(all_total[1h]))", True),
        ("sum(rate(good_total[1h])) / sum(rate(all_total[1h])) < 0.5", False),
        ("vllm:kv_cache_usage_perc < 0", True),
        ("temperature < 0", False),
        ("a:left / b:right < -1", False),
        ("store_usage_ratio > 70", False),
        ('x_seconds{quantile="0.9"} / on (job) x_seconds{quantile="0.5"} > 1.05', False),
        ("triton:queue_compute:ratio > 2", False),
        ("job:error_duration_seconds:p99 > 2", False),
    ],
)  # fmt: skip
def test_alerts_that_cannot_fire(expr: str, found: bool, tmp_path: Path) -> None:
    assert ids(tmp_path, rules(alert(expr))) == (["TL031"] if found else [])


@pytest.mark.parametrize(
    ("recorded", "used", "found"),
    [
        (RATIO, "sum_over_time(a:b[30d])", True),
        (RATIO, "avg_over_time(a:b[30d])", True),
        (RATIO, "a:b > 0.1", False),
        (RATIO, "sum_over_time(other[30d])", False),
        (f"{RATIO} >= 0", "sum_over_time(a:b[30d])", False),
        (f"{RATIO} and on () sum(rate(all_total[5m])) > 0", "sum_over_time(a:b[30d])", False),
        (RATIO.replace("/ ", "/ (") + " > 0)", "sum_over_time(a:b[30d])", False),
        (RATIO.replace("/ ", "/ clamp_min(") + ", 1e-9)", "sum_over_time(a:b[30d])", False),
        ("used / all", "sum_over_time(a:b[30d])", False),
    ],
)
def test_nan_that_is_recorded_and_summed(
    recorded: str, used: str, found: bool, tmp_path: Path
) -> None:
    file = rules(record(recorded, "a:b"), record(used, "c:d"))
    assert ids(tmp_path, file) == (["TL032"] if found else [])


@pytest.mark.parametrize(
    ("rule", "lost"),
    [
        (alert('absent(x{job="a"})'), ""),
        (alert('absent(x{job="a"}) == 1'), ""),
        (alert('absent(sum(x{job="a"}))'), "job"),
        (alert('absent(sum(x{job="a"}))', labels={"severity": "page"}), "job"),
        (alert('absent(sum(x{job="a"}))', labels={"job": "a"}), ""),
        (alert('absent(sum(x{job="a"}))', labels={"service": "a"}), ""),
        (alert('absent(x{job=~"a"})', annotations={"summary": "{{ $labels.job }}"}), "job"),
        (alert('absent(x{job="a"})', annotations={"summary": "{{ $labels.job }}"}), ""),
        (alert('absent_over_time(x{job="a"}[5m])'), ""),
        (alert('absent(rate(x_total{job="a"}[5m]))'), "job"),
        (alert("absent(x)", annotations={"a": "{{ .Labels.pod }} {{ $labels.alertname }}"}), "pod"),
    ],
)  # fmt: skip
def test_labels_that_absent_drops(rule: dict[str, str], lost: str, tmp_path: Path) -> None:
    findings = run(tmp_path, rules(rule), "--disable", "TL008")
    assert [finding["check"] for finding in findings] == (["TL033"] if lost else [])
    assert all(f"so {lost} is lost" in finding["why"] for finding in findings)


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        (record("avg_over_time(up[5m])", "slo:availability:5m"), True),
        (record("1 - sum(up) / count(up)", "x", sli="errors"), True),
        (record("avg_over_time(up[5m])", "job:up:avg"), False),
        (alert("up == 0", labels={"slo": "availability"}), False),
        (alert('avg(up{job="x"}) < 0.9', labels={"slo": "availability"}), True),
    ],
)
def test_availability_from_up(rule: dict[str, str], found: bool, tmp_path: Path) -> None:
    assert ids(tmp_path, rules(rule)) == (["TL034"] if found else [])


MEAN = "rate(nv_inference_request_duration_us[5m]) / rate(nv_inference_request_success[5m])"


@pytest.mark.parametrize(
    ("query", "unit", "found"),
    [
        (f"histogram_quantile(0.9, sum by (le) (rate({TTFT}_bucket[5m])))", "s", []),
        (f"histogram_quantile(0.9, sum by (le) (rate({TTFT}_bucket[5m])))", "ms", ["TL041"]),
        (f"1000 * histogram_quantile(0.9, sum by (le) (rate({TTFT}_bucket[5m])))", "ms", []),
        (f"1000 * histogram_quantile(0.9, sum by (le) (rate({TTFT}_bucket[5m])))", "s", ["TL041"]),
        (MEAN, "ms", ["TL041"]),
        (MEAN, "µs", []),
        (f"{MEAN} / 1000", "ms", []),
        ("rate(nv_inference_request_duration_us[5m])", "µs", ["TL017"]),
        ("rate(process_cpu_seconds_total[5m])", "s", []),
        ("vllm:kv_cache_usage_perc", "percent", ["TL041"]),
        ("vllm:kv_cache_usage_perc", "percentunit", []),
        ("vllm:kv_cache_usage_perc * 100", "percent", []),
        ("nv_gpu_memory_used_bytes / 1024 / 1024", "mbytes", []),
        ("nv_gpu_memory_used_bytes", "mbytes", ["TL041"]),
        ("time() - process_start_time_seconds", "ms", []),
        ("nv_gpu_power_usage", "ms", []),
        ("vllm:num_requests_running", "percent", []),
        ("sum(stored_bytes) / 3", "bytes", []),
    ],
)  # fmt: skip
def test_units(query: str, unit: str, found: list[str], tmp_path: Path) -> None:
    assert ids(tmp_path, dashboard(panel(query, unit=unit))) == found


@pytest.mark.parametrize(
    ("title", "metric", "found"),
    [
        ("Average ITL", "vllm:request_time_per_output_token_seconds", ["TL043"]),
        ("Inter-token latency", "trtllm_time_per_output_token_seconds", ["TL043"]),
        ("Average ITL", "vllm:inter_token_latency_seconds", []),
        ("TPOT", "vllm:request_time_per_output_token_seconds", []),
        ("Title", "vllm:request_time_per_output_token_seconds", []),
    ],
)
def test_a_mean_per_request_is_no_gap(
    title: str, metric: str, found: list[str], tmp_path: Path
) -> None:
    query = f"histogram_quantile(0.9, sum by (le) (rate({metric}_bucket[5m])))"
    assert ids(tmp_path, dashboard(panel(query, title=title))) == found


def test_a_unit_that_an_override_may_change_is_not_checked(tmp_path: Path) -> None:
    shown = panel("vllm:kv_cache_usage_perc", unit="percent")
    override = {"matcher": {"id": "byName"}, "properties": [{"id": "unit", "value": "percentunit"}]}
    shown["fieldConfig"]["overrides"].append(override)
    assert ids(tmp_path, dashboard(shown)) == []


@pytest.mark.parametrize(
    ("query", "one"),
    [
        ("sum(x)", True),
        ("sum by (pod) (x)", False),
        ("max(x) or vector(0)", True),
        ("sum(x) / sum(y)", True),
        ("sum(x) / y", False),
        ("sum(rate(x_total[5m]))", True),
        ("avg(x) and on () up", True),
        ("ceil(sum(x) * 2)", True),
        ("topk(1, x)", False),
        ("scalar(x)", True),
        ("x", False),
        ("histogram_quantile(0.9, sum by (le) (rate(x_bucket[5m])))", False),
    ],
)
def test_scaler_queries_with_several_series_are_found(
    query: str, one: bool, tmp_path: Path
) -> None:
    scaler = f"""
        kind: ScaledObject
        metadata: {{name: s}}
        spec:
          fallback: {{failureThreshold: 3, replicas: 1}}
          advanced:
            horizontalPodAutoscalerConfig:
              behavior: {{scaleDown: {{stabilizationWindowSeconds: 600}}}}
          triggers:
            - type: cpu
            - type: prometheus
              metadata:
                ignoreNullValues: "false"
                query: |
                  {query}
    """
    assert ids(tmp_path, scaler) == ([] if one else ["TL035"])


def test_interval_is_accepted_with_a_minimum_step_of_the_panel(tmp_path: Path) -> None:
    shown = panel("rate(x_total[$__interval])", interval="1m")
    assert ids(tmp_path, dashboard(shown)) == []
    shown["interval"] = ">1m"
    assert ids(tmp_path, dashboard(shown)) == []
    shown["interval"] = ">30s"
    assert ids(tmp_path, dashboard(shown)) == ["TL016"]


def test_a_pinned_label_is_found_only_where_a_variable_selects_it(tmp_path: Path) -> None:
    chosen = panel('up{namespace=~"$namespace",container=~"$container"}')
    for pinned, found in (
        ('up{namespace="a"}', ["TL042"]),
        ('up{namespace!="kube-system"}', []),
        ('up{namespace=""}', []),
        ('up{pod="a"}', []),
        ('up{container="a"}', []),
    ):
        assert ids(tmp_path, dashboard(chosen, panel(pinned))) == found
    assert ids(tmp_path, dashboard(panel('up{namespace="a"}'))) == []


def test_rules_with_variables_or_without_a_vector_are_found(tmp_path: Path) -> None:
    for expr, found in (
        ("rate(x_total[$__rate_interval])", ["TL001"]),
        ("x_total[5m]", ["TL001"]),
        ("'text'", ["TL001"]),
        ('sum(rate(x_total{a="$b"}[5m]))', []),
        ("1", []),
    ):
        assert ids(tmp_path, rules(record(expr))) == found


def test_renaming_a_counter_is_no_defect(tmp_path: Path) -> None:
    assert (
        ids(tmp_path, rules(record("node_reads_total"), record("read_seconds_total * 1000"))) == []
    )
    assert ids(tmp_path, rules(record("sum(node_reads_total)"))) == ["TL012"]


def test_series_recorded_in_the_files_are_not_unknown(tmp_path: Path) -> None:
    mine = record("sum(rate(vllm:prompt_tokens_total[5m]))", "vllm:mine")
    assert ids(tmp_path, rules(mine, alert("vllm:mine > 1"))) == []
    assert ids(tmp_path, rules(alert("vllm:mine > 1"))) == ["TL002"]


PART = 'sum by (a) (rate(x_total{code=~"5.."}[5m])) / sum by (a) (rate(x_total[5m]))'


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        (f"{PART} > 1.5", ["error"]),
        (f"{PART} > 1", ["error"]),
        (f"{PART} >= 1", []),
        (f"{PART} > 0.05", []),
        (f"100 * {PART} > 5", []),
        ("rate(x_total{a='b'}[5m]) / rate(x_total[5m]) > 1.5", ["error"]),
        ("rate(x_total{a='b'}[5m]) / rate(y_total[5m]) > 1.5", []),
        ("rate(x_total[5m]) / rate(x_total{a='b'}[5m]) > 1.5", []),
        ("rate(x_total{a='b'}[5m]) / rate(x_total[1h]) > 1.5", []),
        ("rate(x_total{a='b'}[5m]) / rate(x_total[5m] offset 1d) > 1.5", []),
        ("job:part > 1.5", ["error"]),
        ("max by (a) (job:part) > 1.5", ["error"]),
        ("cache_hit_ratio > 90", ["warning"]),
        ("compression_ratio > 2", []),
        ("count(x) == 0", ["error"]),
        ("count by (a) (x > 5) < 1", ["error"]),
        ("0 == group(x)", []),
        ("count(x) <= 0", ["error"]),
        ("absent(x) == 0", ["error"]),
        ("count_over_time(x[5m]) == 0", ["error"]),
        ("(count(x) or vector(0)) == 0", []),
        ("count(x) == 1", []),
        ("count(x) < 2", []),
        ("sum(x) == 0", []),
    ],
)
def test_thresholds_that_no_value_reaches(expr: str, found: list[str], tmp_path: Path) -> None:
    text = rules(record(PART, "job:part"), alert(expr))
    findings = [each for each in run(tmp_path, text) if each["check"] == "TL031"]
    assert [each["severity"] for each in findings] == found


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        ("x < 5 or vector(0)", True),
        ("(x < 5) or (y > 1 or vector(1))", True),
        ("x < 5 or on () vector(1)", True),
        ("(x or vector(0)) < 5", False),
        ("x < 5 or y < 5", False),
        ("vector(1)", False),
        ("x > 1 and (y or vector(0)) > 1", False),
    ],
)
def test_alerts_that_never_resolve(expr: str, found: bool, tmp_path: Path) -> None:
    assert ("TL037" in ids(tmp_path, rules(alert(expr)))) is found
    assert "TL037" not in ids(tmp_path, rules({**alert(expr), "alert": "Watchdog"}))


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        ("sum by (job) (x) > 1", ["instance"]),
        ("sum(x) > 1", ["instance", "job"]),
        ("count(x) > 1", ["instance", "job"]),
        ("x > 1", []),
        ("sum without (instance) (x) > 1", []),
        ("topk(3, sum by (job) (x)) > 1", ["instance"]),
        ("sum by (job) (x) * on (job) group_left (instance) y > 1", []),
        ("x / on (job) y > 1", ["instance"]),
        ("sum by (job) (x) > 1 and y", ["instance"]),
        ("sum by (job) (x) > 1 or y > 1", []),
        ("histogram_quantile(0.9, sum by (le, job) (rate(x_bucket[5m]))) > 1", ["instance"]),
    ],
)
def test_templates_of_labels_that_the_result_lacks(
    expr: str, found: list[str], tmp_path: Path
) -> None:
    texts = {"summary": "{{ $labels.job }} on {{ $labels.instance }}: {{ $value }}"}
    findings = run(tmp_path, rules(alert(expr, annotations=texts)))
    reasons = [each["why"] for each in findings if each["check"] == "TL036"]
    assert [why.split()[0] for why in reasons] == [f"$labels.{label}" for label in found]


def test_labels_in_a_loop_over_a_query_are_not_checked(tmp_path: Path) -> None:
    texts = {"summary": '{{ range query "y == 0" }}{{ .Labels.pod }}{{ end }}'}
    assert ids(tmp_path, rules(alert("sum(x) > 1", annotations=texts))) == []


def test_a_label_of_the_rule_is_no_label_of_the_result(tmp_path: Path) -> None:
    rule = alert("sum(x) > 1", labels={"team": "a"}, annotations={"summary": "{{ $labels.team }}"})
    (found,) = run(tmp_path, rules(rule))
    assert found["why"] == "$labels.team is empty: $labels has no labels that the rule itself sets"


CONFIGURATION = """\
global: {{scrape_interval: {usual}}}
scrape_configs:
  - {{job_name: a{own}}}
"""
MONITOR = """\
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: a}
spec: {endpoints: [{port: http, interval: 10s}, {port: other}]}
"""


@pytest.mark.parametrize(
    ("scrape_config", "options", "found"),
    [
        ("", (), ["warning"]),
        ("", ("--scrape-interval", "30s"), ["error"]),
        ("", ("--scrape-interval", "10s"), []),
        (CONFIGURATION.format(usual="10s", own=""), (), []),
        (CONFIGURATION.format(usual="30s", own=""), (), ["error"]),
        (CONFIGURATION.format(usual="30s", own=", scrape_interval: 10s"), (), []),
        (CONFIGURATION.format(usual="10s", own=""), ("--scrape-interval", "1m"), ["error"]),
        ("scrape_configs: [{job_name: a}]", (), ["error"]),
        (MONITOR, (), []),
    ],
)
def test_windows_follow_the_scrape_interval_of_the_files(
    scrape_config: str, options: tuple[str, ...], found: list[str], tmp_path: Path
) -> None:
    (tmp_path / "rules.yaml").write_text(rules(alert("rate(http_requests_total[30s]) > 1")))
    if scrape_config:
        (tmp_path / "scrape.yml").write_text(scrape_config)
    assert severities(tmp_path, *options) == found
    if "scrape_configs" in scrape_config:
        (tmp_path / "scrape.yml").rename(tmp_path / "prometheus.yml")
        assert severities(tmp_path / "rules.yaml", *options) == found


def severities(path: Path, *options: str) -> list[str]:
    result = CliRunner().invoke(lint, [str(path), "--format", "json", *options])
    findings = json.loads(result.stdout)["findings"]
    return [each["severity"] for each in findings if each["check"] == "TL016"]


def test_one_plus_a_ratio_of_rates_is_no_clamped_divisor(tmp_path: Path) -> None:
    query = "1 / (1 + sum(rate(a_total[5m])) / sum(rate(b_total[5m])))"
    assert "TL014" not in ids(tmp_path, dashboard(panel(query)))
