"""Check queries of one dashboard against each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from promql.lint.context import COUNTER_FUNCTIONS, LintContext, calls
from promql.lint.findings import Hit
from promql.lint.located_query import LocatedQuery
from promql.tree import Binary, Expr, selectors, walk

_OF_DEPLOYMENTS = ("cluster", "instance", "namespace", "pod")


def check(
    dashboard: Iterable[tuple[LocatedQuery, Expr]], context: LintContext
) -> Iterator[tuple[LocatedQuery, Hit]]:
    """Yield defects that several queries of a dashboard reveal."""
    queries = tuple(dashboard)
    yield from _only_averages(queries, context)
    yield from _pinned(queries)


def _only_averages(
    queries: tuple[tuple[LocatedQuery, Expr], ...], context: LintContext
) -> Iterator[tuple[LocatedQuery, Hit]]:
    spread = {
        found[0].name
        for _, root in queries
        for each in selectors(root)
        if (found := context.metric(each)) and found[1] in ("bucket", "")
    }
    for query, root in queries:
        for node, _ in walk(root):
            name = _averaged(node, context)
            if name and name not in spread:
                spread.add(name)
                why = f"only the average of {name} is shown, which hides slow requests"
                fix = f"add histogram_quantile(0.99, sum by (le) (rate({name}_bucket[5m])))"
                yield query, Hit("TL025", node, why, fix)


def _averaged(node: Expr, context: LintContext) -> str:
    """Return the histogram whose average an expression is, empty for other expressions."""
    if not isinstance(node, Binary) or node.op != "/":
        return ""
    if not all(calls(side, COUNTER_FUNCTIONS) for side in (node.left, node.right)):
        return ""
    families = [
        {(found[0].name, found[1]) for each in selectors(side) if (found := context.metric(each))}
        for side in (node.left, node.right)
    ]
    for name, part in families[0]:
        metric = context.known.metrics.get(name)
        if part != "sum" or (name, "count") not in families[1] or metric is None:
            continue
        if metric.kind == "histogram" and metric.unit in ("s", "ms", "us"):
            return name
    return ""


def _pinned(queries: tuple[tuple[LocatedQuery, Expr], ...]) -> Iterator[tuple[LocatedQuery, Hit]]:
    matchers = [
        (query, each, matcher)
        for query, root in queries
        if query.use == "panel"
        for each in selectors(root)
        for matcher in each.matchers
        if matcher.label in _OF_DEPLOYMENTS
    ]
    variable = {matcher.label for _, _, matcher in matchers if matcher.known_value is None}
    for query, selector, matcher in matchers:
        if matcher.op == "=" and matcher.known_value and matcher.label in variable:
            why = (
                f"{matcher.label} is {matcher.value} here, while other queries of the dashboard "
                "use a variable"
            )
            yield query, Hit("TL042", selector, why, "use the variable here too")
