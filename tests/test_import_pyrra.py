"""Conversion of Pyrra objectives, with warnings for what is lost."""

from __future__ import annotations

from decimal import Decimal

import pytest
from conversion_folder import Folder

from slos.errors import InvalidFile
from slos.load import load_file

HEAD = """\
apiVersion: pyrra.dev/v1alpha1
kind: ServiceLevelObjective
metadata:
  name: gateway
spec:
  target: '99.5'
  window: 2w
  indicator:
"""

GATEWAY = """\
    apiVersion: pyrra.dev/v1alpha1
    kind: ServiceLevelObjective
    metadata:
      name: gateway
      namespace: edge
      labels: {prometheus: k8s, pyrra.dev/team: edge}
      annotations: {pyrra.dev/runbook: https://example.com/gateway}
    spec:
      description: >-
        Requests through the gateway
        do not fail.
      target: '99.5'
      window: 4w
      performanceOverAccuracy: true
      indicator:
        ratio:
          errors: {metric: 'gateway_requests{code=~"5.."}'}
          total: {metric: gateway_requests}
      alerting: {name: GatewayErrors, absent: false}
    """

OURS = """\
# Converted by tokenslo 0.1.0 from slo.yaml.
apiVersion: tokenslo/v1
service: gateway
window: 28d
labels:
  team: edge
objectives:
  # Line 5, metadata.namespace: is left out: it is the namespace of the rules, not of the service. \
Fix: add labels: {namespace: …} if alerts need it.
  # Line 6, metadata.labels.prometheus: is left out: it only selects the Prometheus that loads \
the rules. Fix: add it to the PrometheusRule with the generated rules.
  # Line 14, spec.performanceOverAccuracy: is left out: long windows are always summed from short \
ones, exactly. Fix: delete it.
  # Line 19, spec.alerting.name: is left out: alerts are named after service and objective. Fix: \
change routes and silences, or set alerting.page.labels after converting.
  - name: errors
    indicator:
      bad: sum(rate(gateway_requests{code=~"5.."}[{window}]))
      total: sum(rate(gateway_requests[{window}]))
    target: '99.5%'
    description: Requests through the gateway do not fail.
    alerting:
      page:
        annotations:
          runbook: https://example.com/gateway
      ticket:
        annotations:
          runbook: https://example.com/gateway
      disable:
        - absent
"""


def test_a_whole_file_is_converted(folder: Folder) -> None:
    done = folder.convert(GATEWAY)
    assert done.stdout == OURS
    assert done.exit_code == 0
    assert len(folder.relative(done.stderr)) == 4


LATENCY = """\
  latency:
      success: {metric: 'x_seconds_bucket{job="a",le="%s"}'}
      total: {metric: 'x_seconds_count{job="a"%s}'}
"""
INDICATORS = {
    "counters": (
        "  ratio: {errors: {metric: 'x_errors_total{a!=\"b\"}'}, total: {metric: x_total}}",
        "errors",
        {"bad": 'x_errors_total{a!="b"}', "total": "x_total"},
        None,
    ),
    "latency": (LATENCY % ("0.05", ""), "latency", {"histogram": 'x_seconds{job="a"}'}, "0.05"),
    "any spelling": (
        (LATENCY % ("1", "")).replace('le="1"', r'le=~"1(\\.0)?"'),
        "latency",
        {"histogram": 'x_seconds{job="a"}'},
        "1",
    ),
    "whole seconds": (LATENCY % ("5.0", ""), "latency", {"histogram": 'x_seconds{job="a"}'}, "5"),
    "latency of some": (
        LATENCY % ("1", ',code="200"'),
        "latency",
        {
            "good": 'sum(rate(x_seconds_bucket{job="a",le=~"1(\\\\.0)?"}[{window}]))',
            "total": 'sum(rate(x_seconds_count{job="a",code="200"}[{window}]))',
        },
        None,
    ),
    "native": (
        "  latencyNative: {latency: 200ms, total: {metric: 'x_seconds{job=\"a\"}'}}",
        "latency",
        {
            "ratio": '1 - histogram_fraction(0, 0.2, sum(rate(x_seconds{job="a"}[{window}])))',
            "weight": 'histogram_count(sum(rate(x_seconds{job="a"}[{window}])))',
        },
        None,
    ),
    "gauge": ("  bool_gauge: {metric: probe_success}", "uptime", {"gauge": "probe_success"}, None),
}


@pytest.mark.parametrize("indicator", INDICATORS)
def test_every_indicator_is_converted(folder: Folder, indicator: str) -> None:
    text, name, queries, threshold = INDICATORS[indicator]
    (service,) = folder.services(f"{HEAD}    {text.lstrip(' ')}")
    (objective,) = service.objectives
    assert (service.service, objective.name, objective.target) == (
        "gateway",
        name,
        Decimal("0.995"),
    )
    assert objective.queries == queries
    assert objective.threshold == (None if threshold is None else Decimal(threshold))


