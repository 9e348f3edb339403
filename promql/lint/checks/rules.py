"""Check recording rules, alerts and scalers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from promql.lint.checks.units import quantity
from promql.lint.context import COUNTER_FUNCTIONS, RATIO, LintContext, calls, constant
from promql.lint.findings import Hit
from promql.lint.located_query import LocatedQuery
from promql.matchers import Matcher
from promql.tree import (
    COMPARISONS,
    Aggregate,
    Binary,
    Call,
    Expr,
    Number,
    Paren,
    Vector,
    bare,
    is_range,
    selectors,
    walk,
)

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OF_ERRORS = re.compile(r"err|bad|fail|sli")
_NO_SHARE = re.compile(r"burn_rate|remaining")
_OF_SLOS = re.compile(
    r"slo\b|slo_|slo:|sli\b|sli_|sli:|availab|burn|error|objective", re.IGNORECASE
)
_OVER_TIME = frozenset({"avg_over_time", "sum_over_time"})
_SELECTING = frozenset({"avg_over_time", "max_over_time", "min_over_time", "last_over_time"})
_TEMPLATE_LABEL = re.compile(r"(?:\$labels|\.Labels)\.([a-zA-Z_][a-zA-Z0-9_]{0,60})")


def check(query: LocatedQuery, root: Expr, context: LintContext) -> Iterator[Hit]:
    """Yield defects of rules and scalers."""
    if query.use in ("alert", "record"):
        yield from _availability(query, root)
    if query.use == "alert":
        for node, _ in walk(root):
            if isinstance(node, Binary):
                yield from _unreachable(node, context)
        yield from _absent(query, root)
        yield from _permanent(query, root)
    elif query.use == "record" and query.name in context.summed:
        yield from _idle_nan(query, root, context)
    elif query.use == "trigger" and not _is_one(root):
        yield Hit(
            "TL035",
            root,
            "this has an element for every series that matches, of every pod and model, and the "
            "scaler refuses more than one",
            "select the model, and aggregate: sum(…) or max(…)",
        )


def summed(root: Expr) -> Iterator[str]:
    """Yield the metrics that an expression sums over time."""
    for node, _ in walk(root):
        if isinstance(node, Call) and node.function in _OVER_TIME:
            yield from (each.name for each in selectors(node) if each.name)


def _unreachable(node: Binary, context: LintContext) -> Iterator[Hit]:
    left, right, op = node.left, node.right, node.op
    if op in _FLIPPED and constant(left) is not None:
        left, right, op = right, left, _FLIPPED[op]
    limit = constant(right)
    if limit is not None and ((limit < 0 and op in ("<", "<=")) or (limit, op) == (0, "<")):
        yield from _below_zero(node, _core(left), f"{op} {limit:g}", context)
    if limit is not None and _below_one(op, limit) and (what := _never_zero(left)):
        why = f"{what}, so it is never {op} {limit:g}"
        yield Hit(
            "TL031", node, why, "write absent(…), or `… unless …` after the series that must exist"
        )
    if op not in (">", ">=") or limit is None or limit < 1 or (limit == 1 and op == ">="):
        return
    core = _core(left, context)
    measured = quantity(core, context)
    if _is_part(core) and (limit > 1 or op == ">"):
        why = f"a part of events divided by all of them is never {op} {limit:g}"
        fix = f"compare it with {limit / 100:g}" if limit > 1 else "take a limit below 1"
        yield Hit("TL031", node, why, fix)
        return
    if measured == ("share", 1.0) and _is_bounded(core, context):
        why = f"this is a ratio from 0 to 1, which is never {op} {limit:g}"
        yield Hit(
            "TL031", node, why, f"compare it with {limit / 100:g}" if limit > 1 else "write >="
        )
    elif _is_error_ratio(core, right):
        why = (
            f"an error ratio is never {op} {limit:g}: even a total outage does not fire this, nor "
            "what `and` joins to it"
        )
        fix = "take a smaller burn rate: the maximum is 1 / (1 - target)"
        yield Hit("TL031", node, why, fix)
    elif isinstance(core, Vector) and _BY_NAME.search(core.name) and limit > 1:
        why = f"{core.name} is named like a ratio, which is from 0 to 1 by convention"
        yield Hit("TL031", node, why, f"compare it with {limit / 100:g} if it is", "warning")


_BY_NAME = re.compile(r"(?:error|failure|success|hit|miss|drop)s?_ratio$")


def _below_one(op: str, limit: float) -> bool:
    """Whether only a count of 0 passes a comparison."""
    return (op in ("==", "<=") and 0 <= limit < 1) or (op == "<" and 0 < limit <= 1)


def _never_zero(node: Expr) -> str:
    """Return the reason why a result is never 0, empty if it can be."""
    node = bare(node)
    match node:
        case Aggregate(op="count" | "group" as op):
            return f"{op}() of no series has no result"
        case Call(function="absent" | "absent_over_time" as function):
            return f"{function}() is 1 or has no result"
        case Call(function="count_over_time" as function):
            return f"{function}() of no samples has no result"
    return ""


def _is_part(node: Expr) -> bool:
    """Whether a quotient divides some events of a counter by all its events."""
    if not isinstance(node, Binary) or node.op != "/" or node.matching or node.grouped:
        return False
    part, whole = (_counted(side) for side in (node.left, node.right))
    if part is None or whole is None:
        return False
    return part[0] == whole[0] and part[1] >= whole[1]


def _counted(node: Expr) -> tuple[object, frozenset[Matcher]] | None:
    """Return how and which events ``sum by (a) (rate(x{…}[5m]))`` counts."""
    node = bare(node)
    how: tuple[object, ...] = ()
    if isinstance(node, Aggregate) and node.op == "sum" and not node.templated:
        how, node = (node.labels or frozenset(), node.without), bare(node.expr)
    if not isinstance(node, Call) or node.function not in COUNTER_FUNCTIONS:
        return None
    counter = bare(node.args[0]) if node.args else None
    if not isinstance(counter, Vector) or not counter.name or counter.window is None:
        return None
    if counter.shifted or any(matcher.known_value is None for matcher in counter.matchers):
        return None
    by = how or ("each",)
    kind = (node.function, counter.name, counter.window, by)
    return kind, frozenset(counter.matchers)


def _permanent(query: LocatedQuery, root: Expr) -> Iterator[Hit]:
    """Yield alerts with a part that always has a result."""
    if _is_constant(root) or _ON_PURPOSE.search(query.name):
        return
    for node, around in walk(root):
        if any(not isinstance(each, Paren) and not _is_or(each) for each in around):
            continue
        if isinstance(node, Binary) and node.op == "or" and _is_constant(node.right):
            why = "this has a result even where nothing is wrong, so the alert never resolves"
            fix = "put the `or` inside the comparison: (… or vector(0)) < 1"
            yield Hit("TL037", node, why, fix)
            return


_ON_PURPOSE = re.compile(r"watchdog|dead_?man|heartbeat|always", re.IGNORECASE)


def _is_or(node: Expr) -> bool:
    return isinstance(node, Binary) and node.op == "or"


def _is_constant(node: Expr) -> bool:
    """Whether an expression is ``vector(1)`` or a number."""
    node = bare(node)
    match node:
        case Number():
            return True
        case Call(function="vector", args=(value,)):
            return constant(value) is not None
    return False


def _below_zero(node: Expr, core: Expr, limit: str, context: LintContext) -> Iterator[Hit]:
    """Yield thresholds below 0 for a ratio of good events."""
    match core:
        case Vector(metric=str(name)):
            share = (":" in name and RATIO.search(name)) or _is_bounded(core, context)
        case Binary(op="/", left=left, right=right):
            share = all(calls(side, COUNTER_FUNCTIONS) for side in (left, right))
        case _:
            share = False
    if share:
        why = f"a ratio is never {limit}: even a total outage does not fire this"
        yield Hit("TL031", node, why, "take a smaller burn rate, so that the limit is above 0")


def _is_bounded(core: Expr, context: LintContext) -> bool:
    """Whether an expression, not only its name, is a ratio from 0 to 1."""
    match core:
        case Vector():
            return not context.guesses(core)
        case Aggregate(expr=inner) | Paren(expr=inner) | Call(args=(inner,)):
            return _is_bounded(inner, context)
        case Binary(op="/", left=left):
            part = quantity(left, context)
            return part is not None and part[0] == "bytes"
    return False


def _core(node: Expr, context: LintContext | None = None) -> Expr:
    """Return the compared expression without functions that only select series or values.

    With ``context``, a recorded series is replaced by the expression of its rule.
    """
    for _ in range(_DEEPEST):
        node = bare(node)
        match node:
            case Aggregate(op="max" | "min" | "avg", expr=inner):
                node = inner
            case Call(function=function, args=(inner,)) if function in _SELECTING:
                node = inner
            case Vector(metric=str(name)) if context and _is_part(
                bare(context.rules.get(name, node))
            ):
                node = context.rules[name]
            case _:
                return node
    return node


_DEEPEST = 64


def _is_error_ratio(core: Expr, limit: Expr) -> bool:
    """Whether the compared expression is an error ratio, by its name or the form of the limit."""
    name = core.name if isinstance(core, Vector) else ""
    if RATIO.search(name) and _OF_ERRORS.search(name) and not _NO_SHARE.search(name):
        return True
    limit = bare(limit)
    if not (isinstance(limit, Binary) and limit.op == "*"):
        return False
    budget = min(constant(side) or 0.0 for side in (limit.left, limit.right))
    if not 0 < budget < 1:
        return False
    if isinstance(core, Vector):
        return bool(RATIO.search(name)) or "burnrate" in name or "burn_rate" in name
    return isinstance(core, Binary) and core.op == "/"


def _absent(query: LocatedQuery, root: Expr) -> Iterator[Hit]:
    node = bare(root)
    if isinstance(node, Binary) and node.op in COMPARISONS and isinstance(bare(node.right), Number):
        node = bare(node.left)
    if not isinstance(node, Call) or node.function not in ("absent", "absent_over_time"):
        return
    argument = bare(node.args[0]) if node.args else node
    matched = {
        matcher.label
        for each in selectors(argument)
        for matcher in each.matchers
        if matcher.op == "=" and matcher.label != "__name__"
    }
    kept = matched if isinstance(argument, Vector) else set[str]()
    wanted = {name for text in query.templates for name in _TEMPLATE_LABEL.findall(text)}
    needed = wanted if query.labels.keys() - {"severity"} else wanted | matched
    lost = sorted(needed - kept - query.labels.keys() - {"alertname"})
    if lost:
        names = ", ".join(lost)
        why = f'the result has the labels of plain {{label="value"}} only, so {names} is lost'
        fix = f"write {node.function}(metric{{…}}) with it, or set it under the rule's labels"
        yield Hit("TL033", node, why, fix)


def _idle_nan(query: LocatedQuery, root: Expr, context: LintContext) -> Iterator[Hit]:
    for node, around in walk(root):
        if not isinstance(node, Binary) or node.op != "/":
            continue
        divisor = bare(node.right)
        guarded = (
            (isinstance(divisor, Binary) and divisor.op in COMPARISONS | {"or"})
            or (isinstance(divisor, Call) and divisor.function in ("clamp_min", "scalar"))
            or any(
                isinstance(each, Binary) and each.op in COMPARISONS | {"and", "unless"}
                for each in around
            )
        )
        if not guarded and calls(divisor, COUNTER_FUNCTIONS):
            why = (
                f"without traffic this is 0/0, and one NaN in {query.name} makes every sum and "
                "average over it NaN for a whole window"
            )
            yield Hit("TL032", node, why, "divide by (… > 0)")


def _availability(query: LocatedQuery, root: Expr) -> Iterator[Hit]:
    named = " ".join((query.name, *query.labels.values(), *query.labels))
    if not _OF_SLOS.search(named):
        return
    for node, _ in walk(root):
        over_time = isinstance(node, Call) and node.function in _OVER_TIME
        share = isinstance(node, Binary) and node.op == "/"
        average = isinstance(node, Aggregate) and node.op == "avg"
        if (over_time or share or average) and _takes_up(node):
            yield Hit(
                "TL034",
                node,
                "`up` is the success of scrapes, not of requests: it is 1 while every request "
                "fails",
                "count requests: good ones divided by all",
            )
            return


def _takes_up(root: Expr) -> bool:
    """Whether the values of ``up`` count, and not only the existence of its series."""
    return any(
        isinstance(node, Vector)
        and node.name == "up"
        and not any(_only_selects(outer, inner) for outer, inner in pairwise((*around, node)))
        for node, around in walk(root)
    )


def _only_selects(outer: Expr, inner: Expr) -> bool:
    return isinstance(outer, Binary) and outer.op in ("and", "unless") and outer.right is inner


def _is_one(node: Expr) -> bool:
    """Whether an expression has at most one element."""
    node = bare(node)
    match node:
        case Number() | Call(function="scalar" | "vector" | "time" | "absent" | "pi"):
            return True
        case Aggregate():
            return node.is_one
        case Call():
            return all(_is_one(each) for each in node.args if not _is_text(each)) and bool(
                node.args
            )
        case Binary(op="and" | "unless", left=left):
            return _is_one(left)
        case Binary(left=left, right=right):
            return _is_one(left) and _is_one(right)
    return _is_text(node)


def _is_text(node: Expr) -> bool:
    return not is_range(node) and not any(selectors(node))
