"""Convert common forms of error ratios into indicators.

``total - good`` becomes good events, ``count - bucket`` a histogram, ``sum by (host)`` an objective
per host.  Guards against missing series (``… or vector(0)``, ``clamp_min(…, 0)``) are dropped, as
the generated rules have their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from promql.expr import Matcher
from promql.lexer import InvalidPromQL
from promql.parse import parse
from promql.query import InstantQuery
from promql.tree import Aggregate, Binary, Call, Expr, Number, Paren, Vector, bare, walk
from slos.generic import WINDOW
from slos.imports.drafts import Notes, PlacedValue, as_rate, events_of_ratio, histogram, query_of
from slos.names import BASE_WINDOW

_FILLED = BASE_WINDOW.ljust(len(WINDOW))
"""The base window at the length of the placeholder, which keeps positions."""


@dataclass(frozen=True, slots=True)
class EventIndicator:
    """An indicator of events by its keys, and the labels to group by.

    ``lost`` marks series with error ratios of their own, which an objective cannot have.
    """

    indicator: Mapping[str, object]
    by: tuple[str, ...] = ()
    lost: bool = False


def events(role: str, part: str, total: str, *, counters: bool = False) -> EventIndicator:
    """Return the indicator for a query of good or bad events (``role``) and one of all events.

    A plain selector is a rate, or with ``counters`` a counter.
    """
    part, total = without_guards(part), without_guards(total)
    labels, lost = _grouping(part, total)
    if labels:
        part, total = _ungrouped(part), _ungrouped(total)
    if role == "bad" and (good := _good_events(part, total)):
        role, part = "good", good
    indicator_keys = _histogram(part, total) if role == "good" else None
    if not counters:
        part, total = as_rate(part), as_rate(total)
    indicator: Mapping[str, object] = indicator_keys or {role: part, "total": total}
    return EventIndicator(indicator, labels, lost)


_NOT_SUMMED = (
    "has several series with an error ratio each; here they are one",
    "sum them up, or group the rates of both counters by the same labels: sum by (host) (rate(…))",
)


def objective_keys(
    found: EventIndicator, role: str, events_: PlacedValue, total: PlacedValue, notes: Notes
) -> dict[str, object]:
    """Return indicator and ``group_by`` of an objective; note what is lost."""
    if found.lost:
        notes.lost(events_.place, *_NOT_SUMMED)
    places = {role: events_.place, "good": events_.place, "bad": events_.place}
    indicator = {
        key: PlacedValue(value, places.get(key, total.place))
        for key, value in found.indicator.items()
    }
    by = {"group_by": PlacedValue([*found.by], events_.place)} if found.by else {}
    return {"indicator": PlacedValue(indicator, events_.place), **by}


def quotient_keys(
    ratio: PlacedValue, notes: Notes, fix: str, *, success: bool = False
) -> Mapping[str, object]:
    """Return the keys of an objective for an error ratio, or one of ``success``."""
    indicator_keys = events_of_ratio(ratio, notes, fix, success=success)
    if "total" not in indicator_keys:
        if _labels(_node(str(ratio.value))):
            notes.lost(ratio.place, *_NOT_SUMMED)
        return {"indicator": PlacedValue(indicator_keys, ratio.place)}
    role = "good" if "good" in indicator_keys else "bad"
    found = events(role, str(indicator_keys[role].value), str(indicator_keys["total"].value))
    return objective_keys(found, role, indicator_keys[role], indicator_keys["total"], notes)


def without_guards(query: str) -> str:
    """Remove fallbacks for missing series and lower bounds of 0 from a query."""
    node = _node(query)
    return query if node is None else _text_without_parentheses(query, _unguarded(query, node))


def _unguarded(text: str, node: Expr) -> str:
    """Return the text of an expression without its guards."""
    node = bare(node)
    match node:
        case Binary(op="or", left=left, right=right) if _is_zero(right):
            return _unguarded(text, left)
        case Call(function="clamp_min", args=(inner, floor)) if _is_number(floor, 0.0):
            return _unguarded(text, inner)
        case Aggregate(op="sum", expr=inner) if _guarded(inner):
            head, tail = text[node.start : inner.start], text[inner.end : node.end]
            return f"{head}{_unguarded(text, inner)}{tail}"
        case Binary(op="+" | "-" as op, left=left, right=right, matching=None):
            one, other = _unguarded(text, left), _unguarded(text, right)
            if not (_guarded(left) or _guarded(right)):
                return text[node.start : node.end]
            rest = f" or {other}" if op == "+" else ""
            return f"({one} {op} {other}) or {one}{rest}"
    return text[node.start : node.end]


def _guarded(node: Expr) -> bool:
    node = bare(node)
    match node:
        case Binary(op="or", right=right):
            return _is_zero(right)
        case Call(function="clamp_min", args=(_, floor)):
            return _is_number(floor, 0.0)
    return False


def _is_zero(node: Expr) -> bool:
    """Whether an expression is ``vector(0)`` or something times 0."""
    node = bare(node)
    match node:
        case Call(function="vector", args=(value,)):
            return _is_number(value, 0.0)
        case Binary(op="*", left=left, right=right):
            return _is_number(left, 0.0) or _is_number(right, 0.0)
    return False


def _is_number(node: Expr, value: float) -> bool:
    node = bare(node)
    return isinstance(node, Number) and node.value == value


def _good_events(bad: str, total: str) -> str:
    """Return the good events of ``total - good``, empty for other bad events."""
    node = _node(bad)
    match bare(node) if node else None:
        # Without good events their series is absent, and all events are bad.
        case Binary(op="or", left=difference, right=whole):
            if not _same(_text(bad, whole), total):
                return ""
            node = difference
    match bare(node) if node else None:
        case Binary(op="-", left=left, right=right, matching=None) if _same(
            _text(bad, left), total
        ):
            return _text(bad, right)
        case Aggregate(op="sum", labels=None, without=False, expr=inner, parameter=None):
            match bare(inner):
                case Binary(op="-", left=left, right=right, matching=None):
                    if _same(f"sum({_text(bad, left)})", total):
                        return f"sum({_text(bad, right)})"
    return ""


def _histogram(good: str, total: str) -> Mapping[str, object] | None:
    """Return the histogram indicator whose bucket has the good events, None without one."""
    within, every = _counter(query_of(good)), _counter(query_of(total))
    if within is None or every is None:
        return None
    if every.metric.endswith("_bucket") and (others := _without_infinity(every)) is not None:
        every = Vector(f"{every.metric.removesuffix('_bucket')}_count", others)
    return histogram(within, every)


def _without_infinity(bucket: Vector) -> tuple[Matcher, ...] | None:
    boundaries = [each for each in bucket.matchers if each.label == "le"]
    if [(each.op, each.value) for each in boundaries] != [("=", "+Inf")]:
        return None
    return tuple(each for each in bucket.matchers if each.label != "le")


def _counter(query: InstantQuery | None) -> Vector | None:
    return (query.selector or query.rated) if query else None


# Grouping


def _grouping(part: str, total: str) -> tuple[tuple[str, ...], bool]:
    """Return the labels that both sums group by, and whether other series stay separate."""
    one, other = (_labels(_node(query)) for query in (part, total))
    if one == frozenset():
        return (), False
    if one is not None and one == other and one:
        are_counters = all(_counter(query_of(_ungrouped(query))) for query in (part, total))
        difference = _good_events(_ungrouped(part), _ungrouped(total))
        if are_counters or _counter(query_of(difference) if difference else None):
            return tuple(sorted(one)), False
    return (), True


def _labels(node: Expr | None) -> frozenset[str] | None:
    """Return the labels of the series that a query returns, None if unknown."""
    node = bare(node) if node else None
    match node:
        case None | Number() | Vector():  # one series
            return frozenset()
        case Aggregate() if node.picks or node.templated or node.op == "count_values":
            return None
        case Aggregate(without=False, labels=labels):
            return labels or frozenset()
        case Binary(op="and" | "unless", left=left):
            return _labels(left)
        case Binary(left=left, right=right, matching=None):
            one, other = _labels(left), _labels(right)
            return one if one == other else (one or other if _one_is_number(node) else None)
        case Call(function="vector" | "scalar"):
            return frozenset()
        case Call(function="clamp_min" | "clamp_max" | "clamp" | "abs" | "round", args=(inner, *_)):
            return _labels(inner)
    return None


def _one_is_number(node: Binary) -> bool:
    return any(isinstance(bare(side), Number) for side in (node.left, node.right))


def _ungrouped(query: str) -> str:
    """Remove the grouping clauses of a query's sums."""
    node = _node(query)
    if node is None:
        return query
    clauses = []
    for part, _ in walk(node):
        if isinstance(part, Aggregate) and part.labels and not part.without:
            inside = query[part.start : part.end]
            expression = query[part.expr.start : part.expr.end]
            clauses.append((inside, f"{part.op}({expression})"))
    for clause, plain in reversed(clauses):
        query = query.replace(clause, plain)
    return query


# Texts


def _node(query: str) -> Expr | None:
    try:
        return parse(query.replace(WINDOW, _FILLED), variables=False)
    except InvalidPromQL:
        return None


def _text(query: str, node: Expr) -> str:
    node = bare(node)
    return query[node.start : node.end]


def _text_without_parentheses(query: str, text: str) -> str:
    """Return a text, or the original query if only parentheses changed."""
    node = _node(query)
    whole = bare(node) if isinstance(node, Paren) else None
    return query if whole and text == query[whole.start : whole.end] else text


def _same(one: str, other: str) -> bool:
    """Whether two queries differ only in blanks, parentheses and the order of matchers."""
    read = [query_of(text) for text in (one, other)]
    texts = [
        _rendered(each) if each else text for each, text in zip(read, (one, other), strict=True)
    ]
    return texts[0] == texts[1]


def _rendered(query: InstantQuery) -> str:
    counter = query.rated or query.selector
    if counter is None:
        return "".join(query.text.split())
    matchers = sorted(map(str, counter.matchers))
    kind = "rate" if query.rated else "selector"
    return f"{kind} {counter.metric} {matchers}"
