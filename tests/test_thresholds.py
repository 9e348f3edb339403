"""Thresholds of SLO files by signal."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from slos.model import Objective, Service
from slos.thresholds import thresholds


def service(*objectives: tuple[str, str | None]) -> Service:
    return Service(
        "chat.yaml",
        "chat",
        Decimal(28 * 86400),
        tuple(
            Objective(f"objective-{number}", indicator, Decimal("0.95"), text and Decimal(text))
            for number, (indicator, text) in enumerate(objectives)
        ),
    )


def test_seconds_by_signal_in_ascending_order_from_all_files() -> None:
    one = service(("ttft", "0.8"), ("e2e", "30"), ("ttft", "0.25"))
    other = service(("ttft", "0.8"), ("tpot", "0.06"), ("max_gap", "2"))
    assert thresholds([one, other]) == {
        "ttft": (0.25, 0.8),
        "e2e": (30.0,),
        "tpot": (0.06,),
        "max_gap": (2.0,),
    }


def test_clauses_are_thresholds_of_their_signals() -> None:
    file = service(("ttft", "0.8"))
    clauses = {"ttft": Decimal("1.5"), "tpot": Decimal("0.06"), "queue": Decimal(1)}
    goodput = Objective("good", "goodput", Decimal("0.95"), clauses=clauses)
    both = replace(file, objectives=(*file.objectives, goodput))
    assert thresholds([both]) == {"ttft": (0.8, 1.5), "tpot": (0.06,), "queue": (1.0,)}


def test_queries_of_our_own_histograms_have_thresholds_too() -> None:
    ttft, itl = "llm_time_to_first_token_seconds", "llm_inter_token_latency_seconds"
    queries = {
        "good": f'sum(rate({ttft}_bucket{{le="0.7"}}[{{window}}]))',
        "total": f"sum(rate({ttft}_count[{{window}}]))",
    }
    one = Objective("one", "good_events", Decimal("0.9"), queries=queries)
    two = Objective(
        "two", "histogram", Decimal("0.9"), Decimal("0.033"), queries={"histogram": itl}
    )
    several = {"good": f'{ttft}_bucket{{le=~"1|2"}}', "total": 'x_bucket{le="3"}'}
    none = Objective("none", "good_events", Decimal("0.9"), queries=several)
    file = replace(service(), objectives=(one, two, none))
    assert thresholds([file]) == {"ttft": (0.7,), "itl": (0.033,)}


def test_ratios_and_outcomes_have_none() -> None:
    assert thresholds([service(("kv_headroom", "0.9"), ("availability", None))]) == {}
    assert thresholds([]) == {}
