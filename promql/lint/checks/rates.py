"""Check rates, raw counters and averages."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

from promql.lint.checks.units import quantity
from promql.lint.context import (
    COUNTER_FUNCTIONS,
    RATES,
    TWO_SAMPLES,
    LintContext,
    alternatives,
    calls,
    constant,
)
from promql.lint.findings import Hit
from promql.lint.located_query import LocatedQuery
from promql.matchers import Template
from promql.parse import window_seconds
from promql.tree import (
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Expr,
    Negative,
    Subquery,
    Vector,
    bare,
    selectors,
    walk,
)

_SMALLEST_RATE = 0.001
"""Rate per second below which a clamped divisor is harmless: one event in a quarter of an hour."""
_INTERVAL = re.compile(r"\$__interval(?:_ms)?|\$\{__interval(?:_ms)?\}|\[\[__interval\]\]")
_OF_EVENTS = re.compile(
    r"(?:accepted|accesses|allocations|attempts|calls|changes|commands|commits|"
    r"completed|completions|connects|count|created|deleted|denied|discarded|disconnects|dropped|"
    r"drops|errors?|events?|evictions|exceptions|executed|executions|expired|fail|failed|failures?|"
    r"faults|fetches|hits|ignored|interrupts|invocations|iterations|lookups|messages?|misses|"
    r"operations|ops|packets|panics|preemptions|processed|published|queries|reads|received|"
    r"rejected|rejections|requests?|responses?|restarts|retries|rollbacks|runs|samples|scrapes|"
    r"sent|seconds|skipped|successes|success|switches|timeouts|tokens|transactions|transmitted|"
    r"tries|updates|writes|written)(?:_count)?_total"
)
"""The end of a name that certainly is a counter's: many gauges are named …_total too."""
_OF_NOW = re.compile(r"(?:active|current|inflight|in_flight|open|pending|queued|uptime|waiting)_")
"""Part of the names of gauges: a current count or an age."""
_KEEPS_COUNTERS = frozenset(
    {"abs", "ceil", "clamp", "clamp_max", "clamp_min", "floor", "label_join", "label_replace",
     "round", "sort", "sort_desc", "vector", "scalar"}
)  # fmt: skip


def check(query: LocatedQuery, root: Expr, context: LintContext) -> Iterator[Hit]:
    """Yield defects of rates, raw counters and divisions."""
    averages = {
        id(node)
        for node, _ in walk(root)
        if isinstance(node, Binary) and node.op == "/" and _since_boot(node, context)
    }
    for node, around in walk(root):
        match node:
            case Call(function=function, args=args) if function in TWO_SAMPLES and args:
                yield from _rate(node, args[0], query, context)
            case Vector(window=None) if context.accumulates(node):
                if _is_shown(node, root, query, context) and not _accounted_for(
                    node, around, averages, context
                ):
                    yield _raw_counter(node, around, context)
            case Binary(op="/") if id(node) in averages:
                yield Hit(
                    "TL013",
                    node,
                    "both sides count since the start of the process, so this is the average "
                    "since then: it hardly changes, and jumps at a restart",
                    "divide rate(…[5m]) by rate(…[5m])",
                )
            case Binary(op="/"):
                yield from _divisor(node, context)


def _rate(node: Call, argument: Expr, query: LocatedQuery, context: LintContext) -> Iterator[Hit]:
    argument = bare(argument)
    if node.function in COUNTER_FUNCTIONS:
        inside = argument.expr if isinstance(argument, Subquery) else argument
        if isinstance(bare(inside), Aggregate) and any(
            context.accumulates(each) and not each.window for each in selectors(inside)
        ):
            yield Hit(
                "TL015",
                node,
                "when one process restarts, the sum falls: that looks like a reset of all counters "
                "and makes a spike",
                f"sum the {node.function} of every series",
            )
            return
    if isinstance(argument, Vector) and argument.window:
        if node.function in COUNTER_FUNCTIONS and _is_gauge(argument, context):
            yield Hit(
                "TL011",
                node,
                f"{argument.name} is a gauge: every decrease counts as a restart, and so "
                "as an increase",
                "show the gauge itself, or its deriv() or delta()",
            )
        yield from _window(node, argument.window, query, context)


def _is_gauge(selector: Vector, context: LintContext) -> bool:
    found = context.metric(selector)
    if not found or found[1]:
        return False
    metric = found[0]
    if metric.kind == "summary":
        return True
    if metric.kind != "gauge":
        return False
    for matcher in selector.matchers:
        if metric.growing and matcher.label == metric.kinds:
            chosen = alternatives(matcher)
            return chosen is not None and not metric.growing.issuperset(chosen)
    return True


def _window(node: Call, window: str, query: LocatedQuery, context: LintContext) -> Iterator[Hit]:
    least = 2 * context.scrape_interval
    length = window_seconds(window)
    if length is not None and length < least:
        yield Hit(
            "TL016",
            node,
            f"a window of {window} holds fewer than two samples at a scrape interval of "
            f"{context.scrape_interval:g}s, and then there is no {node.function}"
            + ("" if context.interval_given else "; the scrape interval is not known"),
            f"take {2 * least:g}s or more"
            + (", or $__rate_interval" if query.dashboard else "")
            + ("" if context.interval_given else ", or give --scrape-interval"),
            None if context.interval_given else "warning",
        )
    elif _INTERVAL.fullmatch(window) and (query.shortest or 0) < least:
        yield Hit(
            "TL016",
            node,
            "$__interval shrinks below two scrapes when one zooms in, and the panel goes empty",
            "write $__rate_interval",
        )


