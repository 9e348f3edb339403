"""The SLO language: time slices, groups, policies, owners, selectors and their outputs."""

from __future__ import annotations

import json
import re
from contextlib import chdir
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from language_example import FULL, LEVELS, load

import alerts
from alerts.traffic import groups, inputs
from dashboards import files as dashboard_files
from promql.expr import vector
from runbooks import files as runbook_pages
from slos.errors import InvalidFile
from slos.explain import as_json, as_text, explain
from slos.load import load_file
from slos.model import Alerting, PolicyStep, Service, Tier, TimeSlices
from slos.names import BAD, TOTAL
from slos.plan import Plan, plan
from tests import libyaml
from tokenslo.commands.generate import generate

HEAD = "apiVersion: tokenslo/v1\nservice: chat\n"


def read(folder: Path, text: str) -> Service:
    path = folder / "slo.yaml"
    path.write_text(text)
    return load(path)


def refused(folder: Path, text: str) -> list[str]:
    with pytest.raises(InvalidFile) as error:
        read(folder, text)
    return [str(problem).removeprefix(f"{folder}/slo.yaml:") for problem in error.value.problems]


def planned(folder: Path, objective: str, more: str = "") -> Plan:
    return plan(read(folder, f"{HEAD}{more}objectives:\n  - {{name: up, {objective}}}\n"))


def expressions(of: Plan) -> dict[str, str]:
    """Return recorded expressions by name, each on one line."""
    [rules] = [text for name, text in made(of).items() if name.endswith("chat.rules.yaml")]
    return {
        rule["record"]: " ".join(rule["expr"].split())
        for group in libyaml.load(rules)["groups"]
        for rule in group["rules"]
        if "record" in rule
    }


def made(of: Plan) -> dict[str, str]:
    return alerts.files(of, source="slo.yaml", version="1")


def test_a_file_with_all_keys_is_loaded(tmp_path: Path) -> None:
    service = read(tmp_path, FULL)
    first, up, minutes, *_ = service.objectives
    assert service.policy == (
        PolicyStep(Decimal("0.5"), "No risky rollouts"),
        PolicyStep(Decimal(1), "Reliability work only"),
    )
    assert [step.line for step in service.policy] == [19, 20]
    assert service.alerting.cause == Tier({"severity": "info"})
    assert service.alerting.disable == {"absent", "causes"}
    assert service.selects(first) == {"namespace": "prod", "model": "llama"}
    assert (service.owns(first), service.owns(up)) == ("chat-team", "inference-platform")
    assert (first.group_by, up.group_by) == (("version", "pod"), ("tenant",))
    assert minutes.slices == TimeSlices(Decimal(60), Decimal("0.95"))
    assert first.alerting.of(service.alerting).disable == {"absent", "causes", "ticket"}


def rules_of(folder: Path, text: str) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Generate rules; return them by service and by recorded series or alert."""
    (folder / "slo.yaml").write_text(text)
    command = ["slo.yaml", "-o", str(folder / "out"), "--only", "alerts"]
    with chdir(folder):
        done = CliRunner().invoke(generate, command)
    assert done.exit_code == 0, done.output
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for path in (folder / "out" / "alerts").glob("*.rules.yaml"):
        rules = found.setdefault(path.name.partition(".")[0], {})
        for group in libyaml.load(path.read_text())["groups"]:
            for rule in group["rules"]:
                rules.setdefault(rule.get("alert") or rule["record"], []).append(rule)
    return found


def selected(rules: dict[str, list[dict[str, Any]]], slo: str) -> set[str]:
    """Return the selectors of an objective's total without its own labels."""
    [total] = [rule for rule in rules[TOTAL] if rule["labels"]["slo"] == slo]
    found = re.findall(r"\{(.*?)\}", total["expr"])
    return {re.sub(r",(outcome|le|phase|result)=.*", "", each) for each in found}


