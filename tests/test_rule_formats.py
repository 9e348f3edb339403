"""Rule files in the formats of Prometheus, its operator and Mimir; routes for Alertmanager."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import _jsonnet
import pytest
import yaml
from service_example import example

import alerts
from alerts.formats import FORMATS, Options
from slos.model import Alerting, Tier
from tokenslo.cli import main

ALL = Options(FORMATS, namespace="monitoring", labels={"release": "prometheus"})

# What the operator's resource may have, and which of it must be there (prometheus-operator,
# API reference of monitoring.coreos.com/v1).
RESOURCE = {"apiVersion", "kind", "metadata", "spec"}
GROUP = {
    "name",
    "interval",
    "labels",
    "limit",
    "partial_response_strategy",
    "query_offset",
    "rules",
}
RULE = {"alert", "annotations", "expr", "for", "keep_firing_for", "labels", "record"}


def made(options: Options, **fields: object) -> dict[str, Any]:
    files = alerts.files(example(**fields), source="slo.yaml", version="0.1.0", options=options)
    return {Path(path).name: yaml.safe_load(text) for path, text in files.items()}


def effective(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every rule with the labels that its series have in the end."""
    return [
        {**rule, "labels": {**group.get("labels", {}), **rule.get("labels", {})}}
        for group in groups
        for rule in group["rules"]
    ]


def test_every_format_has_the_same_rules() -> None:
    files = made(ALL)
    groups = files["chat.rules.yaml"]["groups"]
    assert len(groups) > 10
    assert files["chat.prometheusrule.yaml"]["spec"]["groups"] == groups
    assert files["chat.mimir.yaml"] == {"namespace": "chat", "groups": groups}


def test_the_operator_s_resource_is_what_its_definition_allows() -> None:
    resource = made(ALL)["chat.prometheusrule.yaml"]
    assert set(resource) == RESOURCE
    assert resource["apiVersion"] == "monitoring.coreos.com/v1"
    assert resource["kind"] == "PrometheusRule"
    assert resource["metadata"] == {
        "name": "tokenslo-chat",
        "namespace": "monitoring",
        "labels": {"release": "prometheus"},
    }
    for group in resource["spec"]["groups"]:
        assert {"name", "rules"} <= set(group) <= GROUP
        for rule in group["rules"]:
            assert {"expr"} <= set(rule) <= RULE
            assert ("alert" in rule) != ("record" in rule)
            assert all(isinstance(value, str) for value in rule.get("labels", {}).values())
    assert made(Options(("operator",)))["chat.prometheusrule.yaml"]["metadata"] == {
        "name": "tokenslo-chat"
    }


def test_for_prometheus_3_common_labels_are_written_once_and_series_keep_theirs() -> None:
    plain, lifted = (
        made(Options(min_prometheus=release), labels={"team": "a"})["chat.rules.yaml"]["groups"]
        for release in ("2.42", "3")
    )
    assert effective(lifted) == effective(plain)
    assert not [group for group in plain if "labels" in group]
    assert all("service" in group["labels"] for group in lifted)
    assert all(("slo" in g["labels"]) is (g["name"] != "chat/causes") for g in lifted)
    assert not [
        rule for group in lifted for rule in group["rules"] if "slo" in rule.get("labels", {})
    ]


def test_tests_come_with_the_format_that_promtool_reads() -> None:
    assert set(made(Options(("mimir",)))) == {
        "chat.mimir.yaml",
        "chat.inhibit.yaml",
        "chat.route.yaml",
    }
    assert "chat.test.yaml" in made(Options())


def test_routes_tell_pages_and_tickets_apart_by_the_labels_of_the_file() -> None:
    alerting = Alerting(page=Tier({"severity": "p1", "team": "x"}), ticket=Tier({}))
    route, causes = made(Options(), alerting=alerting)["chat.route.yaml"]["routes"]
    assert (causes["receiver"], causes["matchers"]) == (
        "chat-ticket",
        ['service="chat"', 'cause!=""'],
    )
    assert route["matchers"] == ['service="chat"', 'slo!=""']
    assert route["group_by"] == ["service", "slo"]
    # Without labels of their own nothing tells tickets: they take the way of the service.
    assert [(one["receiver"], one["matchers"]) for one in route["routes"]] == [
        ("chat-page", ['severity="p1"', 'team="x"'])
    ]


