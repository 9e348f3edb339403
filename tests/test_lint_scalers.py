"""Lint of ScaledObjects, HorizontalPodAutoscalers and prometheus-adapter's rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from lint_files import ids, run

from tokenslo.commands.lint import lint

Object = dict[str, Any]
WAITING = 'sum(vllm:num_requests_waiting{model_name="llama"})'
GPU = 'avg(DCGM_FI_DEV_GPU_UTIL{pod=~"llama-.*"})'
DOWN = {"scaleDown": {"stabilizationWindowSeconds": 600}}


def scaled_object(query: str = WAITING, **metadata: str) -> Object:
    settings = {"query": query, "threshold": "4", "ignoreNullValues": "false", **metadata}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "llama"},
        "spec": {
            "triggers": [{"type": "prometheus", "metadata": settings}],
            "fallback": {"failureThreshold": 3, "replicas": 1},
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": DOWN}},
        },
    }


def autoscaler(metric: str = "vllm_waiting") -> Object:
    pods = {"metric": {"name": metric}, "target": {"type": "AverageValue", "averageValue": "4"}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "llama"},
        "spec": {"metrics": [{"type": "Pods", "pods": pods}], "behavior": DOWN},
    }


def adapter(query: str, series: str = "vllm:num_requests_waiting", key: str = "rules") -> Object:
    return {key: [{"seriesQuery": series, "metricsQuery": query, "name": {"as": "some"}}]}


def without(one: Object, *path: str | int) -> Object:
    copy = json.loads(json.dumps(one))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return dict(copy)


def both(folder: Path, one: Object) -> list[str]:
    """Return the checks with findings, which are the same for YAML and JSON."""
    found = ids(folder, yaml.safe_dump(one))
    assert ids(folder, json.dumps(one)) == found
    return found


SELECTED = "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"
CASES: dict[str, tuple[Object, list[str]]] = {
    "a good ScaledObject": (scaled_object(), []),
    "a good autoscaler": (autoscaler(), []),
    "a good adapter rule": (adapter(SELECTED), []),
    "a bare query": (scaled_object("vllm:num_requests_waiting"), ["TL035"]),
    "null as 0 by default": (
        without(scaled_object(), "spec", "triggers", 0, "metadata", "ignoreNullValues"),
        ["TL051"],
    ),
    "null as 0": (scaled_object(ignoreNullValues="true"), ["TL051"]),
    "no fallback": (without(scaled_object(), "spec", "fallback"), ["TL052"]),
    "no scale-down behavior": (without(scaled_object(), "spec", "advanced"), ["TL056"]),
    "no scale-down behavior of an autoscaler": (
        without(autoscaler(), "spec", "behavior"),
        ["TL056"],
    ),
    "GPU utilization": (scaled_object(GPU, threshold="80"), ["TL054"]),
    "GPU utilization of an autoscaler": (autoscaler("dcgm_fi_dev_gpu_util"), ["TL054"]),
    "the ratio of queue time to compute time": (
        scaled_object(
            "sum(rate(nv_inference_queue_duration_us[1m]))"
            " / sum(rate(nv_inference_compute_infer_duration_us[1m]))"
        ),
        ["TL053"],
    ),
    "queue time per request": (
        scaled_object(
            "sum(rate(vllm:request_queue_time_seconds_sum[1m]))"
            " / sum(rate(vllm:request_queue_time_seconds_count[1m]))"
        ),
        [],
    ),
    "a ratio against a threshold in percent": (
        scaled_object("max(vllm:kv_cache_usage_perc)", threshold="80"),
        ["TL031"],
    ),
    "a ratio over time against 1": (
        scaled_object("max(avg_over_time(vllm:kv_cache_usage_perc[1m]))", threshold="1"),
        ["TL031"],
    ),
    "a ratio against a share": (
        scaled_object("max(vllm:kv_cache_usage_perc)", threshold="0.8"),
        [],
    ),
    "a counter without rate": (scaled_object("sum(vllm:prompt_tokens_total)"), ["TL012"]),
    "a rule for every object": (adapter("sum(<<.Series>>)"), ["TL055"]),
    "a counter without rate in a rule": (
        adapter(SELECTED, "vllm:prompt_tokens_total"),
        ["TL012"],
    ),
    "a counter's rate in a rule": (
        adapter(
            "sum(rate(<<.Series>>{<<.LabelMatchers>>}[2m])) by (<<.GroupBy>>)",
            "vllm:prompt_tokens_total",
        ),
        [],
    ),
    "an external rule": (adapter("sum(<<.Series>>)", key="externalRules"), ["TL055"]),
    "rules in values of the chart": (
        {"rules": {"custom": adapter("sum(<<.Series>>)")["rules"]}},
        ["TL055"],
    ),
    "an adapter's ConfigMap": (
        {"kind": "ConfigMap", "data": {"config.yaml": yaml.safe_dump(adapter("sum(<<.Series>>)"))}},
        ["TL055"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_traps_of_scalers_are_found(name: str, tmp_path: Path) -> None:
    one, expected = CASES[name]
    assert both(tmp_path, one) == expected


def test_a_stabilization_window_of_0_is_worse_than_the_default(tmp_path: Path) -> None:
    one = autoscaler()
    one["spec"]["behavior"] = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    (found,) = run(tmp_path, yaml.safe_dump(one))
    assert (found["check"], found["severity"]) == ("TL056", "warning")
    (found,) = run(tmp_path, yaml.safe_dump(without(autoscaler(), "spec", "behavior")))
    assert (found["check"], found["severity"]) == ("TL056", "note")


def test_findings_name_the_line_and_the_object(tmp_path: Path) -> None:
    text = yaml.safe_dump(without(scaled_object(GPU), "spec", "fallback"), sort_keys=False)
    found = {each["check"]: each for each in run(tmp_path, text)}
    lines = text.splitlines()
    assert lines[found["TL052"]["line"] - 1].strip() == "name: llama"
    assert "DCGM_FI_DEV_GPU_UTIL" in lines[found["TL054"]["line"] - 1]
    assert found["TL052"]["place"] == "ScaledObject llama"
    assert "currentReplicasIfHigher" in found["TL052"]["fix"]


def test_checks_of_scalers_can_be_disabled(tmp_path: Path) -> None:
    text = yaml.safe_dump(without(scaled_object(), "spec", "fallback"))
    assert ids(tmp_path, text, "--disable", "TL052") == []


def test_autoscalers_on_resources_are_not_checked(tmp_path: Path) -> None:
    one = autoscaler()
    one["spec"] = {"metrics": [{"type": "Resource", "resource": {"name": "cpu"}}]}
    (tmp_path / "web").mkdir()
    for name, each in (("hpa", one), ("keda", scaled_object())):
        (tmp_path / "web" / f"{name}.yaml").write_text(yaml.safe_dump(each))
    done = CliRunner().invoke(lint, [str(tmp_path / "web")], standalone_mode=False)
    assert (done.return_value, done.exception) == (0, None)


def test_generated_scalers_have_no_findings(tmp_path: Path) -> None:
    folder = Path(__file__).parent.parent / "examples/chat/autoscaling"
    for path in sorted(folder.iterdir()):
        if "drain-patch" not in path.name:
            assert ids(tmp_path, path.read_text()) == []
