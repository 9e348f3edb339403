"""Diagnosis steps as data types: a query, its healthy result, and the verdict on a result."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import isnan
from typing import Literal

from promql.expr import Expr, decimal_text
from runbooks.check_queries import Subject
from slos.queries import Scope

Operator = Literal["<", "<=", ">", ">=", "=="]
_OPERATOR_TEXT: Mapping[Operator, str] = {
    "<": "below ",
    "<=": "at most ",
    ">": "above ",
    ">=": "at least ",
    "==": "",
}
_HOLDS: Mapping[Operator, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}
Verdict = Literal["healthy", "sick", "no_data"]


@dataclass(frozen=True, slots=True)
class HealthyResult:
    """A healthy result: all elements compare like this; None as ``value`` is an empty result.

    ``qualifier`` is printed after the number.
    """

    op: Operator
    value: Decimal | None
    qualifier: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return f"no result{self.qualifier}"
        return f"{_OPERATOR_TEXT[self.op]}{decimal_text(self.value)}{self.qualifier}"


@dataclass(frozen=True, slots=True)
class DiagnosisCheck:
    """One diagnosis step.

    ``rules_out`` is what a healthy result implies; ``points_to`` is a key of
    :data:`runbooks.playbooks.PLAYBOOKS`, or empty where the result itself names what to open;
    ``note`` explains how to interpret the result.  ``per_objective`` checks have a query or an
    expected value of their own for each objective.  ``of_service`` is set if the check needs no
    objective.
    """

    key: str
    question: str
    query: Callable[[Subject], Expr]
    healthy: Callable[[Subject], HealthyResult]
    rules_out: str
    points_to: str
    note: str = ""
    per_objective: bool = False
    of_service: ServiceCheck | None = None


@dataclass(frozen=True, slots=True)
class ServiceCheck:
    """The query and the healthy result of a check of servers, whatever their objectives."""

    query: Callable[[Scope], Expr]
    healthy: HealthyResult


def verdict(healthy: HealthyResult, values: Iterable[float]) -> Verdict:
    """Compare the elements of a result with the healthy one.

    NaN is no data: it comes from a ratio without events.  Without data a check is neither healthy
    nor sick, unless the healthy result is an empty one.
    """
    known = [value for value in values if not isnan(value)]
    if healthy.value is None:
        return "sick" if known else "healthy"
    if not known:
        return "no_data"
    limit, holds = float(healthy.value), _HOLDS[healthy.op]
    return "healthy" if all(holds(value, limit) for value in known) else "sick"


def service_check(
    key: str,
    question: str,
    query: Callable[[Scope], Expr],
    healthy: HealthyResult,
    rules_out: str,
    points_to: str,
    note: str = "",
) -> DiagnosisCheck:
    """Make a check that needs no objective."""
    return DiagnosisCheck(
        key,
        question,
        lambda subject: query(subject.scope),
        lambda _: healthy,
        rules_out,
        points_to,
        note,
        of_service=ServiceCheck(query, healthy),
    )


def no_result(qualifier: str = "") -> HealthyResult:
    """Expect an empty result."""
    return HealthyResult("==", None, qualifier)


def compares(op: Operator, value: int | str, qualifier: str = "") -> HealthyResult:
    """Expect all elements to compare like this."""
    return HealthyResult(op, Decimal(value), qualifier)


def within_budget(scope: str = "") -> Callable[[Subject], HealthyResult]:
    """Expect at most the objective's error budget."""
    return lambda s: HealthyResult("<=", s.budget, f" (the error budget){scope}")
