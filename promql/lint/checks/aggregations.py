"""Check sums, averages and quantiles."""

from __future__ import annotations

from collections.abc import Iterator

from promql.lint.checks.units import quantity
from promql.lint.context import (
    COUNTER_FUNCTIONS,
    RATIO,
    LintContext,
    calls,
    constant,
    merging_aggregation,
    tests_existence,
)
from promql.lint.findings import Hit
from promql.lint.located_query import LocatedQuery
from promql.tree import Aggregate, Binary, Call, Expr, Subquery, Vector, bare, selectors, walk

_ADDING = ("sum", "avg")
_ONE_PROCESS = frozenset({"instance", "pod"})


def check(query: LocatedQuery, root: Expr, context: LintContext) -> Iterator[Hit]:
    """Yield defects of aggregations and quantiles."""
    for node, around in walk(root):
        if tests_existence(around):
            continue
        match node:
            case Vector():
                yield from _unlike_sum(node, around, context)
            case Aggregate(op="sum"):
                yield from _sum(node, around, context)
            case Aggregate(op="avg"):
                yield from _average(node, node.expr, context)
            case Call(function="avg_over_time", args=(over,)):
                yield from _average_over_time(node, over)
            case Binary(op="/", left=left, right=right):
                yield from _ratio_of_sums_over_time(node, bare(left), bare(right))
            case Call(function="histogram_quantile", args=(_, buckets)):
                yield from _quantile(node, buckets, around, context)


def _unlike_sum(node: Vector, around: tuple[Expr, ...], context: LintContext) -> Iterator[Hit]:
    found = context.metric(node)
    if not found:
        return
    metric, part = found
    if part == "bucket":
        label = "le"
        why = "buckets are cumulative, so the sum counts an event many times"
        fix = 'keep le (sum by (le) …), or take the count: le="+Inf"'
    elif metric.kinds and not part:
        label = metric.kinds
        kinds = ", ".join(sorted(metric.values.get(label, ()))) or "quantiles"
        why = (
            f"{metric.name} is a different quantity for each {label} ({kinds}): they do not add up"
        )
        fix = f"select one {label}, or keep it: sum by ({label}) …"
    else:
        return
    if any(matcher.label == label for matcher in node.matchers):
        return
    merged = merging_aggregation(around, label)
    if merged and merged.op in _ADDING and not _above_zero(merged, around):
        yield Hit("TL021", merged, why, fix)


def _above_zero(node: Expr, around: tuple[Expr, ...]) -> bool:
    """Whether a comparison only tests that a result is not 0."""
    outer = next((each for each in reversed(around) if isinstance(each, Binary)), None)
    return (
        isinstance(outer, Binary)
        and outer.op in (">", "==", "!=")
        and bare(outer.left) is node
        and constant(outer.right) == 0
    )


def _sum(node: Aggregate, around: tuple[Expr, ...], context: LintContext) -> Iterator[Hit]:
    inside = bare(node.expr)
    if isinstance(inside, Call) and inside.function == "histogram_quantile":
        why = "quantiles cannot be added up"
        yield Hit("TL022", node, why, "take the quantile of sum by (le) (rate(…_bucket[5m]))")
        return
    if (all if node.without else any)(map(node.keeps, _ONE_PROCESS)):
        return  # a sum per process
    outer = around[-1] if around else None
    if isinstance(outer, Binary) and outer.op == "/" and _counts(outer.right):
        return  # an average as sum / count
    found = quantity(node.expr, context)
    if found and found[0] == "share":
        why = "this adds up ratios: two pods at 40 % are shown as 80 %"
        yield Hit(
            "TL022",
            node,
            why,
            "take max or avg, or divide the sum of used amounts by the sum of capacities",
        )


def _counts(node: Expr) -> bool:
    return any(isinstance(part, Aggregate) and part.op == "count" for part, _ in walk(node))


def _average(node: Aggregate, expr: Expr, context: LintContext) -> Iterator[Hit]:
    match bare(expr):
        case Call(function="histogram_quantile"):
            what, fix = "quantiles", "take the quantile of sum by (le) (rate(…_bucket[5m]))"
        case Vector(window=None) as selector if _is_quantile(selector, context):
            what, fix = "quantiles", "take max of them, or a histogram"
        case Binary(op="/", left=left, right=right) if all(
            calls(side, COUNTER_FUNCTIONS) for side in (left, right)
        ):
            what, fix = "ratios", "divide the sum of the numerators by the sum of the denominators"
        case _:
            return
    why = f"an average of {what} gives a pod that is almost idle the weight of a busy one"
    yield Hit("TL023", node, why, fix)


def _is_quantile(selector: Vector, context: LintContext) -> bool:
    found = context.metric(selector)
    return found is not None and found[0].kind == "summary" and not found[1]


def _average_over_time(node: Expr, over: Expr) -> Iterator[Hit]:
    over = bare(over)
    if isinstance(over, Vector) and ":" in (over.name) and RATIO.search(over.name):
        yield Hit(
            "TL023",
            node,
            f"the average of {over.name} over time gives a quiet hour the weight of a busy one",
            "record both sides of the ratio, sum each over time, and divide",
        )


def _ratio_of_sums_over_time(node: Binary, left: Expr, right: Expr) -> Iterator[Hit]:
    match left, right:
        case (
            Call(function="sum_over_time", args=(over,)),
            Call(function="count_over_time", args=(counted,)),
        ) if {each.name for each in selectors(over)} == {each.name for each in selectors(counted)}:
            yield from _average_over_time(node, over)


def _quantile(
    node: Call, buckets: Expr, outside: tuple[Expr, ...], context: LintContext
) -> Iterator[Hit]:
    for part, around in walk(buckets):
        if not isinstance(part, Vector) or not (part.metric or "").endswith("_bucket"):
            continue
        if part.window is None and not any(isinstance(each, Subquery) for each in around):
            why = "these buckets count since the start of each process: old traffic hides the new"
            yield Hit("TL024", node, why, "take sum by (le) (rate(…_bucket[5m]))")
            continue
        aggregations = [each for each in around if isinstance(each, Aggregate)]
        if any(not each.keeps("le") for each in aggregations):
            why = "the aggregation drops le, without which there is no quantile"
            yield Hit("TL024", node, why, "keep it: sum by (le) (rate(…_bucket[5m]))")
        elif not aggregations and not _worst(outside):
            why = "the buckets are not summed, so this is one quantile for each series of each pod"
            yield Hit(
                "TL026",
                node,
                why,
                "take sum by (le) (rate(…_bucket[5m])), with more labels to keep",
            )


def _worst(outside: tuple[Expr, ...]) -> bool:
    """Whether an outer aggregation picks the worst quantile, or has its own finding."""
    return any(isinstance(each, Aggregate) for each in outside)
