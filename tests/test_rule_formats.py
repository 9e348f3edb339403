"""Rule files in the formats of Prometheus, its operator and Mimir; routes for Alertmanager."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import _jsonnet
import pytest
from service_example import example, objective

import alerts
from alerts.formats import FORMATS, MOST_BYTES, Options
from slos.model import Alerting, Overrides, PolicyStep, Tier
from tests import libyaml
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
DURATION = re.compile(r"0|(\d+y)?(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?")


def parsed(text: str) -> Any:
    return libyaml.load(text)


def made(options: Options, **fields: object) -> dict[str, Any]:
    files = alerts.files(example(**fields), source="slo.yaml", version="0.1.0", options=options)
    return {Path(path).name: parsed(text) for path, text in files.items()}


def effective(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every rule with the labels that its series have in the end."""
    return [
        {**rule, "labels": {**group.get("labels", {}), **rule.get("labels", {})}}
        for group in groups
        for rule in group["rules"]
    ]


def test_every_format_has_the_same_rules() -> None:
    files = made(ALL)
    for kind in ("", ".causes"):
        groups = files[f"chat{kind}.rules.yaml"]["groups"]
        assert groups
        assert files[f"chat{kind}.prometheusrule.yaml"]["spec"]["groups"] == groups
        mimir = files[f"chat{kind}.mimir.yaml"]
        assert mimir["namespace"] == "chat"
        assert effective(mimir["groups"]) == effective(groups)


def test_operator_resource_matches_its_definition() -> None:
    resource = made(ALL)["chat.prometheusrule.yaml"]
    assert set(resource) == RESOURCE
    assert resource["apiVersion"] == "monitoring.coreos.com/v1"
    assert resource["kind"] == "PrometheusRule"
    assert resource["metadata"] == {
        "name": "tokenslo-chat",
        "namespace": "monitoring",
        "labels": {"release": "prometheus"},
    }
    names = [group["name"] for group in resource["spec"]["groups"]]
    assert len(set(names)) == len(names)
    for group in resource["spec"]["groups"]:
        assert {"name", "rules"} <= set(group) <= GROUP
        assert DURATION.fullmatch(group["interval"])
        for rule in group["rules"]:
            assert {"expr"} <= set(rule) <= RULE
            assert DURATION.fullmatch(rule.get("for", "0"))
            assert all(isinstance(value, str) for value in rule.get("annotations", {}).values())
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
    shared, *of_objectives = lifted
    assert shared["labels"] == {"service": "chat"}
    assert all({"service", "slo"} <= set(group["labels"]) for group in of_objectives)
    assert not [
        rule for group in lifted for rule in group["rules"] if "slo" in rule.get("labels", {})
    ]


@cache
def large() -> dict[str, str]:
    """Return the operator's files of a service with 25 objectives."""
    objectives = [
        replace(objective("ttft", "0.999"), name=f"o{number}", threshold=Decimal(1 + number))
        for number in range(25)
    ]
    files = alerts.files(example(*objectives), source="s", version="0", options=ALL)
    return {path: text for path, text in files.items() if ".prometheusrule" in path}


def large_rules() -> dict[str, str]:
    return {path: text for path, text in large().items() if "causes" not in path}


def test_large_service_is_split_into_resources_for_kubectl() -> None:
    resources = {path: parsed(text) for path, text in large_rules().items()}
    assert list(resources) == [
        "alerts/chat.prometheusrule.yaml",
        "alerts/chat.prometheusrule-2.yaml",
    ]
    assert [each["metadata"].pop("name") for each in resources.values()] == [
        "tokenslo-chat",
        "tokenslo-chat.2",
    ]
    same = {"namespace": "monitoring", "labels": {"release": "prometheus"}}
    assert all(each["metadata"] == same for each in resources.values())
    groups = [group["name"] for each in resources.values() for group in each["spec"]["groups"]]
    assert len(groups) == len(set(groups)) == 26
    for each in resources.values():
        kept = json.dumps(each)  # what `kubectl apply` writes into an annotation of 256 KiB
        assert len(re.sub("[<>&]", "uXXXX ", kept).encode()) < MOST_BYTES


