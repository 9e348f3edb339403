"""Decide on a canary from counts: promote, abort or inconclusive, with every reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from math import isnan

from gates.criteria import (
    LEAST_BAD_EVENTS,
    Criterion,
    RolloutGate,
    ShareCriterion,
    UsageCriterion,
    guard_name,
)
from gates.statistics import (
    Bounds,
    Classes,
    Count,
    bounds,
    least_baseline,
    least_canary,
    least_worse,
    most_worse,
)

_ROUNDING = 1e-9
"""Weight of classes without events that is due to rounding."""
_NONE = Count(0, 0)


class GateVerdict(Enum):
    """What to do with a canary; inconclusive is a hold, never a pass."""

    PROMOTE = "promote"
    ABORT = "abort"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class ShareMeasurement:
    """Events of both arms by prompt class, and the ``mix``: the weight of each class."""

    canary: Classes
    baseline: Classes
    mix: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class UsageMeasurement:
    """The used share of a resource in both arms, None without a series."""

    canary: float | None
    baseline: float | None


Measurement = ShareMeasurement | UsageMeasurement


@dataclass(frozen=True, slots=True)
class CriterionEvaluation:
    """The verdict of one criterion, with its reasons.

    ``canary`` and ``baseline`` are the events of the arms.  ``needed`` are the least events of the
    canary with which it could be promoted, None if unknown or if no number is enough.
    """

    criterion: Criterion
    verdict: GateVerdict
    reasons: tuple[str, ...]
    measurement: Measurement
    canary: Count = _NONE
    baseline: Count = _NONE
    needed: int | None = None


@dataclass(frozen=True, slots=True)
class GateDecision:
    """The verdict of a gate: the worst of its criteria, and no abort on unhealthy scrapes."""

    verdict: GateVerdict
    reasons: tuple[str, ...]
    evaluations: tuple[CriterionEvaluation, ...]


def decide(
    gate: RolloutGate,
    measured: Sequence[Measurement],
    canary_health: float | None,
    baseline_health: float | None,
) -> GateDecision:
    """Decide from the measurement of each criterion; a healthy arm has the health 1."""
    evaluations = tuple(
        evaluate(gate, criterion, measurement)
        for criterion, measurement in zip(gate.criteria, measured, strict=True)
    )
    arms = {"canary": canary_health, "baseline": baseline_health}
    unhealthy = tuple(
        f"scrape health: {_health_reason(arm, health)}"
        for arm, health in arms.items()
        if health is None or not health >= 1
    )
    found = {each.verdict for each in evaluations}
    if unhealthy or not evaluations:
        verdict = GateVerdict.INCONCLUSIVE
    elif GateVerdict.ABORT in found:
        verdict = GateVerdict.ABORT
    else:
        verdict = (
            GateVerdict.INCONCLUSIVE if GateVerdict.INCONCLUSIVE in found else GateVerdict.PROMOTE
        )
    of_verdict = tuple(
        f"{each.criterion.name}: {reason}"
        for each in evaluations
        if each.verdict is verdict
        for reason in each.reasons
    )
    return GateDecision(verdict, unhealthy or of_verdict, evaluations)


def _health_reason(arm: str, health: float | None) -> str:
    if health is None:
        return f"no sidecar of the {arm} is scraped. Fix: check the arm's labels and `up`"
    return f"a sidecar of the {arm}, or a source of it, is down. Fix: see `tokenslo_source_up`"


def evaluate(
    gate: RolloutGate, criterion: Criterion, measurement: Measurement
) -> CriterionEvaluation:
    """Evaluate one criterion."""
    if isinstance(criterion, UsageCriterion):
        assert isinstance(measurement, UsageMeasurement)  # noqa: S101  (measured for this one)
        return _evaluate_usage(criterion, measurement)
    assert isinstance(measurement, ShareMeasurement)  # noqa: S101  (likewise)
    return _evaluate_share(gate, criterion, measurement)


def _evaluate_share(
    gate: RolloutGate, criterion: ShareCriterion, measured: ShareMeasurement
) -> CriterionEvaluation:
    canary, baseline = _whole(measured.canary), _whole(measured.baseline)
    to_promote, to_abort = _arms(measured, gate.promote_z), _arms(measured, gate.abort_z)
    needed = None
    if to_promote is None or to_abort is None:
        verdict, reasons = GateVerdict.INCONCLUSIVE, tuple(_no_events(criterion, canary, baseline))
    elif reasons := tuple(_worse(criterion, to_abort, canary)):
        verdict = GateVerdict.ABORT
    elif reasons := tuple(_not_shown(criterion, to_promote)):
        verdict = GateVerdict.INCONCLUSIVE
        needed, sample = _sample(gate, criterion, canary, baseline)
        reasons = (*reasons, *_unseen(criterion, to_promote), *sample)
    else:
        verdict, reasons = GateVerdict.PROMOTE, tuple(_shown(criterion, to_promote))
        needed, _ = _sample(gate, criterion, canary, baseline)
    return CriterionEvaluation(criterion, verdict, reasons, measured, canary, baseline, needed)


@dataclass(frozen=True, slots=True)
class _ArmBounds:
    canary: Bounds
    baseline: Bounds


def _arms(measured: ShareMeasurement, z: float) -> _ArmBounds | None:
    """Return the bounds of both arms, None if one has no events."""
    canary, baseline = (
        bounds(arm, measured.mix, z) for arm in (measured.canary, measured.baseline)
    )
    return None if canary is None or baseline is None else _ArmBounds(canary, baseline)


def _limits(criterion: ShareCriterion) -> tuple[float, float | None]:
    """Return margin and budget as numbers that can be compared with NaN."""
    budget = criterion.budget
    return float(criterion.margin), None if budget is None else float(budget)


def _whole(arm: Classes) -> Count:
    return Count(sum(each.bad for each in arm.values()), sum(each.total for each in arm.values()))


def _worse(criterion: ShareCriterion, arms: _ArmBounds, canary: Count) -> Iterator[str]:
    """Yield the conditions that are shown to be broken."""
    if not canary.bad >= LEAST_BAD_EVENTS:
        return
    least = least_worse(arms.canary, arms.baseline)
    margin, budget = _limits(criterion)
    if least > margin:
        yield (
            f"at least {points(least)} more bad {criterion.events} than the baseline "
            f"(margin {points(margin)})"
        )
    if budget is not None and arms.canary.lower > budget and arms.baseline.lower <= budget:
        yield f"at least {percent(arms.canary.lower)} bad (objective {percent(budget)})"


def _not_shown(criterion: ShareCriterion, arms: _ArmBounds) -> Iterator[str]:
    """Yield the conditions that are not shown to hold."""
    most = most_worse(arms.canary, arms.baseline)
    margin, budget = _limits(criterion)
    if isnan(most):
        yield f"{criterion.bad.metric} is not a number"
        return
    if not most <= margin:
        yield (
            f"up to {points(most)} more bad {criterion.events} than the baseline are possible "
            f"(margin {points(margin)})"
        )
    if budget is not None and not arms.canary.upper <= budget:
        yield f"up to {percent(arms.canary.upper)} bad are possible (objective {percent(budget)})"
        if arms.baseline.lower > budget:
            yield "the baseline breaks the objective as well: the cause is outside the rollout"


def _unseen(criterion: ShareCriterion, arms: _ArmBounds) -> Iterator[str]:
    """Yield the arms without events of a prompt class, which widens their bounds."""
    for arm, each in (("canary", arms.canary), ("baseline", arms.baseline)):
        if each.high - each.low > _ROUNDING:
            share = percent(each.high - each.low)
            yield f"the {arm} lacks prompt classes with {share} of production's {criterion.events}"


def _shown(criterion: ShareCriterion, arms: _ArmBounds) -> Iterator[str]:
    most = most_worse(arms.canary, arms.baseline)
    margin, budget = _limits(criterion)
    yield (
        f"at most {points(most)} more bad {criterion.events} than the baseline "
        f"(margin {points(margin)})"
    )
    if budget is not None:
        yield f"at most {percent(arms.canary.upper)} bad (objective {percent(budget)})"


def _no_events(criterion: ShareCriterion, canary: Count, baseline: Count) -> Iterator[str]:
    for arm, count in (("canary", canary), ("baseline", baseline)):
        if not count.total > 0:
            yield (
                f"no {criterion.events} of the {arm} in {criterion.total.metric}. "
                "Fix: check its labels and its traffic"
            )


def _sample(
    gate: RolloutGate, criterion: ShareCriterion, canary: Count, baseline: Count
) -> tuple[int | None, tuple[str, ...]]:
    """Return the least events of the canary, and the reasons that follow from sample sizes."""
    share, z = baseline.bad / baseline.total, gate.promote_z
    margin, budget = _limits(criterion)
    if isnan(share):
        return None, ()
    if budget is not None and not share < budget:
        return None, ()
    needed = least_canary(baseline, budget, margin, z)
    if needed is None:
        least = least_baseline(share, margin, z)
        return None, (
            f"the baseline has {baseline.total:,.0f} {criterion.events}, needs {least:,}",
        )
    if canary.total < needed:
        text = f"the canary has {canary.total:,.0f} {criterion.events}, needs {needed:,}"
        return needed, (f"{text} even if it equals the baseline",)
    return needed, ()


def _evaluate_usage(criterion: UsageCriterion, measured: UsageMeasurement) -> CriterionEvaluation:
    canary, baseline, limit = measured.canary, measured.baseline, float(criterion.limit)
    used = "no series" if canary is None else percent(canary)
    if canary is not None and canary <= limit:
        verdict, reason = GateVerdict.PROMOTE, f"{used} used (limit {percent(limit)})"
    elif canary is None or not canary > limit:
        verdict = GateVerdict.INCONCLUSIVE
        guard = criterion.name.removeprefix(guard_name(""))
        reason = (
            f"the canary has no series of {criterion.metric}. "
            f"Fix: scrape it, or leave {guard} out of rollout.guards"
        )
    elif baseline is not None and baseline <= limit:
        verdict, reason = GateVerdict.ABORT, f"{used} used (limit {percent(limit)})"
    else:
        verdict = GateVerdict.INCONCLUSIVE
        other = "unknown" if baseline is None else percent(baseline)
        reason = f"{used} used (limit {percent(limit)}), and the baseline's usage is {other}"
    return CriterionEvaluation(criterion, verdict, (reason,), measured)


def percent(share: float | Decimal) -> str:
    """Write a share as a percentage with three significant digits."""
    return f"{float(share) * 100:.3g}%"


def points(share: float | Decimal) -> str:
    """Write a difference of shares in percentage points."""
    return f"{float(share) * 100:.3g} points"
