"""Indicators: what they select and say.  What their rates come to is tested on Prometheus."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from promql_tree import selectors, unknown
from service_example import SUPPORTED, objective

from slos.indicators import INDICATORS, edge_matcher, events, good_sentence
from slos.model import Objective

SELECTOR = {"model": "llama", "cluster": "eu"}
KEYS = [indicator.key for indicator in SUPPORTED]


def expressions(key: str) -> list[str]:
    made = events(objective(key), SELECTOR)
    return [str(expr) for expr in (made.bad, made.total, made.missing, made.uncovered) if expr]


@pytest.mark.parametrize("key", KEYS)
def test_every_selector_is_narrowed_by_the_file(key: str) -> None:
    for expression in expressions(key):
        assert all({"model", "cluster"} <= each.labels for each in selectors(expression))


@pytest.mark.parametrize("key", KEYS)
def test_only_what_the_sidecar_serves_is_asked_for(key: str) -> None:
    assert [unknown(expression) for expression in expressions(key)] == [[]] * len(expressions(key))


@pytest.mark.parametrize("key", KEYS)
def test_counters_are_read_by_their_rates_before_they_are_summed(key: str) -> None:
    made = events(objective(key), SELECTOR)
    for expression in (made.bad, made.total):
        for each in selectors(str(expression)):
            if each.metric.endswith(("_total", "_count", "_bucket")) and each.window:
                assert each.functions == [*each.functions[:-1], "rate"]
                assert ("sum", []) in each.aggregations


def test_dead_requests_count_against_the_first_token_only() -> None:
    metric = "llm_requests_without_first_token_total"
    asking = [key for key in KEYS if any(metric in text for text in expressions(key))]
    assert asking == ["ttft"]


def test_clients_who_leave_have_not_been_failed() -> None:
    made = events(objective("availability"), SELECTOR)
    assert set(re.findall(r"outcome=~\"([^\"]*)\"", str(made.bad))) == {"error|rejected|timeout"}
    assert set(re.findall(r"outcome=~\"([^\"]*)\"", str(made.total))) == {
        "ok|error|rejected|timeout"
    }


def test_headroom_asks_every_half_minute() -> None:
    made = events(objective("sequence_headroom"), {"model": "llama"})
    assert str(made.bad) == (
        'sum(sum_over_time((llm_sequences{model="llama",state="active"} '
        '/ ignoring (state) llm_sequences_max{model="llama"} > bool 0.9)[5m:30s])) / 300'
    )


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
def test_an_edge_is_found_however_it_is_spelled(
    threshold: str, spellings: list[str], others: list[str]
) -> None:
    matcher = edge_matcher(Decimal(threshold))
    pattern = matcher.value if matcher.op == "=~" else re.escape(matcher.value)
    assert all(re.fullmatch(pattern, text) for text in spellings)
    assert not any(re.fullmatch(pattern, text) for text in others)


@pytest.mark.parametrize(
    ("key", "threshold", "sentence"),
    [
        ("ttft", "0.8", "its first token comes within 800ms"),
        ("e2e", "90", "its response is complete within 1m30s"),
        ("kv_headroom", "0.925", "KV-cache utilization is 92.5% or less"),
        ("availability", None, "it is neither failed, rejected nor timed out"),
    ],
)
def test_good_is_said_in_words(key: str, threshold: str | None, sentence: str) -> None:
    value = None if threshold is None else Decimal(threshold)
    assert good_sentence(Objective("x", key, Decimal("0.9"), value)) == sentence


def test_what_cannot_be_measured_yet_says_why() -> None:
    for indicator in INDICATORS.values():
        assert indicator in SUPPORTED or "cannot" in indicator.unsupported
