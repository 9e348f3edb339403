"""Selectors and sentences of indicators; their rates are tested on Prometheus."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal

import pytest
from promql_selectors import selectors, unknown
from service_example import objective, service

from slos.events import boundary_matcher
from slos.indicator_events import events, recorded_events
from slos.indicators import INDICATORS, good_sentence, threshold_text
from slos.model import Objective

SERVICE = service(selector={"model": "llama", "cluster": "eu"})
KEYS = list(INDICATORS)


def expressions(key: str) -> list[str]:
    made = events(objective(key), SERVICE)
    return [str(expr) for expr in (made.bad, made.total, made.missing, made.uncovered) if expr]


@pytest.mark.parametrize("key", KEYS)
def test_every_selector_has_the_selector_of_the_file(key: str) -> None:
    for expression in expressions(key):
        for each in selectors(expression):
            has_model = each.metric != "tokenslo_source_up"
            assert {"cluster", *(["model"] if has_model else [])} <= each.labels


@pytest.mark.parametrize("key", KEYS)
def test_indicators_read_only_served_metrics_and_labels(key: str) -> None:
    assert [unknown(expression) for expression in expressions(key)] == [[]] * len(expressions(key))


@pytest.mark.parametrize("key", KEYS)
def test_counters_are_read_by_their_rates_before_they_are_summed(key: str) -> None:
    made = events(objective(key), SERVICE)
    for expression in (made.bad, made.total):
        for each in selectors(str(expression)):
            if each.metric.endswith("_total"):
                assert each.functions[-1] == "rate"
                assert ("sum", []) in each.aggregations


def test_client_disconnects_are_not_failures() -> None:
    made = events(objective("availability"), SERVICE)
    assert set(re.findall(r"outcome=~\"([^\"]*)\"", str(made.bad))) == {
        "error|draining|timeout|truncated|shed"
    }
    assert set(re.findall(r"outcome=~\"([^\"]*)\"", str(made.total))) == {
        "ok|error|draining|timeout|truncated|shed"
    }


def values_of(label: str, expression: str) -> set[str]:
    return set(re.findall(rf'{label}=~?"([^"]*)"', expression))


def test_stream_completion_counts_started_streams_without_disconnects() -> None:
    made = events(objective("stream_completion"), SERVICE)
    assert values_of("phase", str(made.bad)) == {"mid_stream|complete"}
    assert values_of("phase", str(made.total)) == {"mid_stream|complete"}
    assert values_of("outcome", str(made.bad)) == {"error|draining|timeout|truncated|shed"}
    assert values_of("outcome", str(made.total)) == {"ok|error|draining|timeout|truncated|shed"}


def test_disconnects_are_compared_with_successful_requests_only() -> None:
    made = events(objective("disconnects"), SERVICE)
    assert values_of("outcome", str(made.bad)) == {"client_disconnected"}
    assert values_of("outcome", str(made.total)) == {"ok|client_disconnected"}


def test_goodput_selects_its_own_objective() -> None:
    made = events(objective("goodput"), SERVICE)
    for expression in (made.bad, made.total, made.missing):
        selected = [each for each in selectors(str(expression)) if each.metric.startswith("llm_")]
        assert selected
        assert all("objective" in each.labels for each in selected)
        assert values_of("objective", str(expression)) == {"chat/goodput"}
    assert values_of("result", str(made.total)) == {"good|bad|shed"}


def test_headroom_is_evaluated_every_minute() -> None:
    made = recorded_events(objective("sequence_headroom"), service(selector={"model": "llama"}))
    usage = (
        'llm_sequences{model="llama",state="active"} '
        '/ ignoring (state) llm_sequences_max{model="llama"}'
    )
    assert str(made.bad) == f"sum({usage} > bool 0.9)"
    assert str(made.total) == f"count({usage})"


def test_latencies_count_the_events_of_their_threshold() -> None:
    made = recorded_events(objective("ttft"), service(selector={"model": "llama"}))
    of = 'model="llama",signal="ttft",threshold="0.8"'
    events_ = f'llm_slo_events_total{{{of},result=~"good|bad|shed"}}'
    earlier = f"llm_slo_events_total{{{of}}}"
    assert str(made.total) == (
        f"sum(last_over_time({events_}[30m]) - last_over_time({earlier}[30m] offset 1m) >= 0)"
    )
    assert str(made.bad) == str(made.total).replace("good|bad", "bad")


@pytest.mark.parametrize(
    ("service_budget", "own", "outcomes", "results"),
    [
        ({}, {}, "|shed", "bad|shed"),
        ({"shed": False}, {}, "", "bad"),
        ({"quota": True}, {}, "|shed|quota", "bad|shed|quota"),
        ({"shed": False}, {"shed": True, "quota": True}, "|shed|quota", "bad|shed|quota"),
        ({"quota": True}, {"shed": False}, "|quota", "bad|quota"),
    ],
)
def test_the_error_budget_decides_which_refusals_are_bad(
    service_budget: dict[str, bool], own: dict[str, bool], outcomes: str, results: str
) -> None:
    of = service(error_budget=service_budget)
    made = events(replace(objective("availability"), error_budget=own), of)
    failed = f"error|draining|timeout|truncated{outcomes}"
    assert values_of("outcome", str(made.bad)) == {failed}
    assert values_of("outcome", str(made.total)) == {f"ok|{failed}"}
    for indicator in ("ttft", "goodput"):
        made = events(replace(objective(indicator), error_budget=own), of)
        assert values_of("result", str(made.bad)) == {results}
        assert values_of("result", str(made.total)) == {f"good|{results}"}
    latency = events(replace(objective("e2e"), error_budget=own), of)
    assert values_of("result", str(latency.total)) == set()


def test_plain_rules_read_rates() -> None:
    made = recorded_events(objective("availability"), service(rules="plain"))
    assert values_of("outcome", str(made.bad)) == {"error|draining|timeout|truncated|shed"}
    assert str(made.bad).startswith("sum(rate(llm_requests_total{")
    assert str(made.bad).endswith("[5m])) * 60")


@pytest.mark.parametrize(
    ("threshold", "spellings", "others"),
    [
        ("0.8", ["0.8"], ["0.80", "0x8", "8"]),
        ("2.50", ["2.5"], ["2.50", "25"]),
        ("1", ["1", "1.0"], ["1.5", "11", "10", "1.00"]),
        ("10.0", ["10", "10.0"], ["1", "100", "1.0"]),
        ("0.00005", ["0.00005", "5e-05"], ["5e-05s", "0"]),
    ],
)
def test_a_boundary_is_matched_in_every_spelling(
    threshold: str, spellings: list[str], others: list[str]
) -> None:
    matcher = boundary_matcher(Decimal(threshold))
    pattern = matcher.value if matcher.op == "=~" else re.escape(matcher.value)
    assert all(re.fullmatch(pattern, text) for text in spellings)
    assert not any(re.fullmatch(pattern, text) for text in others)


@pytest.mark.parametrize(
    ("key", "threshold", "sentence"),
    [
        ("ttft", "0.8", "its first token comes within 800ms"),
        ("e2e", "90", "its response is complete within 1m30s"),
        ("kv_headroom", "0.925", "KV-cache utilization is 92.5% or less"),
        ("availability", None, "the server completes its response"),
        ("disconnects", None, "its client stays to the end"),
    ],
)
def test_good_sentence_describes_good_events(
    key: str, threshold: str | None, sentence: str
) -> None:
    value = None if threshold is None else Decimal(threshold)
    assert good_sentence(Objective("x", key, Decimal("0.9"), value)) == sentence


@pytest.mark.parametrize(
    ("clauses", "sentence", "text"),
    [
        (
            {"ttft": "0.8"},
            "it does not fail and its first token comes within 800ms",
            "ttft 800ms",
        ),
        (
            {"tpot": "0.06", "max_gap": "2"},
            "it does not fail, its tokens take 60ms or less on average and no gap between its "
            "tokens is longer than 2s",
            "tpot 60ms, max_gap 2s",
        ),
        (
            {"queue": "1", "ttft": "0.8", "e2e": "90"},
            "it does not fail, it is scheduled within 1s, its first token comes within 800ms and "
            "its response is complete within 1m30s",
            "queue 1s, ttft 800ms, e2e 1m30s",
        ),
    ],
)
def test_clauses_are_described_in_the_order_of_the_file(
    clauses: dict[str, str], sentence: str, text: str
) -> None:
    of = {name: Decimal(most) for name, most in clauses.items()}
    goodput = Objective("x", "goodput", Decimal("0.9"), clauses=of)
    assert (good_sentence(goodput), threshold_text(goodput)) == (sentence, text)
