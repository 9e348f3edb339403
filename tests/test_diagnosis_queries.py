"""Queries of a diagnosis: their number, their time, and the plans that Prometheus records."""

from __future__ import annotations

from decimal import Decimal
from threading import Barrier, Lock

import pytest
from diagnosis_scenarios import answers, recorded_targets
from hypothesis import given, settings
from hypothesis import strategies as st
from service_example import example, objective

from diagnosis.check_results import PARALLEL, Queries
from diagnosis.diagnosis import diagnose
from diagnosis.presence import missing, needed
from diagnosis.recorded_plans import RecordedRulesError, recorded_plans
from promql.client import PrometheusError, Sample
from promql.parse import parse
from slos import names
from slos.model import Objective
from slos.plan import Plan


def test_queries_run_at_most_four_at_once_and_each_once() -> None:
    lock, together = Lock(), Barrier(PARALLEL, timeout=20)
    running = most = 0
    sent: list[str] = []

    def slow(expr: str) -> list[Sample]:
        nonlocal running, most
        with lock:
            sent.append(expr)
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1
        return [Sample({}, 1)]

    queries = Queries(slow, 60)
    exprs = [f"q{n}" for n in range(3 * PARALLEL)]
    assert [*queries.run(exprs * 2)] == exprs
    queries.run(exprs)
    assert sorted(sent) == sorted(exprs)
    assert most == PARALLEL


def test_queries_end_at_the_limit_of_their_time_and_the_diagnosis_goes_on() -> None:
    now = 0.0

    def clock() -> float:
        return now

    def slow(_: str) -> list[Sample]:
        nonlocal now
        now += 20
        return [Sample({}, 1)]

    found = [*Queries(slow, 30, clock).run(["a", "b", "c", "d", "e", "f", "g", "h"]).values()]
    assert found[0] == [Sample({}, 1)]
    assert found[-1] == "not queried: the checks before took 30 s"


def test_slow_prometheus_fails_checks_one_by_one() -> None:
    plan = example(objective("ttft"), runbooks="")
    evaluate = answers(plan, burn_rate=0.5)

    def sometimes(expr: str) -> list[Sample]:
        if "llm_sequences" in expr:
            raise PrometheusError("Prometheus has not answered in 10 s")
        found = evaluate(expr)
        assert not isinstance(found, str)
        return found

    found = diagnose(plan, sometimes)
    failed = {each.key: each.reason for each in found.checks if each.verdict == "failed"}
    assert {"waiting", "batch"} <= {*failed}
    assert {*failed.values()} == {"Prometheus has not answered in 10 s"}
    assert found.verdict == "no_incident"


# What an empty result means


@pytest.mark.parametrize(
    ("expr", "metrics"),
    [
        ("rate(a_total[5m]) / b", [{"a_total"}, {"b"}]),
        ("a or b * 0", [{"a", "b"}]),
        ("a or vector(0)", []),
        ("a unless b", [{"a"}]),
        ("histogram_quantile(0.9, sum by (le) (rate(a_bucket[5m])))", [{"a_count"}]),
        ('ALERTS{cause!=""} and slo:target:ratio', []),
    ],
)
def test_metrics_that_a_query_needs(expr: str, metrics: list[set[str]]) -> None:
    assert [*needed(parse(expr))] == [frozenset(each) for each in metrics]


def test_missing_metrics_are_named_once() -> None:
    assert missing(parse("a / (a + b)"), frozenset("b")) == "a"
    assert missing(parse("a or b"), frozenset()) == "a or b"
    assert missing(parse("a or b"), frozenset("b")) == ""


# Plans of recorded series


def recorded(plan: Plan) -> Plan:
    (found,) = recorded_plans(lambda _: recorded_targets(plan))
    return found


label_values = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1)


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(["model", "namespace", "cluster"]), label_values))
def test_any_selector_is_read_back(selector: dict[str, str]) -> None:
    plan = example(objective("ttft"), selector=selector)
    (found,) = recorded(plan).service.objectives
    assert dict(found.selector) == selector


def test_selectors_histograms_and_other_metrics_of_objectives_are_read_back() -> None:
    own = Objective(
        "own",
        "bad_events",
        Decimal("0.99"),
        queries={"bad": "sum(rate(x_bad[{window}]))", "total": "sum(rate(x[{window}]))"},
    )
    special = Objective(
        "long-prompts", "ttft", Decimal("0.9"), Decimal(2), selector={"model": "other"}
    )
    plan = example(objective("ttft"), special, own, histograms="native")
    service = recorded(plan).service
    found = {each.name: each for each in service.objectives}
    assert dict(service.selects(found["long-prompts"])) == {"model": "other", "namespace": "prod"}
    assert dict(service.selects(found["ttft"])) == {"model": "llama", "namespace": "prod"}
    assert dict(service.selector) == {"namespace": "prod"}
    assert service.native(found["ttft"])
    (classic,) = recorded(example(objective("ttft"))).service.objectives
    assert not classic.histograms
    assert "slo:bad:increase1m" in found["own"].queries["bad"]


@pytest.mark.parametrize(
    ("label", "value"),
    [("selector", "model=llama"), ("selector", '{model=~"a"}'), ("threshold", "fast")],
)
def test_broken_labels_of_a_target_are_one_clear_error(label: str, value: str) -> None:
    (target,) = recorded_targets(example(objective("ttft")))
    broken = Sample({**target.labels, label: value}, target.value)
    with pytest.raises(RecordedRulesError, match=r"of the service chat has no valid label .* Fix:"):
        recorded_plans(lambda expr: [broken] if expr == names.TARGET else [])