SLO = """\
apiVersion: tokenslo/v1
service: chat
objectives:
  - {name: availability, indicator: availability, target: 99.9%}
"""


def run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as stopped:
        main(["generate", *arguments])
    return stopped.value.code


@pytest.fixture
def slo(tmp_path: Path) -> str:
    file = tmp_path / "slo.yaml"
    file.write_text(SLO)
    return str(file)


def test_the_command_writes_the_formats_it_is_asked_for(slo: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    formats = ("--format", "operator, mimir", "--label", "release=a=b", "--namespace", "m")
    assert run(slo, "-o", str(out), "--only", "alerts", *formats) == 0
    assert sorted(path.name for path in out.rglob("*.yaml")) == [
        "chat.inhibit.yaml",
        "chat.mimir.yaml",
        "chat.prometheusrule.yaml",
        "chat.route.yaml",
    ]
    resource = yaml.safe_load((out / "alerts/chat.prometheusrule.yaml").read_text())
    assert resource["metadata"]["labels"] == {"release": "a=b"}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--format", "thanos"), "'thanos' is not one of prometheus, operator, mimir"),
        (("--label", "release"), "'release' is not NAME=VALUE"),
        (("--min-prometheus", "2.30"), "'2.30' is not one of '2.42', '2.53', '3'"),
    ],
)
def test_what_it_does_not_know_is_refused(
    slo: str, tmp_path: Path, flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(slo, "-o", str(tmp_path / "out"), *flags) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_native_histograms_are_refused_where_they_cannot_be_relied_on(
    slo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latency = "  - {name: fast, indicator: ttft, threshold: 1s, target: 99%, histograms: native}\n"
    Path(slo).write_text(SLO + latency)
    out = tmp_path / "out"
    assert run(slo, "-o", str(out)) == 2
    assert capsys.readouterr().err == (
        f"{slo}:5: objectives[1].histograms: rules on native histograms cannot be relied on in "
        "Prometheus 2.42, whose promtool cannot test them either. Fix: add --min-prometheus 2.53, "
        "or 3 for classic ones that Prometheus converts.\n"
    )
    assert not out.exists()
    assert run(slo, "-o", str(out), "--min-prometheus", "2.53") == 0
    rules_ = (out / "alerts/chat.rules.yaml").read_text()
    assert "histogram_fraction(0, 1, sum(rate(llm_time_to_first_token_seconds[5m])))" in " ".join(
        rules_.split()
    ).replace("( ", "(").replace(" )", ")")


@pytest.mark.parametrize("how", ["histograms: native", "histograms: classic"])
def test_only_what_has_a_histogram_says_how_it_is_stored(
    slo: str, tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(slo).write_text(SLO.replace("target: 99.9%", f"target: 99.9%, {how}"))
    assert run(slo, "-o", str(tmp_path / "out")) == 2
    assert "histograms: availability is counted from no histogram. Fix: delete it." in (
        capsys.readouterr().err
    )


def test_a_mixin_has_every_rule_and_takes_labels_for_alerts(slo: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(slo, "-o", str(out), "--mixin") == 0
    program = """
        (import 'mixin.libsonnet') + {
          _config+:: { alertLabels: { team: 'a' }, dashboardTags: ['mine'] },
          all:: {
            rules: $.prometheusRules, alerts: $.prometheusAlerts, grafana: $.grafanaDashboards,
          },
        }
    """
    evaluated = json.loads(
        _jsonnet.evaluate_snippet("test", f"({program}).all", jpathdir=[str(out)])
    )
    groups = yaml.safe_load((out / "alerts/chat.rules.yaml").read_text())["groups"]
    every = [rule for group in groups for rule in group["rules"]]
    recorded = [rule for group in evaluated["rules"]["groups"] for rule in group["rules"]]
    assert recorded == [rule for rule in every if "record" in rule]
    told = [rule for group in evaluated["alerts"]["groups"] for rule in group["rules"]]
    assert told == [
        {**rule, "labels": {**rule["labels"], "team": "a"}} for rule in every if "alert" in rule
    ]
    assert {group["interval"] for group in evaluated["alerts"]["groups"]} == {"30s", "1m", "2m"}
    dashboard = json.loads((out / "dashboards/chat.json").read_text())
    dashboard["tags"].append("mine")
    assert evaluated["grafana"] == {"chat.json": dashboard}
