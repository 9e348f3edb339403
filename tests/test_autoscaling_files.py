"""The ``autoscaling`` of SLO files, and the files that ``tokenslo generate`` makes of it."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_objects import schema_errors
from language_example import load

from promql.query import read_query
from slos import writer
from slos.errors import InvalidFile
from slos.model import Autoscaling
from tokenslo.cli import main

HEAD = """\
apiVersion: tokenslo/v1
service: chat
selector: {model: llama, namespace: prod}
objectives:
  - {name: good, indicator: goodput, clauses: {ttft: 800ms, tpot: 60ms}, target: 95%}
  - {name: up, indicator: availability, target: 99%}
"""
URL = "http://prometheus:9090"
LEAST = f"workload: Deployment/chat, max_replicas: 8, prometheus: '{URL}'"
ALL = (
    f"{LEAST}, min_replicas: 0, waiting: 4, kv_cache: 70%, tokens_in_flight: 50000, "
    "goodput: good, stream_p99: 90m, wake: 'sum(queue_size)'"
)


def written(folder: Path, keys: str | None) -> Path:
    path = folder / "slo.yaml"
    path.write_text(HEAD + ("" if keys is None else f"autoscaling: {{{keys}}}\n"))
    return path


def test_defaults_and_keys_of_autoscaling(tmp_path: Path) -> None:
    assert load(written(tmp_path, None)).autoscaling is None
    assert load(written(tmp_path, LEAST)).autoscaling == Autoscaling("Deployment/chat", 8, URL)
    assert load(written(tmp_path, ALL)).autoscaling == Autoscaling(
        *("Deployment/chat", 8, URL, 0, 4),
        *(Decimal("0.7"), 50_000, "good", Decimal(5400), "sum(queue_size)"),
    )


@pytest.mark.parametrize("keys", [LEAST, ALL])
def test_a_written_autoscaling_is_read_back(keys: str, tmp_path: Path) -> None:
    service = load(written(tmp_path, keys))
    copy = tmp_path / "copy.yaml"
    copy.write_text(writer.text([service]))
    assert load(copy).autoscaling == service.autoscaling


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("max_replicas: 8, prometheus: 'http://p'", "workload: is missing. Fix: add workload: Dep"),
        (LEAST.replace("Deployment/", ""), 'workload: "chat" is not a workload. Fix: write KIND/'),
        (LEAST.replace("8", "0"), "max_replicas: 0 is out of bounds. Fix: write a whole number"),
        (f"{LEAST}, min_replicas: 9", "min_replicas: 9 is above max_replicas, 8. Fix: write at m"),
        (f"{LEAST}, min_replicas: 0", "min_replicas: 0 replicas report no load, so nothing would"),
        (f"{LEAST}, wake: x", "wake: is not needed: min_replicas is 1. Fix: delete it"),
        (f"{LEAST}, min_replicas: 0, wake: 'sum('", "wake: is not PromQL: "),
        (f"{LEAST}, min_replicas: 0, wake: '1'", "wake: gives a range, a number or text, not"),
        (f"{LEAST}, kv_cache: 100%", "kv_cache: nothing can be above 100%. Fix: write a share"),
        (f"{LEAST}, waiting: 0", "waiting: 0 is out of bounds. Fix: write a whole number from 1"),
        (f"{LEAST}, goodput: goof", 'goodput: "goof" is not a goodput objective. Fix: write good'),
        (f"{LEAST}, goodput: up", 'goodput: "up" is not a goodput objective. Fix: use one of good'),
        (f"{LEAST}, stream_p99: 7h", "stream_p99: 7h is above 6h. Fix: write at most 6h"),
        (f"{LEAST}, min_replica: 3", "min_replica: is not a known key. Fix: write min_replicas"),
    ],
)
def test_bad_autoscaling_is_refused_with_line_and_fix(
    keys: str, problem: str, tmp_path: Path
) -> None:
    path = written(tmp_path, keys)
    with pytest.raises(InvalidFile) as refused:
        load(path)
    (found,) = refused.value.problems
    assert str(found).startswith(f"{path}:7: autoscaling.{problem}")


def test_a_leader_worker_set_is_not_scaled_to_zero(tmp_path: Path) -> None:
    path = written(tmp_path, ALL.replace("Deployment", "LeaderWorkerSet"))
    with pytest.raises(InvalidFile) as refused:
        load(path)
    assert "kube-state-metrics does not count" in str(refused.value)


def generate(folder: Path, *options: str) -> int:
    command = ["generate", str(folder / "slo.yaml"), "-o", str(folder / "out"), "-q"]
    with pytest.raises(SystemExit) as end:
        main([*command, "--only", "autoscaling", *options])
    return int(end.value.code or 0)


def made(folder: Path) -> set[str]:
    out = folder / "out"
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}


NAMES = ("keda", "hpa", "prometheus-adapter", "drain-patch")


def test_files_come_and_go_with_the_autoscaling(tmp_path: Path) -> None:
    written(tmp_path, LEAST)
    assert generate(tmp_path, "--check") == 1
    assert made(tmp_path) == set()
    assert generate(tmp_path) == 0
    objects = {f"autoscaling/chat.{name}.yaml" for name in NAMES}
    assert made(tmp_path) == {*objects, "alerts/chat.autoscaling.rules.yaml"}
    assert generate(tmp_path, "--check") == 0
    written(tmp_path, None)
    assert generate(tmp_path) == 0
    assert made(tmp_path) == set()


Objects = dict[str, dict[str, Any]]


def objects_of(folder: Path, keys: str, *options: str) -> Objects:
    written(folder, keys)
    assert generate(folder, *options) == 0
    paths = (folder / "out/autoscaling").iterdir()
    return {path.name.split(".")[1]: yaml.safe_load(path.read_text()) for path in paths}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    return objects_of(tmp_path_factory.mktemp("all"), ALL, "--namespace", "prod", "--label", "a=b")


def test_objects_are_valid_by_strict_schemas(objects: Objects) -> None:
    for name in ("keda", "hpa"):
        assert list(schema_errors(objects[name], "1.33")) == []
        assert objects[name]["metadata"] == {
            "name": "tokenslo-chat",
            "namespace": "prod",
            "labels": {"a": "b"},
        }
    spec = objects["keda"]["spec"]
    wrong = {**objects["keda"], "spec": {**spec, "fallBack": spec["fallback"]}}
    assert list(schema_errors(wrong, "1.33"))


def test_an_empty_result_is_an_error_and_the_fallback_keeps_the_replicas(objects: Objects) -> None:
    spec = objects["keda"]["spec"]
    assert spec["fallback"] == {
        "failureThreshold": 3,
        "replicas": 1,
        "behavior": "currentReplicasIfHigher",
    }
    names = ["waiting", "kv-cache", "tokens-in-flight", "goodput", "wake"]
    assert [each["name"] for each in spec["triggers"]] == names
    for trigger in spec["triggers"]:
        metadata = trigger["metadata"]
        assert read_query(metadata.pop("query")).metrics
        assert metadata == {
            "serverAddress": URL,
            "threshold": "1",
            "ignoreNullValues": "false",
        }


@pytest.mark.parametrize(
    ("duration", "source", "stabilization", "grace"),
    [
        ("stream_p99: 90m", "1h30m, the measured 99th percentile (stream_p99)", 3600, 5460),
        ("stream_p99: 1500ms", "1.5s, the measured 99th percentile (stream_p99)", 300, 62),
        ("", "10m, a default, as stream_p99 and e2e objectives are missing", 600, 660),
    ],
)
def test_scale_down_waits_for_the_longest_stream(
    duration: str, source: str, stabilization: int, grace: int, tmp_path: Path
) -> None:
    made = objects_of(tmp_path, f"{LEAST}, {duration}" if duration else LEAST)
    hpa, keda = made["hpa"]["spec"], made["keda"]["spec"]
    assert hpa["behavior"] == keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert hpa["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == stabilization
    assert keda["cooldownPeriod"] == stabilization
    pod = made["drain-patch"]["spec"]["template"]["spec"]
    assert pod == {"terminationGracePeriodSeconds": grace}
    for name in ("keda", "hpa", "drain-patch"):
        text = (tmp_path / f"out/autoscaling/chat.{name}.yaml").read_text()
        assert source in text.splitlines()[0]


def test_without_a_measurement_the_longest_objective_counts(tmp_path: Path) -> None:
    longest = "  - {name: all, indicator: e2e, threshold: 20m, target: 95%}\n"
    path = written(tmp_path, LEAST)
    path.write_text(path.read_text().replace("autoscaling:", f"{longest}autoscaling:"))
    assert generate(tmp_path) == 0
    patch = (tmp_path / "out/autoscaling/chat.drain-patch.yaml").read_text()
    assert "20m, the longest stream of the objectives (e2e), not measured" in patch
    assert "terminationGracePeriodSeconds: 1260" in patch


def test_the_autoscaler_reads_the_series_that_the_rules_record(
    objects: Objects, tmp_path: Path
) -> None:
    objects_of(tmp_path, ALL)
    rules = yaml.safe_load((tmp_path / "out/alerts/chat.autoscaling.rules.yaml").read_text())
    (group,) = rules["groups"]
    recorded = [rule["labels"] for rule in group["rules"]]
    metrics = [each["external"]["metric"] for each in objects["hpa"]["spec"]["metrics"]]
    assert [each["selector"]["matchLabels"] for each in metrics] == recorded
    (rule,) = objects["prometheus-adapter"]["externalRules"]
    assert {each["name"] for each in metrics} == {rule["name"]["as"]}
    assert {each["record"] for each in group["rules"]} == {rule["seriesQuery"].partition("{")[0]}
    assert rule["metricsQuery"] == "max(<<.Series>>{<<.LabelMatchers>>})"


@pytest.mark.parametrize("kind", ["StatefulSet", "LeaderWorkerSet"])
def test_other_workloads_are_targets(kind: str, tmp_path: Path) -> None:
    made = objects_of(tmp_path, LEAST.replace("Deployment", kind))
    for name in ("keda", "hpa"):
        target = made[name]["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) == (kind, "chat")
        assert target["apiVersion"] == made["drain-patch"]["apiVersion"]
