"""Every object that ``tokenslo generate`` writes, by the strict schema of its kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import dashboards
from tests.kubernetes_objects import adapter_errors, schema_errors
from tokenslo.cli import main

SLO = Path(__file__).parent.parent / "examples/chat/slo.yaml"
VERSIONS = {
    "AlertmanagerConfig": "monitoring.coreos.com/v1alpha1",
    "AnalysisTemplate": "argoproj.io/v1alpha1",
    "ConfigMap": "v1",
    "GrafanaDashboard": "grafana.integreatly.org/v1beta1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "MetricTemplate": "flagger.app/v1beta1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "ScaledObject": "keda.sh/v1alpha1",
}
PATCHES = {"chat.drain-patch.yaml": "Deployment", "chat.flagger-canary.yaml": "Canary"}
"""Parts of an object of the user's."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("generated")
    formats = ["--format", "prometheus,operator,mimir"]
    formats += ["--dashboard-format", ",".join(dashboards.FORMATS), "--compat", "sloth"]
    options = ["--namespace", "prod", "--label", "release=prometheus", *formats]
    with pytest.raises(SystemExit) as end:
        main(["generate", str(SLO), "-o", str(made), "-q", *options])
    assert end.value.code == 0
    return made


def documents(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and content of each YAML document."""
    for path in sorted(folder.rglob("*.yaml")):
        for one in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            yield path.name, one


def test_every_object_is_valid_by_the_strict_schema_of_its_kind(folder: Path) -> None:
    found = [one for name, one in documents(folder) if "kind" in one and name not in PATCHES]
    assert [error for one in found for error in schema_errors(one, "1.33")] == []
    assert {one["kind"]: one["apiVersion"] for one in found} == VERSIONS


def test_every_other_file_is_of_a_program_that_a_test_runs_or_a_patch(folder: Path) -> None:
    """Promtool and amtool check those of ``alerts``, mkdocs and Grafana's SDK the others."""
    others = {name for name, one in documents(folder) if "kind" not in one}
    suffixes = {name.split(".", 1)[1] for name in others if name.startswith("chat.")}
    rules = {f"{part}.{form}" for part in ("autoscaling", "causes", "rollout", "sloth")
             for form in ("rules.yaml", "mimir.yaml")}  # fmt: skip
    assert suffixes == {
        *rules,
        *("rules.yaml", "mimir.yaml", "test.yaml", "causes.test.yaml", "windows.test.yaml"),
        *("route.yaml", "inhibit.yaml", "prometheus-adapter.yaml", "flagger-canary.yaml"),
    }
    rest = {name for name in others if not name.startswith("chat.")}
    assert rest == {"alertmanager.yaml", "tokenslo.yaml"}


def test_nested_routes_are_valid_as_routes(folder: Path) -> None:
    """The definition leaves them open, because it cannot refer to itself."""
    (config,) = (one for _, one in documents(folder) if one.get("kind") == "AlertmanagerConfig")
    routes = config["spec"]["route"]["routes"]
    assert len(routes) > 1
    for route in routes:
        alone = {**config, "spec": {**config["spec"], "route": route}}
        assert list(schema_errors(alone, "1.33")) == []
    wrong = {**config, "spec": {"route": {"group_by": ["slo"]}}}
    [error] = schema_errors(wrong, "1.33")
    assert "'group_by' was unexpected" in error


def test_the_patch_of_the_grace_period_fits_a_deployment(folder: Path) -> None:
    (patch,) = (one for name, one in documents(folder) if name == "chat.drain-patch.yaml")
    pod = patch["spec"]["template"]["spec"]
    labels = {"app": "chat"}
    pods = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "server", "image": "server:1"}], **pod},
    }
    spec = {"selector": {"matchLabels": labels}, "template": pods}
    assert list(schema_errors({**patch, "spec": spec}, "1.33")) == []
    assert set(pod) == {"terminationGracePeriodSeconds"}


def test_rules_of_prometheus_adapter_are_valid_by_its_documented_fields(folder: Path) -> None:
    (found,) = (one for name, one in documents(folder) if name == "chat.prometheus-adapter.yaml")
    assert list(adapter_errors(found)) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"metricQuery": "x"}, "'metricQuery' was unexpected"),
        ({"metricsQuery": ""}, "'' should be non-empty"),
        ({"resources": {"namespaced": "no"}}, "'no' is not of type 'boolean'"),
        ({"name": {"match": "x"}}, "'match' was unexpected"),
        ({"seriesFilters": [{"is": "a", "isNot": "b"}]}, "has too many properties"),
    ],
)
def test_the_schema_of_prometheus_adapter_refuses_other_fields_and_types(
    folder: Path, change: dict[str, Any], problem: str
) -> None:
    (found,) = (one for name, one in documents(folder) if name == "chat.prometheus-adapter.yaml")
    (rule,) = found["externalRules"]
    [error] = adapter_errors({"externalRules": [{**rule, **change}]})
    assert problem in error
