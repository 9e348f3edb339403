"""Which metrics of checks have series: an empty result is an answer only if they do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from promql.expr import Expr, Matcher, aggregate, one_of, vector
from promql.tree import Binary, Vector, children
from slos.queries import NATIVE_SERIES, SERIES, Scope

_OWN = ("slo:", "ALERTS")
"""Series of Prometheus's own: rules and alerts, which no target serves."""


def needed(expr: Expr) -> Iterator[frozenset[str]]:
    """Yield sets of metrics, of each of which an expression needs at least one."""
    match expr:
        case Vector():
            if expr.name and not expr.name.startswith(_OWN):
                yield frozenset({_counted(expr.name)})
        case Binary(left, "or", right):
            sides = [frozenset[str]().union(*needed(side)) for side in (left, right)]
            if all(sides):
                yield sides[0] | sides[1]
        case Binary(left, "unless", _):
            yield from needed(left)
        case _:
            for child in children(expr):
                yield from needed(child)


def missing(expr: Expr, present: frozenset[str]) -> str:
    """Name metrics that an expression needs and that have no series; empty if it has all."""
    absent = (each for each in needed(expr) if not each & present)
    return ", ".join(dict.fromkeys(" or ".join(sorted(each)) for each in absent))


def presence_queries(metrics: Iterable[str], scope: Scope) -> Iterator[Expr]:
    """Yield queries that count the series of metrics in a scope, by name."""
    by_matchers: defaultdict[tuple[Matcher, ...], set[str]] = defaultdict(set)
    for metric in metrics:
        by_matchers[_matchers(metric, scope)].add(metric)
    for matchers, found in by_matchers.items():
        names = one_of("__name__", sorted(found))
        yield aggregate("count", vector("", (names, *matchers)), ("__name__",))


def _matchers(metric: str, scope: Scope) -> tuple[Matcher, ...]:
    if metric in SERIES or metric in NATIVE_SERIES:
        return tuple(each for each in scope.series(metric).matchers)
    return scope.foreign()


def _counted(metric: str) -> str:
    """Return a metric with fewer series that exists whenever ``metric`` does."""
    histogram = metric.removesuffix("_bucket")
    return metric if histogram == metric else f"{histogram}_count"