def test_cause_names_at_most_some_objectives() -> None:
    last = large()["alerts/chat.causes.prometheusrule.yaml"]
    explained = re.findall("explains: (.*)", last)
    assert explained
    assert all(text.endswith(", o19 and 5 more") for text in explained)


def test_no_group_exceeds_mimirs_rule_limit() -> None:
    steps = tuple(PolicyStep(Decimal(step) / 10, "slow down") for step in range(1, 11))
    groups = made(ALL, policy=steps, window=Decimal(90 * 86_400))["chat.mimir.yaml"]["groups"]
    assert 15 < max(len(group["rules"]) for group in groups) <= 20


def test_no_label_is_dropped_by_deduplication() -> None:
    """Thanos and Mimir distinguish replicas and tenants by these, and drop them."""
    taken = {"cluster", "prometheus", "receive", "replica", "tenant_id", "__replica__"}
    labels = {
        name
        for rule in effective(made(Options())["chat.rules.yaml"]["groups"])
        for name in rule["labels"]
    }
    assert "service" in labels
    assert not {name for name in labels if name in taken or name.endswith("_replica")}


def test_tests_are_generated_with_the_prometheus_format() -> None:
    files = alerts.files(example(), source="s", version="0", options=Options(("operator",)))
    for name in ("chat.test.yaml", "chat.windows.test.yaml"):
        for rule_file in parsed(files[f"alerts/{name}"])["rule_files"]:
            assert rule_file.startswith("tested/")
            assert parsed(files[f"alerts/{rule_file}"])["groups"]
    assert not [path for path in files if path == "alerts/chat.rules.yaml"]
    assert not [name for name in made(Options()) if "tested" in name]


def test_routes_match_the_page_and_ticket_labels_of_the_file() -> None:
    alerting = Alerting(page=Tier({"severity": "p1", "team": "x"}), ticket=Tier({}))
    route, causes = made(Options(), alerting=alerting)["chat.route.yaml"]["routes"]
    assert (causes["receiver"], causes["matchers"]) == (
        "chat-ticket",
        ['cause!=""', 'model="llama"', 'namespace="prod"'],
    )
    assert [(one["receiver"], one["matchers"]) for one in causes["routes"]] == [
        ("chat-page", ['severity="p1"', 'team="x"'])  # a hang pages
    ]
    assert route["matchers"] == ['service="chat"', 'slo!=""']
    assert route["group_by"] == ["service", "slo"]
    # Without labels of their own, tickets take the route of the service.
    assert [(one["receiver"], one["matchers"]) for one in route["routes"]] == [
        ("chat-page", ['severity="p1"', 'team="x"'])
    ]


def test_objectives_with_tiers_of_their_own_have_routes_of_their_own() -> None:
    own = Overrides(ticket=Tier({"severity": "low"}))
    templated = Overrides(page=Tier({"severity": "{{ $labels.model }}"}))
    objectives = (
        objective("itl"),
        replace(objective("ttft"), alerting=own),
        replace(objective("e2e"), alerting=own),
        replace(objective("queue"), alerting=templated),
    )
    files = alerts.files(example(*objectives), source="slo.yaml", version="0")
    route, _ = parsed(files["alerts/chat.route.yaml"])["routes"]
    assert [(one["receiver"], one["matchers"]) for one in route["routes"]] == [
        ("chat-page", ['slo=~"ttft|e2e"', 'severity="critical"']),
        ("chat-ticket", ['slo=~"ttft|e2e"', 'severity="low"']),
        ("chat-ticket", ['slo="queue"', 'severity="warning"']),
        ("chat-page", ['severity="critical"']),
        ("chat-ticket", ['severity="warning"']),
    ]
    inhibit = files["alerts/chat.inhibit.yaml"]
    assert "cause" not in inhibit.partition("inhibit_rules")[2], "a page is sent with its causes"


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


