"""The generated rule, test and inhibition files; their behaviour is tested on Prometheus."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest
from generic_example import generic_plan
from hypothesis import given
from hypothesis import strategies as st
from promql_selectors import FOR_CAUSES, RECORDED, selectors, unknown
from service_example import example, objective

import alerts
from alerts.traffic import InputSeries, Phase, values
from slos.causes import CAUSE_ALERTS
from slos.durations import parse_duration
from slos.generated_yaml import document
from slos.indicators import INDICATORS
from slos.model import Alerting, PolicyStep, Tier
from slos.plan import Plan
from tests import libyaml

EXPECTED = Path(__file__).with_name("expected")


def made(plan: Plan, kind: str, source: str = "slo.yaml") -> str:
    return alerts.files(plan, source=source, version="0.1.0")[f"alerts/chat.{kind}.yaml"]


def groups(plan: Plan) -> list[dict]:
    files = alerts.files(plan, source="slo.yaml", version="0.1.0")
    kinds = ["rules", "causes.rules"] if plan.causes else ["rules"]
    return [
        group
        for kind in kinds
        for group in libyaml.load(files[f"alerts/chat.{kind}.yaml"])["groups"]
    ]


def rules(plan: Plan, kind: str) -> list[dict]:
    return [rule for group in groups(plan) for rule in group["rules"] if kind in rule]


@pytest.mark.parametrize("kind", ["rules", "test", "windows.test", "inhibit"])
def test_generated_file_is_the_expected_one(kind: str) -> None:
    plan = example(objective("availability", target="0.999"))
    expected = EXPECTED / f"chat.{kind}.yaml"
    assert made(plan, kind) == expected.read_text(encoding="utf-8")


def test_every_service_has_its_files() -> None:
    assert list(alerts.files(example(), source="slo.yaml", version="0.1.0")) == [
        "alerts/chat.rules.yaml",
        "alerts/chat.causes.rules.yaml",
        "alerts/chat.inhibit.yaml",
        "alerts/chat.route.yaml",
        "alerts/alertmanager.yaml",
        "alerts/chat.test.yaml",
        "alerts/chat.windows.test.yaml",
        "alerts/chat.causes.test.yaml",
    ]


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("examples/chat/slo.yaml", "examples/chat/slo.yaml"),
        ("/home/me/secret/slo.yaml", "slo.yaml"),
        ("a\n- evil: 1", "a - evil: 1"),
    ],
)
@pytest.mark.parametrize("kind", ["rules", "test", "inhibit"])
def test_generated_files_name_their_source(source: str, named: str, kind: str) -> None:
    text = made(example(), kind, source)
    assert f"# Made by tokenslo 0.1.0 from {named}. Do not edit.\n" in text
    assert isinstance(libyaml.load(text), dict)


def test_every_indicator_yields_valid_promql_over_existing_metrics() -> None:
    for rule in rules(example(), "expr"):
        assert unknown(rule["expr"]) == []


def test_alerts_read_recorded_series_only() -> None:
    for indicator in INDICATORS:
        plan = example(objective(indicator), window=Decimal(90 * 86_400))
        recorded = {rule["record"] for rule in rules(plan, "record")}
        assert recorded <= RECORDED | FOR_CAUSES.keys()
        read = {each.metric for rule in rules(plan, "expr") for each in selectors(rule["expr"])}
        assert {metric for metric in read if metric.startswith("slo:")} <= recorded


def test_labels_of_the_file_are_on_alerts_and_the_target_only() -> None:
    plan = example(labels={"team": "inference"})
    for rule in rules(plan, "record"):
        more = set(rule["labels"]) - {"service", "slo"}
        assert not more or rule["record"] == "slo:target:ratio" or more == {"model", "namespace"}
    assert all(rule["labels"]["team"] == "inference" for rule in rules(plan, "alert"))


def test_labels_distinguish_all_alerts() -> None:
    seen = [(rule["alert"], *rule["labels"].items()) for rule in rules(example(), "alert")]
    assert len(seen) == len(set(seen))


def test_tiers_label_and_annotate() -> None:
    alerting = Alerting(
        causes={"DecodeStuck": "cause", "SignalUnavailable": "cause"},
        page=Tier({"severity": "critical", "team": "a"}, {"summary": "Wake up"}),
        ticket=Tier({"severity": "low"}, {"board": "https://b.example"}),
        cause=Tier({"severity": "note"}),
    )
    tiers = set()
    for rule in rules(example(alerting=alerting), "alert"):
        tier = rule["labels"]["severity"]
        assert rule["labels"].get("team") == ("a" if tier == "critical" else None)
        assert (rule["annotations"]["summary"] == "Wake up") is (tier == "critical")
        assert ("board" in rule["annotations"]) is (tier == "low")
        assert (tier == "note") is ("cause" in rule["labels"]) is ("slo" not in rule["labels"])
        tiers.add(tier)
    assert tiers == {"critical", "low", "note"}


def test_links_are_left_out_where_the_file_gives_none() -> None:
    for rule in rules(example(runbooks="", dashboards=""), "alert"):
        more = {"explains", "causes", "worst_instance"}
        assert set(rule["annotations"]) - more == {"summary", "description"}
    for rule in rules(example(), "alert"):
        name = rule["alert"]
        assert rule["annotations"]["runbook_url"].endswith(f"/{name}.md")
        assert rule["annotations"]["dashboard_url"] == (
            "https://grafana.example.com/d/tokenslo-chat-error-budget?from=now-6h&to=now"
        )


def test_absence_alerts_are_pending_for_5m_and_others_fire_at_once() -> None:
    plan = example(objective("ttft", target="0.999"))
    slo_alerts = [rule for rule in rules(plan, "alert") if "slo" in rule["labels"]]
    assert {(rule["alert"], rule.get("for")) for rule in slo_alerts} == {
        ("ChatTtftErrorBudgetBurn", None),
        ("ChatTtftLowTrafficErrors", None),
        ("ChatTtftErrorBudgetExhausted", None),
        ("ChatTtftMetricAbsent", "5m"),
    }


def alert_kinds(plan: Plan) -> set[str]:
    return {rule["alert"].removeprefix("ChatTtft") for rule in rules(plan, "alert")}


@pytest.mark.parametrize(
    ("disabled", "removed"),
    [
        ("page", set()),
        ("ticket", {"LowTrafficErrors"}),
        ("exhausted", {"ErrorBudgetExhausted"}),
        ("absent", {"MetricAbsent"}),
        ("policy", {"ErrorBudgetPolicy"}),
        ("causes", {planned.alert.name for planned in example(objective("ttft")).causes}),
    ],
)
def test_disabled_alerts_are_not_generated(disabled: str, removed: set[str]) -> None:
    steps = (PolicyStep(Decimal("0.5"), "slow down"),)
    every = alert_kinds(example(objective("ttft"), policy=steps))
    less = Alerting(disable=frozenset({disabled}))
    assert every - alert_kinds(example(objective("ttft"), policy=steps, alerting=less)) == removed


def test_causes_are_named_only_where_they_explain_an_objective() -> None:
    assert example(objective("kv_headroom")).causes
    for planned in example(objective("kv_headroom")).causes:
        assert "kv_headroom" in planned.cause.symptoms
    assert generic_plan().causes == ()
    assert set().union(*(alert.symptoms for alert in CAUSE_ALERTS)) == set(INDICATORS)


def test_a_service_of_one_version_has_no_bad_rollout() -> None:
    names = {planned.cause.name for planned in example(selector={"version": "1"}).causes}
    assert {alert.name for alert in CAUSE_ALERTS} - names == {"BadVersion", "SlowVersion"}


@pytest.mark.parametrize("least", [0, 3, 4])
def test_low_traffic_errors_alert_where_the_guard_hides_them(least: int) -> None:
    plan = example(objective("ttft"), alerting=Alerting(min_bad_events=least))
    assert ("LowTrafficErrors" in alert_kinds(plan)) is (least > 3)


def test_steps_of_a_budget_policy_have_their_texts_and_labels() -> None:
    steps = (PolicyStep(Decimal("0.5"), "slow down"), PolicyStep(Decimal("0.75"), "stop"))
    plan = example(objective("kv_headroom"), policy=steps)
    slo_alerts = [
        rule for rule in rules(plan, "alert") if rule["alert"].endswith("ErrorBudgetPolicy")
    ]
    assert [(rule["labels"]["step"], rule["labels"]["severity"]) for rule in slo_alerts] == [
        ("50%", "warning"),
        ("75%", "warning"),
    ]
    remaining = 'slo:error_budget_remaining:ratio{service="chat",slo="kv-headroom"}'
    for rule, budget_share, text in zip(
        slo_alerts, ("0.5", "0.25"), ("slow down", "stop"), strict=True
    ):
        assert rule["expr"].splitlines()[0] == f"{remaining} <= {budget_share}"
        assert f'Budget policy: "{text}".' in rule["annotations"]["description"]


@pytest.mark.parametrize(("least", "guarded"), [(0, False), (1, False), (2, True), (50, True)])
def test_low_traffic_guard_requires_the_configured_number_of_bad_events(
    least: int, guarded: bool
) -> None:
    plan = example(objective("availability"), alerting=Alerting(min_bad_events=least))
    guards = {
        match[1]
        for rule in rules(plan, "alert")
        if "Budget" in rule["alert"]
        for match in [re.search(r">= (\d+)$", rule["expr"])]
        if match
    }
    assert guards == ({str(least)} if guarded else set())
    assert ("least number of bad events" in made(plan, "windows.test")) is guarded


def test_rule_groups_are_evaluated_within_the_lookback() -> None:
    for group in groups(example()):
        assert 2 * parse_duration(group["interval"]) < 300


def test_group_names_are_unique() -> None:
    plan = example()
    found = [group["name"] for group in groups(plan)]
    assert len(found) == len(set(found)) == len(plan.objectives) + 2


@given(st.integers(1, 99_999))
def test_generated_numbers_have_no_float_noise(share: int) -> None:
    plan = example(objective("availability", target=f"{share}e-5"))
    for kind in ("rules", "test"):
        assert not re.search(r"[0-9]\.[0-9]{12}|[0-9]e-?[0-9]", made(plan, kind), re.IGNORECASE)


def test_generation_is_deterministic() -> None:
    for kind in ("rules", "test", "inhibit"):
        assert made(example(), kind) == made(example(), kind)


texts = st.text(
    st.sampled_from("a1 :#-'\"{}[]|>&*!%@`,?~\\é\n")
    | st.characters(categories=["L", "N", "P", "S"])
)


@given(st.dictionaries(texts, texts | st.integers() | st.lists(texts, max_size=2), min_size=1))
def test_yaml_document_is_loaded_as_written(item: dict[str, object]) -> None:
    text = document("x", {"version": "1.5", "items": [item]}, source="s", version="0")
    assert libyaml.load(text) == {"version": "1.5", "items": [item]}


@pytest.mark.parametrize("word", ["yes", "NO", "on", "Null", "y", "1", "1.5", "1e3", "0x1", ""])
def test_yaml_text_stays_text(word: str) -> None:
    text = document("x", {"word": word, "words": [{word: word}]}, source="s", version="0")
    assert libyaml.load(text) == {"word": word, "words": [{word: word}]}


def test_counters_continue_between_phases() -> None:
    phases = [
        Phase(Decimal(90), Decimal(4)),
        Phase(Decimal(60), Decimal(4), bad=Decimal("0.25")),
        Phase(Decimal(60), None),
        Phase(Decimal(30), Decimal(0)),
    ]
    good, bad = Decimal(1), Decimal(0)
    assert (
        values(InputSeries("x", (), False, good, bad), phases) == "0 4+4x2 15+3x1 stale _x1 18+0x0"
    )
    assert values(InputSeries("x", (), True, bad, good), phases) == "0 0+0x2 1+0x1 stale _x1 0+0x0"


@pytest.mark.parametrize(
    ("error_budget", "results"),
    [({}, "good|bad|shed"), ({"shed": False, "quota": True}, "good|bad|quota")],
)
def test_absent_goodput_is_described_by_its_metric(
    error_budget: dict[str, bool], results: str
) -> None:
    text = made(example(objective("goodput", "0.95"), error_budget=error_budget), "rules")
    described = re.findall(r"Prometheus has no llm_goodput_requests_total\{(.*?)\}", text)
    assert described == [f'objective="chat/goodput",result=~"{results}"']