def test_selectors_and_labels_of_the_nearest_level_win(
    tmp_path: Path,
) -> None:
    made = rules_of(tmp_path, LEVELS)
    everywhere = 'namespace="prod",cluster="us",model="{}"'
    assert selected(made["chat"], "up") == {everywhere.format("canary")}
    assert selected(made["chat"], "slow") == {
        everywhere.format("chat") + ',signal="ttft",threshold="1"'
    }
    assert selected(made["search"], "up") == {'namespace="prod",cluster="eu",model="any"'}

    def labels(service: str, alert: str) -> set[tuple[str, ...]]:
        names = ("team", "region", "product", "severity")
        return {tuple(rule["labels"][name] for name in names) for rule in made[service][alert]}

    assert labels("chat", "ChatUpErrorBudgetBurn") == {
        ("inference", "us", "canary", "page"),
        ("inference", "us", "tickets", "warning"),
    }
    assert labels("chat", "ChatSlowErrorBudgetExhausted") == {
        ("inference", "us", "chat", "warning")
    }
    assert labels("search", "SearchUpMetricAbsent") == {("inference", "eu", "llm", "critical")}
    assert ("inference", "us", "chat") in {
        tuple(rule["labels"][name] for name in ("team", "region", "product"))
        for rules in made["chat"].values()
        for rule in rules
        if "cause" in rule.get("labels", {})
    }


def test_rules_have_the_alerting_keys_of_the_file(tmp_path: Path) -> None:
    """Check labels, annotations, severities, disabled alerts, policy steps and owners."""
    rules = rules_of(tmp_path, FULL)["chat"]
    first = rules["ChatFirstTokenErrorBudgetBurn"]
    assert {rule["labels"]["severity"] for rule in first} == {"critical"}, "tickets are disabled"
    assert "ChatFirstTokenLowTrafficErrors" not in rules
    assert "ChatUpLowTrafficErrors" in rules
    assert not [name for name in rules if name.endswith(("MetricAbsent", "SLIInconsistent"))]
    assert not [rule for each in rules.values() for rule in each if "cause" in rule["labels"]]
    for rule in first:
        own = {"team": "inference", "product": "chat", "pager": "chat", "slo": "first-token"}
        assert own.items() <= rule["labels"].items()
        annotations = {"chat": "#inference", "note": "{{ $value }}"}
        assert annotations.items() <= rule["annotations"].items()
        assert rule["expr"].rstrip().endswith(">= 3"), "the objective's own min_bad_events"
    up = rules["ChatUpErrorBudgetBurn"]
    assert [rule["labels"]["severity"] for rule in up] == ["critical"] * 2 + ["warning"] * 2
    assert ["chat" in rule["annotations"] for rule in up] == [True] * 2 + [False] * 2
    assert up[0]["expr"].rstrip().endswith(">= 5")
    steps = {
        rule["labels"]["step"]: rule["annotations"] for rule in rules["ChatUpErrorBudgetPolicy"]
    }
    assert list(steps) == ["50%", "100%"]
    for step, text in {"50%": "No risky rollouts", "100%": "Reliability work only"}.items():
        assert f'Budget policy: "{text}"' in steps[step]["description"]
    owners = {rule["labels"]["slo"]: rule["labels"]["owner"] for rule in rules["slo:target:ratio"]}
    assert owners.pop("first-token") == "chat-team"
    assert set(owners.values()) == {"inference-platform"}


def test_a_service_inherits_the_keys_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text(LEVELS)
    chat, search = load_file(path).services
    assert (chat.owner, search.owner) == ("platform", "search-team")
    assert (chat.window, search.window) == (7 * 86_400, 30 * 86_400)
    assert (chat.description, search.description) == ("Talks", "")
    assert chat.policy == search.policy == (PolicyStep(Decimal(1), "All hands"),)
    assert (chat.line, search.line) == (12, 24)
    # One alerting replaces the other: they are not merged.
    assert (chat.alerting.min_bad_events, search.alerting.min_bad_events) == (10, 3)
    assert search.alerting.page == Alerting().page
    assert {each.runbooks for each in (chat, search)} == {"https://wiki.example.com/{service}"}


def test_shared_keys_work_in_jsonnet(tmp_path: Path) -> None:
    written, made = tmp_path / "slo.yaml", tmp_path / "slo.jsonnet"
    written.write_text(LEVELS)
    made.write_text(f"local shared = {json.dumps(libyaml.load(LEVELS))};\nshared {{ }}")
    for one, other in zip(load_file(written).services, load_file(made).services, strict=True):
        lineless = [replace(each, line=0) for each in one.objectives]
        assert replace(one, file=str(made), objectives=tuple(lineless)) == replace(
            other, policy=one.policy
        )


