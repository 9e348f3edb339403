"""Report the decision of a gate as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from gates.measurement import ArmLabels
from gates.statistics import Count
from gates.verdict import (
    CriterionEvaluation,
    GateDecision,
    ShareMeasurement,
    UsageMeasurement,
    percent,
)
from slos.text_table import text_table

_COLUMNS = ("criterion", "verdict", "canary", "baseline", "needs")


@dataclass(frozen=True, slots=True)
class Context:
    """What was compared: a service's arms over a window that ended at a time (RFC 3339)."""

    service: str
    arms: ArmLabels
    window: str
    end: str


def as_text(context: Context, decision: GateDecision) -> str:
    """Return the report for people."""
    arms = context.arms
    lines = [
        f"{context.service}: {decision.verdict.value}",
        f"canary {_labels(arms.canary)}, baseline {_labels(arms.baseline)}, "
        f"{context.window} until {context.end}",
        "Bounds are weighted by the prompt classes of all arms together.",
        "",
        *text_table([_COLUMNS, *map(_row, decision.evaluations)]),
        "",
        f"{decision.verdict.value}, because:",
        *(f"  - {reason}" for reason in decision.reasons),
    ]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in labels.items())


def _row(evaluation: CriterionEvaluation) -> tuple[str, ...]:
    measured = evaluation.measurement
    if isinstance(measured, UsageMeasurement):
        shares = tuple(
            "no series" if used is None else f"{percent(used)} used"
            for used in (measured.canary, measured.baseline)
        )
        return evaluation.criterion.name, evaluation.verdict.value, *shares, ""
    needed = "" if evaluation.needed is None else f"{evaluation.needed:,}"
    shares = tuple(map(_share, (evaluation.canary, evaluation.baseline)))
    return evaluation.criterion.name, evaluation.verdict.value, *shares, needed


def _share(count: Count) -> str:
    if not count.total > 0:
        return "no events"
    return f"{percent(count.bad / count.total)} of {count.total:,.0f}"


def as_json(context: Context, decision: GateDecision) -> str:
    """Return the report for scripts."""
    report = {
        "service": context.service,
        "verdict": decision.verdict.value,
        "reasons": list(decision.reasons),
        "canary": dict(context.arms.canary),
        "baseline": dict(context.arms.baseline),
        "window": context.window,
        "end": context.end,
        "criteria": [_criterion(each) for each in decision.evaluations],
    }
    return json.dumps(report, ensure_ascii=False, indent=2) + "\n"


def _criterion(evaluation: CriterionEvaluation) -> dict[str, object]:
    measured = evaluation.measurement
    found: dict[str, object] = {
        "name": evaluation.criterion.name,
        "verdict": evaluation.verdict.value,
        "reasons": list(evaluation.reasons),
    }
    if isinstance(measured, ShareMeasurement):
        return found | {
            "canary_events": _finite(evaluation.canary.total),
            "canary_bad_events": _finite(evaluation.canary.bad),
            "baseline_events": _finite(evaluation.baseline.total),
            "baseline_bad_events": _finite(evaluation.baseline.bad),
            "needed_events": evaluation.needed,
            "class_weights": [
                {"prompt_class": name, "weight": weight} for name, weight in measured.mix.items()
            ],
        }
    return found | {"canary_used": measured.canary, "baseline_used": measured.baseline}


def _finite(value: float) -> float | None:
    """Return a number that JSON can hold."""
    return value if isfinite(value) else None
