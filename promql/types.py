"""What Prometheus checks of a query once it is parsed: functions, their arguments, types.

Names and arguments of functions: Prometheus 3.14, ``promql/parser/functions.go``, with those of
older releases; experimental ones count as known.  What a variable of Grafana hides is taken to be
right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NoReturn

from promql.lexer import NotPromQL
from promql.matchers import PATTERN_ERRORS, Matcher, Template
from promql.tree import (
    COMPARISONS,
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Expr,
    Negative,
    Number,
    Paren,
    String,
    Subquery,
    Vector,
    children,
    walk,
)

Type = Literal["scalar", "vector", "range", "text"]

_NAMES: Mapping[Type, str] = {
    "scalar": "a number",
    "vector": "an instant vector",
    "range": "a range such as x[5m]",
    "text": "text in quotes",
}

# What functions take: "?" after what may be left out, "*" after what may come any number of times.
_TAKES: Mapping[str, str] = {
    "": "end pi range start step time",
    "scalar": "vector",
    "scalar scalar": "max_of min_of",
    "vector": """
        abs absent acos acosh asin asinh atan atanh ceil cos cosh deg exp floor histogram_avg
        histogram_count histogram_stddev histogram_stdvar histogram_sum ln log10 log2 rad scalar sgn
        sin sinh sort sort_desc sqrt start_timestamp tan tanh timestamp
        """,
    "vector?": "day_of_month day_of_week day_of_year days_in_month hour minute month year",
    "vector vector?": "info",
    "vector scalar": "clamp_max clamp_min",
    "vector scalar?": "round",
    "vector scalar scalar": "clamp",
    "scalar vector": "histogram_quantile",
    "scalar scalar vector": "histogram_fraction",
    "vector text scalar scalar*": "histogram_quantiles",
    "vector text*": "sort_by_label sort_by_label_desc",
    "vector text text text*": "label_join",
    "vector text text text text": "label_replace",
    "range": """
        absent_over_time avg_over_time changes count_over_time delta deriv first_over_time idelta
        increase irate last_over_time mad_over_time max_over_time min_over_time present_over_time
        rate resets stddev_over_time stdvar_over_time sum_over_time ts_of_first_over_time
        ts_of_last_over_time ts_of_max_over_time ts_of_min_over_time
        """,
    "range scalar": "predict_linear",
    "range scalar scalar": "double_exponential_smoothing holt_winters",
    "scalar range": "quantile_over_time",
}
_FUNCTIONS = {name: tuple(takes.split()) for takes, all_ in _TAKES.items() for name in all_.split()}
_SCALARS = frozenset(["end", "max_of", "min_of", "pi", "range", "scalar", "start", "step", "time"])
_PARAMETERS: Mapping[str, Type] = {
    **dict.fromkeys(("bottomk", "limit_ratio", "limitk", "quantile", "topk"), "scalar"),
    "count_values": "text",
}


_Known = dict[int, Type | None]  # what the parts of an expression give, by id


def check(root: Expr) -> Type | None:
    """Return what an expression gives, None where a variable hides it.

    Raises :class:`~promql.lexer.NotPromQL` with one thing that Prometheus refuses.
    """
    parts = [node for node, _ in walk(root)]
    of_info = {id(each) for node in parts if _is_info(node) for each in children(node)[1:]}
    known: _Known = {}
    for node in reversed(parts):  # what is inside comes first
        if isinstance(node, Vector) and id(node) not in of_info:
            _selects(node)
        known[id(node)] = _gives(node, known)
    return known[id(root)]


def _gives(node: Expr, known: _Known) -> Type | None:
    match node:
        case Number(value=value):
            return None if value is None else "scalar"
        case String():
            return "text"
        case Vector():
            _patterns(node)
            return "vector" if node.window is None else "range"
        case Paren(expr=inner):
            return known[id(inner)]
        case Negative(expr=inner):
            return _want(inner, ("scalar", "vector"), "a sign", known)
        case Subquery(expr=inner):
            _want(inner, ("vector",), "a subquery", known)
            return "range"
        case Aggregate():
            return _aggregate(node, known)
        case Call():
            return _call(node, known)
        case Binary():
            return _binary(node, known)
    raise TypeError(node)


def _is_info(node: Expr) -> bool:
    return isinstance(node, Call) and node.function == "info"


def _refuse(node: Expr, message: str, fix: str = "correct it") -> NoReturn:
    raise NotPromQL(message, node.start, node.end, fix)


def _want(
    node: Expr, wanted: tuple[Type, ...], what: str, known: _Known, whole: Expr | None = None
) -> Type | None:
    """Check a part of something that takes certain types; ``whole`` is that, if not the part."""
    found = known[id(node)]
    if found is None or found in wanted:
        return found
    fix = "add the range to the metric" if (found, *wanted) == ("vector", "range") else "correct it"
    names = " or ".join(_NAMES[each] for each in wanted)
    _refuse(whole or node, f"{what} needs {names}, not {_NAMES[found]}", fix)


def _selects(node: Vector) -> None:
    if not (node.metric or node.templates) and all(map(_accepts_nothing, node.matchers)):
        fix = "name a metric, or a label that must have a value"
        _refuse(node, "this selects every series there is", fix)


def _patterns(node: Vector) -> None:
    """Check regular expressions, which are RE2's: only what is surely wrong is refused."""
    for each in node.matchers:
        if "~" in each.op and each.known_value is not None and (why := _wrong_pattern(each.value)):
            _refuse(node, f"the pattern of {each.label} is wrong: {why}")