OF_FILES = {
    "services: []\n": ["2: services: has no service. Fix: add one."],
    "services: {chat: {}}\n": ["2: services: is a mapping. Fix: write a list of services."],
    "service: chat\nservices: [7]\n": [
        "2: service: is not a known key. Fix: write services.",
        "3: services[0]: is a number. Fix: write a mapping with the keys service, owner, "
        "description, selector, window, labels, runbooks, dashboards, histograms, rules, "
        "prompt_classes, objectives, alerting, error_budget, budget_policy, rollout, autoscaling, "
        "quotas.",
    ],
    "selector: {le: '1', tenant: a}\nwindow: 7\nservices:\n  - service: chat\n  - service: chat\n"
    "    objectives: [{name: up, indicator: ttft, threshold: 1s, target: 9%}]\n": [
        "2: selector.le: is the bucket label of histograms. Fix: delete it.",
        "3: window: 7 has no unit. Fix: write a rolling window from 1d to 90d, such as 28d.",
        "5: services[0].objectives: is missing. "
        "Fix: add objectives: [{name: …, indicator: …, target: …}].",
        '6: services[1].service: "chat" is also the service of line 5 of this file. '
        "Fix: give every service a name of its own.",
        "7: services[1].objectives[0].indicator: ttft is not counted by tenant, but the selector "
        "names one. Fix: use one of availability, stream_completion, disconnects, goodput.",
    ],
    "labels: {team: x}\nservices:\n  - service: chat\n"
    "    objectives: [{name: up, indicator: availability, target: 9%, group_by: [team]}]\n": [
        '5: services[0].objectives[0].group_by[0]: "team" is also a label that alerts are given. '
        "Fix: rename that one."
    ],
}


