"""Objectives in the sidecar: their events, time slices and status."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from exporter.objectives.objective_status import ObjectiveState, evaluate
from exporter.store.view import View
from slos.model import Objective
from tests.service_example import objective, service
from tests.views import busy, measured, unavailable, view


def judged(shown: View, *objectives: Objective, **fields: object) -> ObjectiveState:
    [state] = evaluate([service(*objectives, **fields)], shown)
    return state


def ttft(threshold: str) -> Objective:
    return replace(objective("ttft"), threshold=Decimal(threshold))


def test_a_threshold_on_a_boundary_has_the_quality_of_its_signal() -> None:
    state = judged(busy(), ttft("0.8"))
    assert (state.model, state.version, state.quality) == ("llama", "1", "estimate")
    assert state.note == (
        "time to first token: whole milliseconds; "
        "not counted: requests without a first token: not reported for this model"
    )
    assert (state.good, state.target_text) == ("its first token comes within 800ms", "99%")


def test_a_threshold_between_boundaries_is_unavailable() -> None:
    state = judged(busy(), ttft("0.3"))
    assert state.quality == "unavailable"
    assert state.note == "300ms is not a bucket boundary of the histogram (100ms, 500ms, 800ms, 2s)"
    assert state.fix == (
        "add the output of `tokenslo server-config slo.yaml` to the model's config.pbtxt and "
        "reload the model"
    )


@pytest.mark.parametrize(
    ("threshold", "fix"),
    [
        ("0.05", "use 100ms as threshold"),
        ("0.3", "use 100ms or 500ms as threshold"),
        ("3", "use 2s as threshold"),
    ],
)
def test_fixed_boundaries_are_offered_as_thresholds(threshold: str, fix: str) -> None:
    first_token = busy().signals[0]._replace(method="vllm_histogram")
    assert judged(view(first_token), ttft(threshold)).fix == fix


def test_a_threshold_on_count_and_sum_is_unavailable() -> None:
    state = judged(busy(), objective("queue"))
    assert state.quality == "unavailable"
    assert state.note.startswith("the source reports only count and sum")
    assert state.fix


def test_an_objective_has_the_quality_of_its_worst_signal() -> None:
    shown = view(measured("sequences_active", 1.0), unavailable("sequences_max", "why", "how"))
    state = judged(shown, objective("sequence_headroom"))
    assert (state.quality, state.note, state.fix) == (
        "unavailable",
        "maximum sequences: why",
        "how",
    )


def test_exact_signals_make_an_exact_objective() -> None:
    state = judged(busy(), objective("kv_headroom"))
    assert (state.quality, state.note) == ("exact", "")


def test_a_selector_without_a_match_is_reported() -> None:
    state = judged(busy(), objective("ttft"), selector={"model": "lama", "cluster": "eu"})
    assert (state.model, state.quality) == ("", "unavailable")
    assert state.note == ("no reported model matches the selector (model=lama, cluster=eu)")
    assert state.fix == "compare the selector with the reported models: llama"


@pytest.mark.parametrize(
    ("results", "quality"),
    [
        ({"good": 0.0}, "exact"),
        ({"good": 0.0, "unknown": 3.0}, "unavailable"),
        ({"good": 1.0, "unknown": 3.0}, "exact"),
        ({"bad": 1.0, "unknown": 3.0}, "exact"),
    ],
)
def test_goodput_is_unavailable_while_no_request_can_be_evaluated(
    results: dict[str, float], quality: str
) -> None:
    def labels(of: str, result: str) -> tuple[tuple[str, str], ...]:
        return (("clause", ""), ("objective", of), ("result", result))

    samples = {labels("chat/goodput", result): count for result, count in results.items()}
    others = {labels("chat/other", "bad"): 9.0, labels("chat/other", "unknown"): 9.0}
    state = judged(view(measured("goodput", {**samples, **others})), objective("goodput"))
    assert state.quality == quality
    if quality == "unavailable":
        assert state.note == "no request so far provided all of ttft, tpot"
        assert state.fix.startswith("remove the clause")


def test_every_selected_model_is_evaluated() -> None:
    shown = view(*(measured("kv_utilization", 0.1, model=name) for name in ("a", "b")))
    states = evaluate([service(objective("kv_headroom"), selector={"cluster": "eu"})], shown)
    assert [state.model for state in states] == ["a", "b"]
