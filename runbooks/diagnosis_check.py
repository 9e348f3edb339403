"""Diagnosis steps as data types: a query and its expected result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from promql.expr import Expr, decimal_text
from runbooks.check_queries import Subject

Operator = Literal["<", "<=", ">", ">=", "=="]
_OPERATOR_TEXT: Mapping[Operator, str] = {
    "<": "below ",
    "<=": "at most ",
    ">": "above ",
    ">=": "at least ",
    "==": "",
}


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
    ``note`` explains how to interpret the result.  ``per_objective`` steps have a query or an
    expected value of their own for each objective; a service's objectives with one indicator share
    the others.
    """

    key: str
    question: str
    query: Callable[[Subject], Expr]
    healthy: Callable[[Subject], HealthyResult]
    rules_out: str
    points_to: str
    note: str = ""
    per_objective: bool = False


def no_result(qualifier: str = "") -> Callable[[Subject], HealthyResult]:
    """Expect an empty result."""
    return lambda _: HealthyResult("==", None, qualifier)


def compares(
    op: Operator, value: int | str, qualifier: str = ""
) -> Callable[[Subject], HealthyResult]:
    """Expect all elements to compare like this."""
    return lambda _: HealthyResult(op, Decimal(value), qualifier)


def within_budget(scope: str = "") -> Callable[[Subject], HealthyResult]:
    """Expect at most the objective's error budget."""
    return lambda s: HealthyResult("<=", s.budget, f" (the error budget){scope}")