def _is_shown(node: Vector, root: Expr, query: LocatedQuery, context: LintContext) -> bool:
    """Whether the raw value of a certain counter is used."""
    name = node.name
    alias = query.use == "record" and _is_scaled(root)  # another name for the same counter
    certain = not name.endswith("_total") or not context.guesses(node) or _OF_EVENTS.search(name)
    return query.use != "variable" and not alias and bool(certain) and not _OF_NOW.search(name)


def _is_scaled(node: Expr) -> bool:
    """Whether an expression is a selector, perhaps converted to another unit."""
    node = bare(node)
    if isinstance(node, Binary) and node.op in ("*", "/") and constant(node.right) is not None:
        node = bare(node.left)
    return isinstance(node, Vector)


def _accounted_for(
    node: Vector, around: tuple[Expr, ...], averages: Container[int], context: LintContext
) -> bool:
    """Whether a raw counter is right in its place, or part of another finding."""
    inner: Expr = node
    for outer in reversed(around):
        match outer:
            case Subquery():
                return True
            case Call(function=function) if function not in _KEEPS_COUNTERS:
                return True
            case Aggregate(op="count" | "group" | "count_values" | Template()):
                return True
            case Binary() if id(outer) in averages:
                return True
            case Binary(op=op, left=left, right=right):
                other = right if inner is left else left
                if op in SET_OPERATORS and op != "or" and inner is right:
                    return True
                if op in ("-", "unless", "and") and _earlier(node, other):
                    return True
                if op == "*" and constant(other) == 0:
                    return True
                if op == "-" and any(context.accumulates(each) for each in selectors(other)):
                    return True  # the count of events in progress
        inner = outer
    return False


def _earlier(node: Vector, other: Expr) -> bool:
    """Whether the other side of a difference is the same counter at another time."""
    return any(each.name == node.name and each.shifted != node.shifted for each in selectors(other))


def _raw_counter(node: Vector, around: tuple[Expr, ...], context: LintContext) -> Hit:
    found = context.metric(node)
    if found and found[1] == "bucket":
        what = "these buckets count since the start of each process: old traffic hides the new"
    elif context.guesses(node):
        what = f"{node.name} is named like a counter, which falls to 0 when its process restarts"
    else:
        what = (
            f"{node.name} counts since the start of each process, and falls to 0 when that restarts"
        )
    compared = any(
        isinstance(each, Binary) and each.op in (">", ">=", "<", "<=") for each in around
    )
    more = "; once it exceeds a threshold, it stays above it" if compared else ""
    return Hit("TL012", node, what + more, "take its rate(…[5m]) or increase(…[1h])")


def _since_boot(node: Binary, context: LintContext) -> bool:
    """Whether a division has raw counters on both sides."""
    sides = ([*selectors(node.left)], [*selectors(node.right)])
    return (
        all(sides)
        and all(
            context.accumulates(each) and each.window is None and not each.shifted
            for side in sides
            for each in side
        )
        and not calls(node, ("histogram_quantile", *COUNTER_FUNCTIONS))
    )


def _divisor(node: Binary, context: LintContext) -> Iterator[Hit]:
    divisor = bare(node.right)
    clamped: tuple[Expr, Expr] | None = None  # a rate, and its lower bound or what is added
    match divisor:
        case Call(function="clamp_min", args=(expr, least)) if _is_rate(expr):
            clamped = expr, least
        case Binary(op="+", left=one, right=other):
            if _is_rate(one) and not _is_ratio(one):
                clamped = one, other
            elif _is_rate(other) and not _is_ratio(other):
                clamped = other, one
        case Binary(op="or", left=expr, right=other) if _is_rate(expr):
            fallback = bare(other)
            time_ = any(
                (found := context.metric(each)) and (found[1] == "sum" or found[0].unit in _TIMES)
                for each in selectors(node.left)
            )
            if isinstance(fallback, Call) and fallback.function == "vector" and time_:
                yield Hit(
                    "TL014",
                    divisor,
                    "without traffic this reads 0, as if requests took no time",
                    "divide by (… > 0), so that there is no value without traffic",
                )
    if clamped is None:
        return
    bound, measured = constant(clamped[1]), quantity(clamped[0], context)
    if bound is not None and bound * (measured[1] if measured else 1.0) > _SMALLEST_RATE:
        yield Hit(
            "TL014",
            divisor,
            f"at a rate of less than {bound:g} the divisor is too large and the result too small; "
            "LLMs often serve less than one request per second",
            "divide by (rate(…) > 0)",
        )


_TIMES = ("s", "ms", "us")


def _is_ratio(node: Expr) -> bool:
    node = bare(node)
    return isinstance(node, Binary) and node.op == "/" and calls(node.right, RATES)


def _is_rate(node: Expr) -> bool:
    node = bare(node)
    return constant(node) is None and not isinstance(node, Negative) and calls(node, RATES)
