"""Measure the arms of a rollout with queries of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING

from gates.criteria import RolloutGate, ShareCriterion, UsageCriterion
from gates.queries import health, increase
from gates.statistics import Count, production_mix
from gates.verdict import GateDecision, Measurement, ShareMeasurement, UsageMeasurement, decide
from promql.expr import Matcher, Vector, aggregate, equal
from slos.queries import Scope
from slos.signals import PROMPT_CLASS

if TYPE_CHECKING:  # generators need no HTTP client
    from promql.client import Sample

EvaluateQuery = Callable[[str], "Iterable[Sample]"]
"""Evaluates a query at one time."""


@dataclass(frozen=True, slots=True)
class ArmLabels:
    """The labels that select the series of each arm."""

    canary: Mapping[str, str]
    baseline: Mapping[str, str]


def measure(
    gate: RolloutGate, arms: ArmLabels, window: str, evaluate: EvaluateQuery
) -> GateDecision:
    """Measure all criteria over the ``window`` before now, and decide."""
    measured: list[Measurement] = []
    for criterion in gate.criteria:
        if isinstance(criterion, ShareCriterion):
            measured.append(_shares(criterion, arms, window, evaluate))
        else:
            measured.append(_usage(gate, criterion, arms, window, evaluate))
    canary, baseline = (
        _one(evaluate(str(aggregate("min", health(_scope(gate, arm, window))))))
        for arm in (arms.canary, arms.baseline)
    )
    return decide(gate, measured, canary, baseline)


def _scope(gate: RolloutGate, arm: Mapping[str, str], window: str) -> Scope:
    return Scope(gate.plan.service.selector, window, equal(arm))


def _shares(
    criterion: ShareCriterion, arms: ArmLabels, window: str, evaluate: EvaluateQuery
) -> ShareMeasurement:
    def count(counter: Vector, arm: Mapping[str, str]) -> dict[str, float]:
        found = evaluate(str(increase(_of_arm(counter, equal(arm)), window, (PROMPT_CLASS,))))
        return {each.labels.get(PROMPT_CLASS, ""): each.value for each in found}

    def classes(arm: Mapping[str, str]) -> dict[str, Count]:
        bad, total = count(criterion.bad, arm), count(criterion.total, arm)
        return {name: Count(bad.get(name, 0.0), value) for name, value in total.items()}

    mix = production_mix(count(criterion.total, {}))
    return ShareMeasurement(classes(arms.canary), classes(arms.baseline), mix)


def _usage(
    gate: RolloutGate,
    criterion: UsageCriterion,
    arms: ArmLabels,
    window: str,
    evaluate: EvaluateQuery,
) -> UsageMeasurement:
    canary, baseline = (
        _one(evaluate(str(aggregate("max", criterion.used(_scope(gate, arm, window))))))
        for arm in (arms.canary, arms.baseline)
    )
    return UsageMeasurement(canary, baseline)


def _one(samples: Iterable[Sample]) -> float | None:
    """Return the value of one sample; None without a number."""
    return next((each.value for each in samples if isfinite(each.value)), None)


def _of_arm(counter: Vector, arm: tuple[Matcher, ...]) -> Vector:
    return replace(counter, matchers=(*counter.matchers, *arm))
