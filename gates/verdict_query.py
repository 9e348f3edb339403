"""The verdict of one criterion as PromQL: 1 promotes, 0 aborts, and -1 is inconclusive.

It has exactly one value at all times: a missing or ambiguous series becomes NaN, every comparison
with NaN is false, and neither condition then holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Literal

from gates.criteria import LEAST_BAD_EVENTS, Criterion, RolloutGate, ShareCriterion, UsageCriterion
from gates.recording_rules import (
    ABORT_LOWER,
    ABORT_UPPER,
    DISTANCE,
    HEALTH,
    PROMOTE_LOWER,
    PROMOTE_UPPER,
    SHARE,
    USED,
    bad_events,
)
from promql.expr import Binary, Expr, aggregate, call, number, vector

WIDTH = 140
"""Line width of these queries: one recorded value a line."""
PROMOTE, ABORT, INCONCLUSIVE = 1, 0, -1


def verdict_query(gate: RolloutGate, criterion: Criterion, canary: str, baseline: str) -> Expr:
    """Return the query for two values of the rollout's label."""
    promote, abort = (
        _of_usage(gate, criterion, canary, baseline)
        if isinstance(criterion, UsageCriterion)
        else _of_share(gate, criterion, canary, baseline)
    )
    up, other_up = (
        _is(_read(gate, HEALTH, {}, arm), ">=", number(1)) for arm in (canary, baseline)
    )
    return call("vector", up * other_up * (number(2) * promote + abort) - number(1))


def abort_query(gate: RolloutGate, criterion: Criterion, canary: str, baseline: str) -> Expr:
    """Return 1 if a criterion aborts, else 0: for controllers without a third state."""
    verdict = verdict_query(gate, criterion, canary, baseline)
    return Binary(verdict, "==", number(ABORT), bool_=True)


def _of_share(
    gate: RolloutGate, criterion: ShareCriterion, canary: str, baseline: str
) -> tuple[Expr, Expr]:
    """Return the conditions to promote and to abort, each 1 or 0."""
    slo = {"slo": criterion.name}

    def share(bound: str, arm: str) -> Expr:
        return _read(gate, SHARE, {**slo, "bound": bound}, arm)

    def squared(bound: str, arm: str) -> Expr:
        return _read(gate, DISTANCE, {**slo, "bound": bound}, arm)

    margin = number(criterion.margin)
    most = share("high", canary) - share("low", baseline)
    most += _root(squared(PROMOTE_UPPER, canary) + squared(PROMOTE_LOWER, baseline))
    least = share("low", canary) - share("high", baseline)
    least -= _root(squared(ABORT_LOWER, canary) + squared(ABORT_UPPER, baseline))
    promote, worse = _is(most, "<=", margin), _is(least, ">", margin)
    if criterion.budget is not None:
        budget = number(criterion.budget)
        upper = share("high", canary) + _root(squared(PROMOTE_UPPER, canary))
        promote *= _is(upper, "<=", budget)
        lower, other = (
            share("low", arm) - _root(squared(ABORT_LOWER, arm)) for arm in (canary, baseline)
        )
        worse += _is(lower, ">", budget) * _is(other, "<=", budget)
    counted = vector(bad_events(gate), {**_labels(gate, slo), gate.rollout.label: canary})
    events = call("scalar", aggregate("sum", counted))
    enough = _is(events, ">=", number(LEAST_BAD_EVENTS))
    return promote, _is(enough * worse, ">", number(0))


def _of_usage(
    gate: RolloutGate, criterion: UsageCriterion, canary: str, baseline: str
) -> tuple[Expr, Expr]:
    used, other = (_read(gate, USED, {"slo": criterion.name}, arm) for arm in (canary, baseline))
    limit = number(criterion.limit)
    return _is(used, "<=", limit), _is(used, ">", limit) * _is(other, "<=", limit)


def _root(square: Expr) -> Expr:
    return Binary(square, "^", number(Decimal("0.5")))


def _labels(gate: RolloutGate, more: Mapping[str, str]) -> dict[str, str]:
    return {"service": gate.plan.service.service, **more}


def _read(gate: RolloutGate, name: str, labels: Mapping[str, str], arm: str) -> Expr:
    """Read one recorded value of an arm; NaN if there is none, or more than one."""
    return call("scalar", vector(name, {**_labels(gate, labels), gate.rollout.label: arm}))


def _is(left: Expr, op: Literal["<=", ">", ">="], right: Expr) -> Binary:
    """Compare two numbers: 1 if true, else 0."""
    return Binary(left, op, right, bool_=True)
