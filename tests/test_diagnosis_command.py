"""``tokenslo diagnose`` against a fake Prometheus."""

from __future__ import annotations

import json

import pytest
from fake_prometheus import FakePrometheus, Result, serving
from service_example import example

from alerts.rules import groups
from diagnosis.recorded_plans import recorded_plans
from promql.client import Sample
from slos import names
from slos.model import Objective, Service
from slos.plan import Plan
from tokenslo.cli import main


def recorded_targets(plan: Plan) -> list[Sample]:
    """Return the series of targets that a plan's rules record."""
    rules = [rule for group in groups(plan) for rule in group["rules"]]  # type: ignore[attr-defined]
    return [
        Sample({"__name__": names.TARGET, **rule["labels"]}, float(rule["expr"][7:-1]))
        for rule in rules
        if rule.get("record") == names.TARGET
    ]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", *arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


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


def test_plan_from_recorded_series_is_that_of_the_file() -> None:
    plan = example()
    (found,) = recorded_plans(lambda _: recorded_targets(plan))
    assert without_lines(found.service) == without_lines(plan.service)
    assert {alert.name for _, alert in found.alerts()} == {alert.name for _, alert in plan.alerts()}


def test_diagnosis_without_data_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    plan = example()

    def evaluate(expr: str) -> Result:
        return recorded_targets(plan) if expr == names.TARGET else "too bad"

    with serving(FakePrometheus(evaluate)) as fake:
        code, out, err = run(capsys, "--prometheus", fake.url)
        assert (code, out) == (1, "")
        assert "too bad" in err
        fake.evaluate = lambda expr: recorded_targets(plan) if expr == names.TARGET else []
        code, out, _ = run(capsys, "--prometheus", fake.url, "--json")
    assert code == 0
    assert json.loads(out)["service"] == "chat"