@pytest.mark.parametrize(("text", "expected"), OF_FILES.items())
def test_problems_of_shared_keys_are_reported_once(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text(f"apiVersion: tokenslo/v1\n{text}")
    with pytest.raises(InvalidFile) as error:
        load_file(path)
    assert str(error.value).replace(f"{path}:", "").splitlines() == expected


UP = "name: up, indicator: availability, target: 99%"
REFUSED = {
    "time_slices: {window: 2m, target: 95%}": (
        "time_slices.window: slices of 2m do not fill the 5m over which events are recorded. "
        "Fix: write 1m or 5m."
    ),
    "time_slices: {window: 1m, target: 100%}": (
        "time_slices.target: 100% is what no rate can show. "
        "Fix: write a percentage below 100%, such as 95%."
    ),
    "time_slices: {window: 1m}": "time_slices.target: is missing. Fix: add target: 95%.",
    "group_by: tenant": "group_by: is text. Fix: write a list of labels, such as [tenant].",
    "group_by: []": ("group_by: has no label. Fix: name one, such as tenant, or delete it."),
    "group_by: [outcome]": (
        "group_by[0]: is a label that indicators sum over. Fix: group by another label."
    ),
    "group_by: [severity]": (
        "group_by[0]: differs between pages and tickets. "
        "Fix: set it in the labels of alerting.page and alerting.ticket."
    ),
    "group_by: [pod, pod]": ('group_by[1]: "pod" is listed twice. Fix: delete one of them.'),
    "group_by: [team], labels: {team: x}": (
        'group_by[0]: "team" is also a label that alerts are given. Fix: rename that one.'
    ),
    "group_by: [pager], alerting: {page: {labels: {pager: x}}}": (
        'group_by[0]: "pager" is also a label that alerts are given. Fix: rename that one.'
    ),
    "labels: {team: 'a{{ $value }}'}": (
        'labels.team: holds "{{", which starts a template in alerts. Fix: write it without braces.'
    ),
    "alerting: {page: {labels: {team: '{{ $value }}'}}}": (
        'alerting.page.labels.team: holds "{{", which starts a template in alerts. '
        "Fix: write it without braces."
    ),
    "alerting: {disable: [causes]}": (
        'alerting.disable[0]: "causes" is not a kind of alert. '
        "Fix: use one of page, ticket, exhausted, absent, policy."
    ),
}


@pytest.mark.parametrize(("key", "problem"), REFUSED.items())
def test_invalid_keys_of_objectives_are_refused(tmp_path: Path, key: str, problem: str) -> None:
    text = f"{HEAD}objectives:\n  - {{{UP}, {key}}}\n"
    assert refused(tmp_path, text) == [f"4: objectives[0].{problem}"]


OF_INDICATORS = {
    "indicator: ttft, threshold: 1s, group_by: [tenant]": (
        "indicator: ttft is not counted by tenant, but group_by lists it. Fix: use one of "
        "availability, stream_completion, disconnects, goodput."
    ),
    "indicator: kv_headroom, threshold: 90%, time_slices: {window: 1m, target: 9%}": (
        "time_slices: kv_headroom is counted in time slices anyway. Fix: delete it."
    ),
    "indicator: {gauge: door}, time_slices: {window: 1m, target: 9%}": (
        "time_slices: a gauge is counted in time slices anyway. Fix: delete it."
    ),
    'indicator: {bad: "sum(rate(x[5m]))", total: "sum(rate(y[5m]))"}, '
    "time_slices: {window: 1m, target: 9%}": (
        "time_slices: needs {window} in every query, to cover one slice each. "
        "Fix: write {window} into each query, as in [{window}]."
    ),
    'indicator: {bad: "x:rate * 1", total: x_total}, group_by: [shop]': (
        "group_by: the queries of this indicator are not plain counters, so their labels are "
        "unknown. Fix: give plain selectors, or write one objective for each group."
    ),
    "indicator: {bad: x_total, total: y_total}, selector: {shop: a}": (
        "selector: is not added to queries of your own. Fix: write its labels into the queries."
    ),
}


@pytest.mark.parametrize(("keys", "problem"), OF_INDICATORS.items())
def test_keys_that_an_indicator_does_not_support_are_refused(
    tmp_path: Path, keys: str, problem: str
) -> None:
    text = f"{HEAD}objectives:\n  - {{name: a, target: 99%, {keys}}}\n"
    assert refused(tmp_path, text) == [f"4: objectives[0].{problem}"]


def test_every_wrong_step_of_a_policy_is_named_at_once(tmp_path: Path) -> None:
    steps = """\
budget_policy:
  - {when: 50, do: "a"}
  - {when: 60%, do: "a\\tb"}
  - {when: 70%}
  - {when: 80%, do: b}
  - {when: 80.0%, do: c}
  - {when: 120%, do: d}
"""
    wanted = "the share of the budget that is spent at this step, such as 50%"
    assert refused(tmp_path, f"{HEAD}{steps}objectives: [{{{UP}}}]\n") == [
        f"4: budget_policy[0].when: 50 has no unit. Fix: write {wanted}.",
        "5: budget_policy[1].do: holds line breaks or control characters. "
        'Fix: write one line; ">" joins lines.',
        "6: budget_policy[2].do: is missing. Fix: add do: no risky rollouts.",
        "8: budget_policy[4].when: is the share of an earlier step as well. Fix: join the two.",
        f"9: budget_policy[5].when: 120% is above 100%. Fix: write {wanted}.",
    ]


def test_jsonnet_is_refused_by_file_and_field(tmp_path: Path) -> None:
    path = tmp_path / "slo.jsonnet"
    path.write_text(
        "{apiVersion: 'tokenslo/v1', service: 'chat', objectives: [{name: 'up', "
        "indicator: 'availability', target: '9%', group_by: ['le']}]}"
    )
    with pytest.raises(InvalidFile) as error:
        load(path)
    assert str(error.value) == (
        f"{path}: objectives[0].group_by[0]: is a label that indicators sum over. "
        "Fix: group by another label."
    )


@pytest.mark.parametrize("days", [1, 2, 6, 7, 90])
def test_windows_of_one_to_90_days_never_page_within_budget(tmp_path: Path, days: int) -> None:
    of = planned(tmp_path, "indicator: availability, target: 99.9%", f"window: {days}d\n")
    for pair in of.objectives[0].pairs:
        assert pair.burn_rate > 1 or pair.tier == "ticket", "no page within budget"


def test_the_slice_before_each_evaluation_is_recorded(tmp_path: Path) -> None:
    slices = "time_slices: {window: 1m, target: 95%}"
    of = planned(
        tmp_path, f"indicator: {{bad: bad_total, total: all_total}}, target: 99%, {slices}"
    )
    recorded = expressions(of)
    rate = "sum(rate({}_total[1m]))"
    assert recorded[TOTAL] == f"{rate.format('all')} * 0 + 1"
    assert f"> bool {rate.format('all')} * 0.05" in recorded[BAD]


def test_slices_are_explained(tmp_path: Path) -> None:
    slices = "time_slices: {window: 5m, target: 95%}"
    of = planned(tmp_path, f"indicator: availability, target: 99%, {slices}")
    text = as_text(of, explain(of))
    assert "up: 99% of 5m slices are good, that is: at least 95% of the requests in it" in text
    assert "budget: 1%, 80 of 8,064 5m slices, or 6h43m of total outage" in text


def test_groups_are_recorded_and_named_in_alerts(tmp_path: Path) -> None:
    of = planned(tmp_path, "indicator: availability, target: 99%, group_by: [tenant, pod]")
    recorded = expressions(of)
    for rate in (BAD, TOTAL):
        assert recorded[rate].startswith("sum by (tenant, pod) (")
    text = "\n".join(made(of).values())
    assert "chat up (tenant {{ $labels.tenant }}, pod {{ $labels.pod }}): " in text
    assert (
        'printf `slo:error_budget_remaining:ratio{service="chat",slo="up",tenant=%q,pod=%q}` '
        "$labels.tenant $labels.pod | query"
    ) in " ".join(text.split())
    absent = (
        'absent(sum(llm_tenant_requests_total{outcome=~"error|draining|timeout|truncated|shed"}))'
    )
    assert absent in text, "a metric that is wholly absent has no group"


def test_groups_of_a_sum_of_rates_are_kept(tmp_path: Path) -> None:
    own = "{bad: 'sum(rate(x_total[{window}]))', total: 'sum(rate(y_total[{window}]))'}"
    recorded = expressions(planned(tmp_path, f"indicator: {own}, target: 9%, group_by: [shop]"))
    assert recorded[TOTAL] == (
        "sum by (shop) (last_over_time(y_total[30m]) - last_over_time(y_total[30m] offset 1m) >= 0)"
    )


def test_pages_inhibit_tickets_of_the_same_group_only(tmp_path: Path) -> None:
    of = planned(tmp_path, "indicator: availability, target: 99%, group_by: [tenant]")
    [fragment] = [text for name, text in made(of).items() if name.endswith("inhibit.yaml")]
    first, *_ = libyaml.load(fragment)["inhibit_rules"]
    assert first["equal"] == ["service", "slo", "tenant"]


def test_test_cases_have_a_healthy_group(tmp_path: Path) -> None:
    of = planned(tmp_path, "indicator: availability, target: 99%, group_by: [tenant]")
    [objective] = of.objectives
    assert groups(objective, of.service) == ({"tenant": "one"}, {"tenant": "two"})
    assert {one.healthy for one in inputs(objective, of.service)} == {False, True}
    [tests] = [text for name, text in made(of).items() if name.endswith("chat.test.yaml")]
    assert str(vector("ALERTS", {"service": "chat", "slo": "up", "tenant": "two"})) in tests


def test_a_selected_label_leaves_one_group(tmp_path: Path) -> None:
    keys = "indicator: availability, target: 99%, selector: {version: '2'}, group_by: [version]"
    of = planned(tmp_path, keys)
    assert groups(of.objectives[0], of.service) == ({},)
    assert 'llm_requests_total{version="2"' in "\n".join(made(of).values())


def test_dashboards_show_the_worst_groups(tmp_path: Path) -> None:
    of = planned(tmp_path, "indicator: availability, target: 99%, group_by: [tenant]")
    text = "".join(dashboard_files(of, source="slo.yaml", version="1").values())
    assert "bottomk(20, slo:error_budget_remaining:ratio" in text
    assert '"{{tenant}}"' in text
    assert "min by (service, slo) (slo:error_budget_remaining:ratio" in text


def test_runbooks_and_explanations_name_the_policy_and_the_owner(tmp_path: Path) -> None:
    policy = "budget_policy:\n  - {when: 100%, do: All hands}\n  - {when: 50%, do: No rollouts}\n"
    of = planned(
        tmp_path, "indicator: availability, target: 99%, owner: me, group_by: [pod]", policy
    )
    page = next(
        text
        for name, text in runbook_pages(of, source="slo.yaml", version="1").items()
        if name.endswith("ChatUpErrorBudgetExhausted.md")
    )
    assert "| 50% | No rollouts |\n| 100% | All hands |" in page
    assert "Notify **me**" in page
    assert "Each pod has an objective of its own; an alert's labels name it." in page
    text = as_text(of, explain(of))
    assert text.endswith(
        "budget policy, for each objective:\n  50% spent   No rollouts\n  100% spent  All hands\n"
    )
    assert "  kept for each pod by itself: budget and alerts\n  owned by me\n" in text
    [service] = json.loads(as_json([(of, explain(of))]))
    assert service["budget_policy"][0] == {"spent": 0.5, "do": "No rollouts"}
    assert (service["objectives"][0]["owner"], service["objectives"][0]["group_by"]) == (
        "me",
        ["pod"],
    )


def test_cause_alerts_have_severity_info_by_default() -> None:
    assert replace(Alerting(), min_bad_events=3).cause.labels == {"severity": "info"}
