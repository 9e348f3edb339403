"""Check the units of panels, and infer the quantity of a query."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isclose, log

from promql.lint.catalogue import Unit, unit_of
from promql.lint.context import RATES, LintContext, alternatives, constant
from promql.lint.findings import Hit
from promql.lint.located_query import LocatedQuery
from promql.tree import (
    COMPARISONS,
    Aggregate,
    Binary,
    Call,
    Expr,
    Negative,
    Paren,
    Subquery,
    Vector,
    selectors,
)

Quantity = tuple[str, float]
"""A dimension, and the value of 1 in its base unit: milliseconds are ("time", 0.001).

"busy" is time per time, "events" a count, "frequency" a count per time.
"""

_OF_METRICS: Mapping[Unit, Quantity] = {
    "s": ("time", 1.0),
    "ms": ("time", 1e-3),
    "us": ("time", 1e-6),
    "bytes": ("bytes", 1.0),
    "ratio": ("share", 1.0),
}
# Grafana's names of units.
_OF_PANELS: Mapping[str, Quantity] = {
    "s": ("time", 1.0),
    "dtdurations": ("time", 1.0),
    "ms": ("time", 1e-3),
    "dtdurationms": ("time", 1e-3),
    "µs": ("time", 1e-6),
    "ns": ("time", 1e-9),
    "m": ("time", 60.0),
    "h": ("time", 3600.0),
    "percentunit": ("share", 1.0),
    "percent": ("share", 0.01),
    "bytes": ("bytes", 1.0),
    "decbytes": ("bytes", 1.0),
    "kbytes": ("bytes", 1024.0),
    "mbytes": ("bytes", 1024.0**2),
    "gbytes": ("bytes", 1024.0**3),
}
_NAMES: Mapping[Quantity, str] = {
    ("time", 1.0): "seconds",
    ("time", 1e-3): "milliseconds",
    ("time", 1e-6): "microseconds",
    ("time", 1e-9): "nanoseconds",
    ("share", 1.0): "a ratio from 0 to 1",
    ("share", 0.01): "percent from 0 to 100",
    ("bytes", 1.0): "bytes",
}
_PER_TIME = {"time": "busy", "events": "frequency"}
_SAME = frozenset(
    {
        "abs", "avg_over_time", "ceil", "clamp", "clamp_max", "clamp_min", "delta", "floor",
        "idelta", "increase", "label_join", "label_replace", "last_over_time", "max_over_time",
        "min_over_time", "round", "sort", "sort_desc",
    }
)  # fmt: skip
_BETWEEN_TOKENS = re.compile(r"\bITL\b|inter[- ]token", re.IGNORECASE)
# vLLM's time_per_output_token_seconds is an older name of the gap.
_PER_REQUEST = re.compile(
    r"(?:vllm:request_|trtllm_|llm_)?time_per_output_token_seconds(?:_bucket|_sum|_count)?$"
)
_OF_TIME = re.compile(r"\b(?:time|latency|duration)\b", re.IGNORECASE)


def check(query: LocatedQuery, root: Expr, context: LintContext) -> Iterator[Hit]:
    """Yield panels whose unit differs from that of their query."""
    if query.use != "panel":
        return
    yield from _other_latency(query, root)
    measured, shown = quantity(root, context), _OF_PANELS.get(query.unit)
    if measured is None:
        return
    unnamed = query.unit in ("", "none", "short") and _OF_TIME.search(query.name)
    as_time = unnamed or (shown is not None and shown[0] == "time")
    if measured[0] == "busy" and as_time and _sums_requests(root, context):
        yield Hit(
            "TL017",
            root,
            "the rate of a sum of durations is the mean number in progress, not the duration of "
            "each",
            "divide it by the rate of the …_count",
        )
    elif shown and shown[0] == measured[0] and not isclose(shown[1], measured[1], rel_tol=1e-6):
        factor = measured[1] / shown[1]
        yield Hit(
            "TL041",
            root,
            f"the query gives {_name(measured)}, the panel shows {_name(shown)}: off by a factor "
            f"of {max(factor, 1 / factor):g}",
            f"set the panel's unit to that of the query, or multiply the query by {factor:g}",
        )


def _other_latency(query: LocatedQuery, root: Expr) -> Iterator[Hit]:
    """Yield means per request that are labelled as inter-token latency."""
    if not _BETWEEN_TOKENS.search(query.name):
        return
    for node in selectors(root):
        if _PER_REQUEST.match(node.name):
            why = (
                f"{query.name} is the gap between tokens, and {node.name} has one mean per "
                "request, which hides a stall within a stream"
            )
            yield Hit("TL043", node, why, "name it TPOT, or show the inter-token latency")


def _sums_requests(root: Expr, context: LintContext) -> bool:
    """Whether an expression sums the durations of single events, unlike CPU time."""
    return any(
        (found := context.metric(each)) and (found[1] == "sum" or context.known.find(each.name))
        for each in selectors(root)
    )


def _name(quantity_: Quantity) -> str:
    for each, name in _NAMES.items():
        if each[0] == quantity_[0] and isclose(each[1], quantity_[1], rel_tol=1e-6):
            return name
    base = _NAMES[quantity_[0], 1.0]
    return f"{quantity_[1]:g} times {base}"


def quantity(node: Expr, context: LintContext) -> Quantity | None:
    """Return the quantity that an expression measures, None if uncertain."""
    match node:
        case Paren() | Negative() | Subquery():
            return quantity(node.expr, context)
        case Vector():
            return _of_selector(node, context)
        case Aggregate(op="sum" | "avg" | "max" | "min" | "topk" | "bottomk" | "quantile"):
            return quantity(node.expr, context)
        case Call(function=function, args=(argument, *_)) if function in RATES:
            inner = quantity(argument, context)
            return (_PER_TIME[inner[0]], inner[1]) if inner and inner[0] in _PER_TIME else None
        case Call(function=function, args=(argument, *_)) if function in _SAME:
            return quantity(argument, context)
        case Call(function="histogram_quantile", args=(_, buckets)):
            units = {_of_buckets(each, context) for each in selectors(buckets)}
            return units.pop() if len(units) == 1 else None
        case Binary():
            return _of_binary(node, context)
    return None


def _of_selector(node: Vector, context: LintContext) -> Quantity | None:
    name = node.name
    found = context.metric(node)
    if found is None:
        return None if ":" in name else _OF_METRICS.get(unit_of(name.removesuffix("_sum")))
    metric, part = found
    if part in ("bucket", "count"):
        return "events", 1.0
    if part == "created":
        return None
    for matcher in node.matchers:
        if metric.ratios and matcher.label == metric.kinds:
            chosen = alternatives(matcher)
            return ("share", 1.0) if chosen and metric.ratios.issuperset(chosen) else None
    if metric.unit:
        return _OF_METRICS[metric.unit]
    return ("events", 1.0) if metric.kind == "counter" else None


def _of_buckets(node: Vector, context: LintContext) -> Quantity | None:
    found = context.metric(node)
    return _OF_METRICS.get(found[0].unit) if found else None


def _of_binary(node: Binary, context: LintContext) -> Quantity | None:
    left, right = quantity(node.left, context), quantity(node.right, context)
    if node.op in COMPARISONS:
        return None if node.bool_ else left
    if node.op in ("and", "unless"):
        return left
    if node.op == "or":
        return left if right in (left, None) else None
    if node.op in ("*", "/"):
        return _product(node, left, right)
    return left if node.op in ("+", "-") and left == right else None


def _converts(factor: float) -> bool:
    """Whether a factor converts units; / 3 may remove replicas from a sum."""
    if factor <= 0:
        return False
    larger = max(factor, 1 / factor)
    return any(isclose(base ** round(log(larger, base)), larger) for base in (10, 60, 1024)) or any(
        isclose(larger, each) for each in (3600, 86_400, 3.6e6)
    )


def _product(node: Binary, left: Quantity | None, right: Quantity | None) -> Quantity | None:
    if (factor := constant(node.right)) and left and _converts(factor):
        return left[0], left[1] / factor if node.op == "*" else left[1] * factor
    if (factor := constant(node.left)) and right and _converts(factor) and node.op == "*":
        return right[0], right[1] / factor
    if node.op == "*" or not left or not right:
        return None
    if (left[0], right[0]) in (("time", "events"), ("busy", "frequency")):
        return "time", left[1]
    if left == right and left[0] in ("time", "busy", "bytes"):
        return "share", 1.0
    return None
