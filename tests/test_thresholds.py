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


def test_ratios_and_outcomes_have_none() -> None:
    assert thresholds([service(("kv_headroom", "0.9"), ("availability", None))]) == {}
    assert thresholds([]) == {}
