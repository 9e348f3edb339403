"""``tokenslo diagnose`` against a fake Prometheus."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from diagnosis_scenarios import answers, fires, recorded_targets
from fake_prometheus import FakePrometheus, Result, serving
from service_example import example, objective

from diagnosis.diagnosis import page
from diagnosis.recorded_plans import recorded_plans
from promql.client import Sample
from runbooks.playbooks import PLAYBOOKS
from slos import names
from slos.model import Objective, Service
from tokenslo.cli import main

PLAN = example(objective("ttft"), objective("availability", "0.999"), runbooks="")
PAGE = "ChatTtftErrorBudgetBurn"
KV_PRESSURE = {"still_burning": 0.4, "waiting": 7, "kv": 0.97, "no_evict_waiting": 7}
URL = "http://prometheus:9090"

Evaluate = Callable[[str], Result]


def run(
    capsys: pytest.CaptureFixture[str], evaluate: Evaluate, *arguments: str, **fields: Any
) -> tuple[int, str, str]:
    with serving(FakePrometheus(evaluate, **fields)) as fake:
        with pytest.raises(SystemExit) as ended:
            main(["diagnose", "--prometheus", fake.url, *arguments])
        out, err = capsys.readouterr()
        code = int(ended.value.code or 0)
        return code, out.replace(fake.url, URL), err.replace(fake.url, URL)


def found(
    capsys: pytest.CaptureFixture[str], evaluate: Evaluate, *arguments: str, **fields: Any
) -> dict[str, Any]:
    code, out, err = run(capsys, evaluate, "--json", *arguments, **fields)
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    return document


def check(document: dict[str, Any], key: str) -> dict[str, Any]:
    (one,) = [each for each in document["checks"] if each["check"] == key]
    return dict(one)


def without_lines(service: Service) -> tuple[object, ...]:
    return (
        service.service,
        service.window,
        dict(service.selector),
        [
            (each.name, each.indicator, each.target, each.threshold, dict(each.clauses))
            for each in sorted(service.objectives, key=_name)
        ],
    )


def _name(objective: Objective) -> str:
    return objective.name


def incident() -> Evaluate:
    return answers(PLAN, KV_PRESSURE, firing=(PAGE, "KvCachePressure"), burn_rate=40)


def test_plan_from_recorded_series_is_that_of_the_file() -> None:
    plan = example()
    (recorded,) = recorded_plans(lambda _: recorded_targets(plan))
    assert without_lines(recorded.service) == without_lines(plan.service)
    assert {alert.name for _, alert in recorded.alerts()} == {
        alert.name for _, alert in plan.alerts()
    }


@pytest.mark.parametrize("option", [(), ("--markdown",)])
def test_report_ends_with_verdict_mitigation_and_page(
    capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
) -> None:
    code, out, err = run(capsys, incident(), PAGE, *option)
    assert (code, err) == (0, "")
    for part in (
        "chat: KV-cache pressure, likely (",
        "ChatTtftErrorBudgetBurn is firing.",
        "KV-cache pressure (layer: KV cache)",
        "First mitigation: ",
        "Playbook: runbooks/chat/playbooks/kv-pressure.md",
    ):
        assert part in out
    assert "\x1b" not in out


def test_diagnosis_names_cause_layer_evidence_and_mitigation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = found(capsys, incident())
    assert document["verdict"] == "likely"
    assert document["firing"] == [PAGE, "KvCachePressure"]
    assert [each["name"] for each in document["objectives"]] == ["ttft"]
    cause = document["causes"][0]
    assert (cause["key"], cause["layer"]) == ("kv_pressure", "KV cache")
    assert cause["page"] == "runbooks/chat/playbooks/kv-pressure.md"
    assert cause["supports"][0] == "no_evict_waiting"
    assert cause["mitigation"]["do"]
    assert abs(sum(each["probability"] for each in document["causes"]) - 1) < 0.01
    assert check(document, "kv")["value"] == '0.97 {instance="10.0.0.1:9464"}'


def test_diagnosis_of_a_file_needs_no_recorded_target(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text(
        "apiVersion: tokenslo/v1\nservice: chat\nselector: {model: llama, namespace: prod}\n"
        "objectives:\n- {name: ttft, indicator: ttft, threshold: 800ms, target: 99%}\n"
        "- {name: availability, indicator: availability, target: 99.9%}\n"
    )
    of_incident = incident()

    def evaluate(expr: str) -> Result:
        assert expr != names.TARGET
        return of_incident(expr)

    assert found(capsys, evaluate, "--slo", str(path))["causes"][0]["key"] == "kv_pressure"


def test_page_is_below_the_runbooks_of_the_file() -> None:
    assert page(example(), "kv_pressure") == (
        "https://runbooks.example.com/chat/playbooks/kv-pressure.md"
    )
    of_alerts = example(runbooks="https://runbooks.example.com/{service}/{alert}")
    assert page(of_alerts, "kv_pressure") == "runbooks/chat/playbooks/kv-pressure.md"


def test_alert_that_does_not_fire_is_diagnosed_with_its_state(
    capsys: pytest.CaptureFixture[str],
) -> None:
    alert = "ChatAvailabilityErrorBudgetBurn"
    code, out, _ = run(capsys, answers(PLAN), alert)
    assert code == 0
    assert out.startswith("chat: no incident\nChatAvailabilityErrorBudgetBurn is not firing.\n")


def test_cause_alert_selects_the_objectives_that_it_explains(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = found(capsys, incident(), "KvCachePressure")
    assert document["alert_state"] == "firing"
    assert [each["name"] for each in document["objectives"]] == ["ttft"]
    keys = [each["check"] for each in document["checks"]]
    steps = [step.check for step in PLAYBOOKS["kv_pressure"].steps]
    assert keys[2:][: len(steps)] == steps


def test_burn_rates_select_the_objectives_where_no_alert_fires(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = found(capsys, answers(PLAN, KV_PRESSURE, burn_rate=3))
    assert [each["name"] for each in document["objectives"]] == ["availability", "ttft"]


def test_objectives_without_data_are_selected_where_none_burns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = answers(PLAN)

    def evaluate(expr: str) -> Result:
        result = whole(expr)
        if expr.startswith("slo:error_ratio:") and not isinstance(result, str):
            return [each for each in result if each.labels.get("slo") != "ttft"]
        return result

    document = found(capsys, evaluate)
    assert [each["name"] for each in document["objectives"]] == ["ttft"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Unknown",), "there is no alert Unknown; the service has ChatAvailability"),
        (("--service", "no"), "there is no service no; known are chat."),
        (("--at", "noon"), "'noon' is no time. Give RFC 3339"),
        (("--at", "2026-05-04T12:00:00"), "has no time zone. Add Z"),
        (("--at", "1h", "--watch"), "--watch follows the present: leave out --at."),
        (("--at", "1h", "--sidecar", "http://x"), "--sidecar reports the present"),
        (("--sidecar", "localhost:9464"), "'localhost:9464' is not an http or https URL."),
        (("--json", "--markdown"), "Give --json or --markdown, not both."),
        (("--slo", "none.yaml"), "none.yaml: cannot be read"),
    ],
)
def test_bad_input_is_one_clear_error(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, incident(), *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_several_services_need_a_choice(capsys: pytest.CaptureFixture[str]) -> None:
    other = example(objective("ttft"), runbooks="")
    renamed = [
        Sample({**each.labels, "service": "search"}, each.value) for each in recorded_targets(other)
    ]
    of_incident = incident()
    firing: list[Sample] = []

    def evaluate(expr: str) -> Result:
        if expr == names.TARGET:
            return [*recorded_targets(PLAN), *renamed]
        if expr.startswith('ALERTS{alertstate="firing"'):
            return firing
        return of_incident(expr)

    code, _, err = run(capsys, evaluate)
    assert code == 2
    assert "no service fires: give --service, one of chat, search." in err
    firing += fires(PLAN, PAGE)
    assert found(capsys, evaluate)["service"] == "chat"
    assert found(capsys, evaluate, PAGE)["service"] == "chat"
    code, _, err = run(capsys, evaluate, "Unknown")
    assert code == 2
    assert "there is no alert Unknown; known are ChatAvailabilityErrorBudgetBurn" in err
    assert "SearchTtftErrorBudgetBurn" in err


def test_rules_without_a_selector_name_the_fix(capsys: pytest.CaptureFixture[str]) -> None:
    old = [
        Sample({name: each.labels[name] for name in ("service", "slo", "indicator")}, each.value)
        for each in recorded_targets(PLAN)
    ]
    code, _, err = run(capsys, lambda _: old)
    assert (code, err) == (
        2,
        "tokenslo: slo:target:ratio of the service chat has no valid label 'selector'. Fix: "
        "generate the rules again with this version, or give the SLO file with --slo.\n",
    )
    code, _, err = run(capsys, lambda _: [])
    assert code == 2
    assert "Prometheus has no slo:target:ratio. Fix: load the rules" in err


def test_prometheus_that_cannot_be_queried_is_exit_code_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", "--prometheus", "http://127.0.0.1:1"])
    assert ended.value.code == 1
    assert "cannot reach Prometheus at http://127.0.0.1:1" in capsys.readouterr().err


def test_prometheus_that_answers_no_query_fails_every_check(
    capsys: pytest.CaptureFixture[str],
) -> None:
    targets = recorded_targets(PLAN)
    queries: list[str] = []

    def evaluate(expr: str) -> Result:
        queries.append(expr)
        return targets if expr == names.TARGET else "no storage"

    code, out, err = run(capsys, evaluate, "--json")
    document = json.loads(out)
    assert (code, document["verdict"]) == (1, "no_data")
    assert {each["verdict"] for each in document["checks"]} == {"failed"}
    assert all(each["reason"].endswith("no storage") for each in document["checks"])
    assert err.endswith("refused the query: no storage\n")
    assert len(queries) < 5  # those of alerts and burn rates, and no check waits for its own


def test_failed_and_missing_checks_are_reported_and_the_rest_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    evaluate = answers(
        PLAN,
        KV_PRESSURE,
        firing=(PAGE,),
        burn_rate=40,
        failing={"arrivals": "too many samples"},
        missing=["retries", "threshold", "unavailable"],
        present=lambda metric: (
            metric not in ("tokenslo_signal_info", "llm_suspected_retries_total")
        ),
    )
    document = found(capsys, evaluate)
    assert document["verdict"] == "likely"
    arrivals = check(document, "arrivals")
    assert arrivals["verdict"] == "failed"
    assert arrivals["reason"].endswith("refused the query: too many samples")
    assert check(document, "retries")["reason"] == "Prometheus has no llm_suspected_retries_total"
    assert check(document, "unavailable")["verdict"] == "no_data"  # no series, so not healthy
    assert check(document, "threshold")["verdict"] == "healthy"  # empty, and its series exist


def test_partial_results_are_sick_or_no_data_but_never_healthy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = found(capsys, incident(), warnings=["store 10.0.0.2 is unreachable"])
    assert check(document, "kv")["verdict"] == "sick"
    assert check(document, "batch")["verdict"] == "no_data"
    assert check(document, "batch")["reason"] == (
        "the result may be partial: store 10.0.0.2 is unreachable"
    )
    assert not [each for each in document["checks"] if each["verdict"] == "healthy"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_result_that_is_no_number_is_no_data(
    capsys: pytest.CaptureFixture[str], value: float
) -> None:
    document = found(capsys, answers(PLAN, {"arrivals": value}))
    assert check(document, "arrivals")["verdict"] == "no_data"
    assert check(document, "arrivals")["reason"] == "the result is not a number"


def test_instances_that_are_all_alike_are_no_bad_instance(
    capsys: pytest.CaptureFixture[str],
) -> None:
    alike = answers(PLAN, {"instances": 0.5})
    for each in found(capsys, alike)["checks"]:
        if each["check"] == "instances":
            assert (each["verdict"], each["reason"]) == ("healthy", "all elements are alike")


def test_at_is_the_evaluation_time_of_every_query(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakePrometheus(incident())) as fake:
        for given, seconds in (("1770000000", 1.77e9), ("2026-02-02T02:40:00Z", 1.77e9)):
            fake.requests.clear()
            with pytest.raises(SystemExit):
                main(["diagnose", "--prometheus", fake.url, "--at", given])
            assert {float(each["time"]) for each in fake.requests} == {seconds}
        fake.requests.clear()
        with pytest.raises(SystemExit):
            main(["diagnose", "--prometheus", fake.url, "--at", "2h"])
        ages = {time.time() - float(each["time"]) for each in fake.requests}
        assert all(7_200 <= age < 7_320 for age in ages)