_DEEPEST_PATTERN = 1000
"""Nested groups, and repetitions of one part, that RE2 takes."""
_PATTERN_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d+)(?:,(\d*))?\}|[()]", re.DOTALL)


def _wrong_pattern(pattern: str) -> str:
    """Return why RE2 refuses a pattern, "" if it does not or that is not known."""
    depth = 0
    for part in _PATTERN_PARTS.finditer(pattern):
        depth += (part[0] == "(") - (part[0] == ")")
        if depth > _DEEPEST_PATTERN:
            return f"more than {_DEEPEST_PATTERN} nested groups"
        if any(
            len(count) > 4 or int(count) > _DEEPEST_PATTERN for count in part.groups("") if count
        ):
            return f"a repetition of more than {_DEEPEST_PATTERN}"
    if _RE2_ONLY.search(pattern):
        return ""
    try:
        re.compile(pattern)
    except re.error as error:
        return str(error)
    except PATTERN_ERRORS:
        return ""
    return ""


_RE2_ONLY = re.compile(r"\(\?|\\[pPCQEz]|\[\[:")
"""What Python's expressions write in another way, or not at all."""


def _accepts_nothing(matcher: Matcher) -> bool:
    """Whether a series without the label is selected."""
    return matcher.known_value is not None and matcher.accepts("")


def _aggregate(node: Aggregate, known: _Known) -> Type:
    wanted = _PARAMETERS.get(node.op)
    templated = isinstance(node.op, Template)
    if not templated and (wanted is None) != (node.parameter is None):
        _refuse(node, f"{node.op} takes {'one argument' if wanted is None else 'two arguments'}")
    if wanted and node.parameter:
        _want(node.parameter, (wanted,), f"the first argument of {node.op}", known)
    _want(node.expr, ("vector",), "an aggregation" if templated else node.op, known, node)
    return "vector"


def _call(node: Call, known: _Known) -> Type | None:
    name, given = node.function, node.args
    if isinstance(name, Template):
        return None
    takes = _FUNCTIONS.get(name)
    if takes is None:
        _refuse(node, f"there is no function {name}")
    least = sum(each[-1] not in "?*" for each in takes)
    most = len(given) if takes and takes[-1].endswith("*") else len(takes)
    if not least <= len(given) <= most:
        some = f"{least}" if least == len(takes) else f"{least} or more"
        _refuse(node, f"{name} takes {some} argument{'s' * (some != '1')}, not {len(given)}")
    for at, each in enumerate(given):
        if name == "info" and at:
            _of_info(each)
        else:
            wanted: Type = takes[min(at, len(takes) - 1)].rstrip("?*")  # type: ignore[assignment]
            _want(each, (wanted,), name, known, node)
    return "scalar" if name in _SCALARS else "vector"


def _of_info(node: Expr) -> None:
    """Check what selects the labels that info() adds."""
    labels_only = isinstance(node, Vector) and (
        not node.name or any(each.label == "__name__" for each in node.matchers)
    )
    if not labels_only:
        _refuse(node, 'info needs labels only, such as {job="x"}')


def _binary(node: Binary, known: _Known) -> Type | None:
    types = tuple(
        _want(side, ("scalar", "vector"), node.op, known) for side in (node.left, node.right)
    )
    set_ = node.op in SET_OPERATORS
    if node.bool_ and node.op not in COMPARISONS:
        _refuse(node, f"{node.op} takes no bool: only comparisons do")
    if "scalar" in types and set_:
        _refuse(node, f"{node.op} needs an instant vector on both sides", "write vector(…)")
    if "scalar" in types and node.matching and node.matching.labels:
        _refuse(node, f"{node.matching.kind} needs an instant vector on both sides")
    if set_ and node.grouped:
        _refuse(node, f"{node.op} takes no group_left or group_right")
    if types == ("scalar", "scalar"):
        if node.op in COMPARISONS and not node.bool_:
            _refuse(node, f"{node.op} between two numbers needs bool", f"write {node.op} bool")
        return "scalar"
    if "vector" in types:
        return "vector"
    return None