def test_command_writes_the_requested_formats(slo: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    formats = (
        *("--format", "operator, mimir", "--namespace", "m"),
        *("--label", "release=a.b", "--label", "example.com/team=", "--label", "release=a.b"),
    )
    assert run(slo, "-o", str(out), "--only", "alerts", *formats) == 0
    assert sorted(path.name for path in (out / "alerts").glob("*.yaml")) == [
        "alertmanager.yaml",
        "alertmanagerconfig.yaml",
        "chat.causes.mimir.yaml",
        "chat.causes.prometheusrule.yaml",
        "chat.inhibit.yaml",
        "chat.mimir.yaml",
        "chat.prometheusrule.yaml",
        "chat.route.yaml",
    ]
    resource = parsed((out / "alerts/chat.prometheusrule.yaml").read_text())
    assert resource["metadata"]["labels"] == {"release": "a.b", "example.com/team": ""}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--format", "thanos"), "'thanos' is not one of prometheus, operator, mimir"),
        (("--label", "release"), "'release' is not NAME=VALUE"),
        (("--format", ""), "'' is not one of prometheus, operator, mimir"),
        (("--min-prometheus", "2.30"), "'2.30' is not one of '2.42', '2.53', '3'"),
        (("--label", "release=a=b"), "'a=b' is not a label value of Kubernetes"),
        (("--label", "release=" + "a" * 64), "is not a label value of Kubernetes"),
        (("--label", "Ex ample/x=a"), "'Ex ample/x' is not a label name of Kubernetes"),
        (("--label", "a=b", "--label", "a=c"), "'a' is given twice with different values"),
        (("--namespace", "Monitoring"), "'Monitoring' is not a namespace"),
        (("--mixin", "--format", "operator"), "add prometheus to --format"),
        (("--mixin", "--only", "runbooks"), "add alerts or dashboards to --only"),
    ],
)
def test_invalid_format_options_are_refused(
    slo: str,
    tmp_path: Path,
    flags: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(slo, "-o", str(tmp_path / "out"), *flags) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_native_histograms_are_refused_before_prometheus_2_53(
    slo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "{histogram: x_seconds, threshold: 1s}"
    latency = f"  - {{name: fast, indicator: {own}, target: 99%, histograms: native}}\n"
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
    assert "histogram_fraction(0,1,sum(last_over_time(x_seconds[30m])" in "".join(rules_.split())


@pytest.mark.parametrize("how", ["histograms: native", "histograms: classic"])
def test_histogram_type_requires_a_histogram(
    slo: str, tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(slo).write_text(SLO.replace("target: 99.9%", f"target: 99.9%, {how}"))
    assert run(slo, "-o", str(tmp_path / "out")) == 2
    assert "histograms: availability is counted from no histogram. Fix: delete it." in (
        capsys.readouterr().err
    )


EVERY_FORMAT = ("--format", ",".join(FORMATS))


@pytest.mark.parametrize(
    "flags",
    [
        ("--only", "alerts", *EVERY_FORMAT),
        ("--only", "alerts,dashboards", "--mixin"),
        ("--only", "dashboards", "--mixin"),
        ("--only", "alerts", *EVERY_FORMAT, "--mixin", "--min-prometheus", "3"),
    ],
)
def test_check_reports_every_file_and_writes_nothing(
    slo: str, tmp_path: Path, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    other, out = tmp_path / "other.yaml", tmp_path / "out"
    other.write_text(SLO.replace("chat", "code"))
    command = (slo, str(other), "-o", str(out), *flags)
    assert run(*command, "--check") == 1
    assert not out.exists()
    reported = {
        line[4:] for line in capsys.readouterr().out.splitlines() if line.startswith("+++ ")
    }
    assert run(*command) == 0
    written = {str(path) for path in out.rglob("*") if path.is_file()}
    assert reported == written
    assert run(*command, "--check") == 0
    for path in out.rglob("*.yaml"):
        assert "\n---" not in path.read_text()
    capsys.readouterr()
    other.write_text(SLO.replace("chat", "code").replace("99.9%", "99%"))
    before = {path: Path(path).read_text() for path in written}
    assert run(*command, "--check") == 1
    changed = {line[4:] for line in capsys.readouterr().out.splitlines() if line[:4] == "+++ "}
    assert changed
    assert all(re.search("/code[.-]", path) for path in changed)
    assert before == {str(path): path.read_text() for path in out.rglob("*") if path.is_file()}


def test_further_files_of_a_service_that_became_smaller_are_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    lines = [
        f"  - {{name: o{number}, indicator: ttft, threshold: {number + 1}s, target: 99.9%}}\n"
        for number in range(40)
    ]
    head = SLO[: SLO.index("  - ")]
    file = tmp_path / "slo.yaml"
    file.write_text(head + "".join(lines))
    command = (str(file), "-o", str(out), "--only", "alerts", "--format", "operator")
    assert run(*command) == 0
    second = out / "alerts/chat.prometheusrule-2.yaml"
    ours = out / "alerts/chat.prometheusrule-9.yaml"
    ours.write_text("# written by hand\n")
    assert second.exists()
    file.write_text(head + lines[0])
    capsys.readouterr()
    assert run(*command, "--check") == 1
    assert f"--- {second}\n+++ /dev/null\n" in capsys.readouterr().out
    assert second.exists()
    assert run(*command) == 0
    assert f"removed {second}\n" in capsys.readouterr().out
    assert not second.exists()
    assert ours.exists()


@pytest.mark.parametrize("oldest", ["2.42", "3"])
def test_a_mixin_is_vendored_and_set_like_any_other(slo: str, tmp_path: Path, oldest: str) -> None:
    out = tmp_path / "vendor/chat"
    assert run(slo, "-o", str(out), "--mixin", "--min-prometheus", oldest) == 0
    # Mixins share _config: what another has there stays as it was.
    program = """
        local other = {
          _config+:: { dashboardTags: ['other'], alertLabels: { team: 'other' } },
          prometheusAlerts+:: { groups+: [{ name: 'other', tags: $._config.dashboardTags }] },
        };
        local all = other + (import 'chat/mixin.libsonnet') + {
          _config+:: { tokenslo+: {
            alertLabels: { team: 'a' }, alertAnnotations: { by: 'b' }, dashboardTags: ['mine'],
          } },
        };
        { rules: all.prometheusRules, alerts: all.prometheusAlerts, grafana: all.grafanaDashboards }
    """
    evaluated = json.loads(
        _jsonnet.evaluate_snippet("test", program, jpathdir=[str(tmp_path / "vendor")])
    )
    files = (out / f"alerts/chat{kind}.rules.yaml" for kind in (".causes", ""))
    every = [rule for file in files for rule in effective(parsed(file.read_text())["groups"])]
    others, *groups = evaluated["alerts"]["groups"]
    assert others == {"name": "other", "tags": ["other"]}
    recorded = effective(evaluated["rules"]["groups"])
    assert recorded == [rule for rule in every if "record" in rule]
    assert effective(groups) == [
        {
            **rule,
            "labels": {**rule["labels"], "team": "a"},
            "annotations": {**rule["annotations"], "by": "b"},
        }
        for rule in every
        if "alert" in rule
    ]
    assert {group["interval"] for group in groups} == {"1m"}
    written = {
        path.name: json.loads(path.read_text()) for path in (out / "dashboards").glob("*.json")
    }
    assert len(written) == 8
    for dashboard in written.values():
        dashboard["tags"].append("mine")
    assert evaluated["grafana"] == written
