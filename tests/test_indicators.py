"""Indicators: what they select and say.  What their rates come to is tested on Prometheus."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from promql_parser import BinaryExpr, ParenExpr
from promql_tree import selectors, unknown
from service_example import objective, service

from slos.events import edge_matcher
from slos.indicators import INDICATORS, events, good_sentence, threshold_text
from slos.model import Objective
from slos.signals import SIGNALS

SERVICE = service(selector={"model": "llama", "cluster": "eu"})
KEYS = list(INDICATORS)


def expressions(key: str) -> list[str]:
    made = events(objective(key), SERVICE)
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
    made = events(objective(key), SERVICE)
    for expression in (made.bad, made.total):
        for each in selectors(str(expression)):
            if each.metric.endswith(("_total", "_count", "_bucket")) and each.window:
                assert each.functions[-1] in ("rate", "resets", "last_over_time")
                assert ("sum", []) in each.aggregations
                if each.functions[-1] == "last_over_time":  # never for its own value
                    *_, compared, _ = (a for a in each.around if not isinstance(a, ParenExpr))
                    assert isinstance(compared, BinaryExpr)
                    assert str(compared.op) in ("-", "and", "unless", "*")


def test_dead_requests_count_against_the_first_token_only() -> None:
    metric = "llm_requests_without_first_token_total"
    asking = [key for key in KEYS if any(metric in text for text in expressions(key))]
    assert asking == ["ttft"]


def test_clients_who_leave_have_not_been_failed() -> None:
    made = events(objective("availability"), SERVICE)
    assert set(re.findall(r"outcome=~\"([^\"]*)\"", str(made.bad))) == {"error|rejected|timeout"}
    assert set(re.findall(r"outcome=~\"([^\"]*)\"", str(made.total))) == {
        "ok|error|rejected|timeout"
    }


def values_of(label: str, expression: str) -> set[str]:
    return set(re.findall(rf'{label}=~?"([^"]*)"', expression))


def test_a_stream_counts_as_cut_off_only_once_it_had_begun_and_its_client_stayed() -> None:
    made = events(objective("stream_completion"), SERVICE)
    assert values_of("phase", str(made.bad)) == {"mid_stream|complete"}
    assert values_of("phase", str(made.total)) == {"mid_stream|complete"}
    assert values_of("outcome", str(made.bad)) == {"error|rejected|timeout"}
    assert values_of("outcome", str(made.total)) == {"ok|error|rejected|timeout"}


def test_only_what_ran_to_its_end_is_held_against_disconnects() -> None:
    made = events(objective("disconnects"), SERVICE)
    assert values_of("outcome", str(made.bad)) == {"disconnected"}
    assert values_of("outcome", str(made.total)) == {"ok|disconnected"}


def test_goodput_is_that_of_its_own_objective() -> None:
    made = events(objective("goodput"), SERVICE)
    for expression in (made.bad, made.total, made.missing, made.uncovered):
        selected = selectors(str(expression))
        assert all("objective" in each.labels for each in selected)
        assert values_of("objective", str(expression)) == {"chat/goodput"}
    assert values_of("result", str(made.total)) == {"good|bad"}


def test_every_label_that_one_server_may_change_is_ignored() -> None:
    for key in KEYS:
        for signal in INDICATORS[key].signals:
            labels = SIGNALS[signal].labels
            if labels:
                assert f"ignoring ({', '.join(labels)})" in " ".join(expressions(key))


def test_headroom_asks_every_half_minute() -> None:
    made = events(objective("sequence_headroom"), service(selector={"model": "llama"}))
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
        ("disconnects", None, "its client stays to the end"),
    ],
)
def test_good_is_said_in_words(key: str, threshold: str | None, sentence: str) -> None:
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
def test_clauses_are_said_in_the_files_order(
    clauses: dict[str, str], sentence: str, text: str
) -> None:
    of = {name: Decimal(most) for name, most in clauses.items()}
    goodput = Objective("x", "goodput", Decimal("0.9"), clauses=of)
    assert (good_sentence(goodput), threshold_text(goodput)) == (sentence, text)
