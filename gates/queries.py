"""Queries of a gate, for the command and for recording rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from promql.expr import Binary, Expr, Vector, aggregate, call, on, vector
from slos.queries import INSTANCE, Scope

_TARGET = ("job", INSTANCE)


def increase(counter: Vector, window: str, by: Iterable[str]) -> Expr:
    """Return the events of a window; resets and series that begin in it are no loss."""
    return aggregate("sum", call("increase", replace(counter, window=window)), by)


def health(scope: Scope) -> Expr:
    """Return for each sidecar of an arm 1 if it and its sources are scraped, else 0.

    Sidecars that have reported a model in the window count; those of deleted pods do not.
    """
    seen = call("last_over_time", replace(scope.series("tokenslo_model_info"), window=scope.window))
    up = vector("up", scope.foreign()).or_(scope.series("tokenslo_source_up"))
    return Binary(seen, "*", aggregate("min", up, _TARGET), matching=on(*_TARGET, group_left=()))