@pytest.mark.parametrize(
    ("alerting", "disable"),
    [
        ("{disabled: true}", {"page", "ticket", "exhausted", "absent"}),
        ("{burnrates: false}", {"page", "ticket", "exhausted"}),
        ("{absent: false, burnrates: true}", {"absent"}),
        ("{disabled: false}", set()),
        ("{}", set()),
    ],
)
def test_disabled_alerts_stay_disabled(folder: Folder, alerting: str, disable: set[str]) -> None:
    text = f"{HEAD}    bool_gauge: {{metric: up}}\n  alerting: {alerting}\n"
    (service,) = folder.services(text)
    assert service.objectives[0].alerting.disable == disable


def test_a_budget_for_each_label_is_kept(folder: Folder) -> None:
    text = f"{HEAD}    bool_gauge: {{metric: up, grouping: [job, instance]}}\n"
    (service,) = load_file(folder.write(text)).services
    assert service.objectives[0].group_by == ("job", "instance")


@pytest.mark.parametrize(
    ("indicator", "why"),
    [
        (
            "bool_gauge: {metric: up, grouping: [job, service, slo]}",
            "generated alerts set service and slo",
        ),
        (
            "latencyNative: {latency: 1s, total: {metric: x_seconds}, grouping: [job]}",
            "the result of histogram_fraction has no label to select by",
        ),
    ],
)
def test_a_budget_for_each_label_without_an_equivalent_is_refused(
    folder: Folder, indicator: str, why: str
) -> None:
    text = f"{HEAD}    {indicator}\n"
    message = (
        f"spec.indicator.{indicator.partition(':')[0]}.grouping: is left out: {why}. "
        "Fix: write an objective for each of its values, or give the label another name."
    )
    assert folder.refusal(text) == [f"slo.yaml:9: {message}"]
    done = folder.convert(text)
    assert done.exit_code == 1
    assert f"# LOST, line 9, {message}" in done.stdout


def test_labels_of_groups_are_text(folder: Folder) -> None:
    (message,) = folder.refusal(f"{HEAD}    bool_gauge: {{metric: up, grouping: [[job]]}}\n")
    assert message.startswith("slo.yaml:9: spec.indicator.bool_gauge.grouping[0]: is a list.")


def test_a_key_without_a_value_is_no_indicator(folder: Folder) -> None:
    (service,) = folder.services(f"{HEAD}    latency: null\n    bool_gauge: {{metric: up}}\n")
    assert service.objectives[0].queries == {"gauge": "up"}


def test_several_objectives_in_a_file_or_list_are_converted(folder: Folder) -> None:
    one = f"{HEAD}    bool_gauge: {{metric: up}}\n"
    names = [each.service for each in folder.services(one + "---\n" + one.replace("gateway", "b"))]
    assert names == ["gateway", "b"]
    listed = (
        "apiVersion: v1\nkind: List\nitems:\n"
        "  - apiVersion: pyrra.dev/v1alpha1\n    kind: ServiceLevelObjective\n"
        "    metadata: {name: a}\n"
        "    spec: {target: 99, window: 1w, indicator: {bool_gauge: {metric: 'up['}}}\n"
    )
    with pytest.raises(InvalidFile) as refused:
        load_file(folder.write(listed))
    message = folder.relative(str(refused.value))[0]
    assert message.startswith(
        "slo.yaml:7: items[0].spec.indicator.bool_gauge.metric: is not PromQL: "
    )


WRONG = """\
    apiVersion: pyrra.dev/v1alpha1
    kind: ServiceLevelObjective
    metadata: {namespace: a}
    spec:
      target: most
      window: 1h
      indicator:
        latency:
          success: {metric: x_bucket}
          total: {}
      alerting: {absent: 3}
    """


def test_all_problems_are_reported_with_line_and_fix(folder: Folder) -> None:
    assert folder.refusal(WRONG) == [
        "slo.yaml:3: metadata.name: is missing. Fix: add name.",
        "slo.yaml:5: spec.target: is not a number. Fix: write a number such as 99.9.",
        "slo.yaml:10: spec.indicator.latency.total.metric: is missing. "
        "Fix: add metric with a selector.",
        "slo.yaml:11: spec.alerting.absent: is neither true nor false. Fix: write true or false.",
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2w", "1h", "spec.window: 1h is not within 1d and 90d."),
        ("2w", "10d12h", "spec.window: 10d12h is not a number of whole days."),
        ("99.5", "100", "spec.target: 100% leaves no error budget."),
        ("gateway", "3", 'metadata.name: "3" is not a name.'),
        ("bool_gauge: {metric: up}", "latency: {}", "spec.indicator.latency.success: is missing."),
        (
            "bool_gauge: {metric: up}",
            LATENCY.strip() % ("1e999999999", ""),
            "spec.indicator.latency.success.metric: has no bucket.",
        ),
        ("bool_gauge: {metric: up}", "{}", "spec.indicator: must have exactly one indicator."),
    ],
)
def test_problems_name_pyrras_fields(folder: Folder, old: str, new: str, message: str) -> None:
    text = f"{HEAD}    bool_gauge: {{metric: up}}\n".replace(old, new)
    assert message in "\n".join(folder.refusal(text))
