"""Check functions, arguments and types of a parsed query, as Prometheus does.

Names and arguments of functions: Prometheus 3.14, ``promql/parser/functions.go``, with those of
older releases and the experimental ones.  A part that a Grafana variable hides is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NoReturn

from promql.lexer import InvalidPromQL
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

# Parameter types of functions: "?" marks an optional one, "*" one that may be repeated.
_SIGNATURES: Mapping[str, str] = {
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
_FUNCTIONS = {
    name: tuple(takes.split()) for takes, all_ in _SIGNATURES.items() for name in all_.split()
}
_SCALARS = frozenset(["end", "max_of", "min_of", "pi", "range", "scalar", "start", "step", "time"])
_PARAMETERS: Mapping[str, Type] = {
    **dict.fromkeys(("bottomk", "limit_ratio", "limitk", "quantile", "topk"), "scalar"),
    "count_values": "text",
}


_Types = dict[int, Type | None]
"""Types of the parts of an expression, by ``id``."""


def check(root: Expr) -> Type | None:
    """Check an expression and return its type, None if a Grafana variable hides it.

    Raises :class:`~promql.lexer.InvalidPromQL` with the first defect.
    """
    parts = [node for node, _ in walk(root)]
    of_info = {id(each) for node in parts if _is_info(node) for each in children(node)[1:]}
    known: _Types = {}
    for node in reversed(parts):  # inner parts first
        if isinstance(node, Vector) and id(node) not in of_info:
            _check_selector(node)
        known[id(node)] = _type_of(node, known)
    return known[id(root)]


def _type_of(node: Expr, known: _Types) -> Type | None:
    match node:
        case Number(value=value):
            return None if value is None else "scalar"
        case String():
            return "text"
        case Vector():
            _check_patterns(node)
            return "vector" if node.window is None else "range"
        case Paren(expr=inner):
            return known[id(inner)]
        case Negative(expr=inner):
            return _expect_type(inner, ("scalar", "vector"), "a sign", known)
        case Subquery(expr=inner):
            _expect_type(inner, ("vector",), "a subquery", known)
            return "range"
        case Aggregate():
            return _check_aggregate(node, known)
        case Call():
            return _check_call(node, known)
        case Binary():
            return _check_binary(node, known)
    raise TypeError(node)


def _is_info(node: Expr) -> bool:
    return isinstance(node, Call) and node.function == "info"


def _refuse(node: Expr, message: str, fix: str = "correct it") -> NoReturn:
    raise InvalidPromQL(message, node.start, node.end, fix)


def _expect_type(
    node: Expr, wanted: tuple[Type, ...], what: str, known: _Types, whole: Expr | None = None
) -> Type | None:
    """Return the type of an operand, and refuse other types than ``wanted``.

    ``whole`` is the part to name in the message, by default the operand.
    """
    found = known[id(node)]
    if found is None or found in wanted:
        return found
    fix = "add the range to the metric" if (found, *wanted) == ("vector", "range") else "correct it"
    names = " or ".join(_NAMES[each] for each in wanted)
    _refuse(whole or node, f"{what} needs {names}, not {_NAMES[found]}", fix)


def _check_selector(node: Vector) -> None:
    if not (node.metric or node.templates) and all(map(_accepts_empty, node.matchers)):
        fix = "name a metric, or a label that must have a value"
        _refuse(node, "this selects all series", fix)


def _check_patterns(node: Vector) -> None:
    """Refuse regular expressions that RE2 certainly refuses."""
    for each in node.matchers:
        if "~" in each.op and each.known_value is not None and (why := _pattern_defect(each.value)):
            _refuse(node, f"the pattern of {each.label} is wrong: {why}")


_PATTERN_LIMIT = 1000
"""Maximum of nested groups, and of repetitions, that RE2 accepts."""
_PATTERN_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d+)(?:,(\d*))?\}|[()]", re.DOTALL)


def _pattern_defect(pattern: str) -> str:
    """Return why RE2 refuses a pattern, empty if it accepts it or that is unknown."""
    depth = 0
    for part in _PATTERN_PARTS.finditer(pattern):
        depth += (part[0] == "(") - (part[0] == ")")
        if depth > _PATTERN_LIMIT:
            return f"more than {_PATTERN_LIMIT} nested groups"
        if any(len(count) > 4 or int(count) > _PATTERN_LIMIT for count in part.groups("") if count):
            return f"a repetition of more than {_PATTERN_LIMIT}"
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
"""Syntax that Python lacks or writes differently."""


def _accepts_empty(matcher: Matcher) -> bool:
    """Whether a matcher selects series without the label."""
    return matcher.known_value is not None and matcher.accepts("")


def _check_aggregate(node: Aggregate, known: _Types) -> Type:
    wanted = _PARAMETERS.get(node.op)
    templated = isinstance(node.op, Template)
    if not templated and (wanted is None) != (node.parameter is None):
        _refuse(node, f"{node.op} takes {'one argument' if wanted is None else 'two arguments'}")
    if wanted and node.parameter:
        _expect_type(node.parameter, (wanted,), f"the first argument of {node.op}", known)
    _expect_type(node.expr, ("vector",), "an aggregation" if templated else node.op, known, node)
    return "vector"


def _check_call(node: Call, known: _Types) -> Type | None:
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
            _check_info_selector(each)
        else:
            wanted: Type = takes[min(at, len(takes) - 1)].rstrip("?*")  # type: ignore[assignment]
            _expect_type(each, (wanted,), name, known, node)
    return "scalar" if name in _SCALARS else "vector"


def _check_info_selector(node: Expr) -> None:
    """Check the selector of the labels that info() adds."""
    labels_only = isinstance(node, Vector) and (
        not node.name or any(each.label == "__name__" for each in node.matchers)
    )
    if not labels_only:
        _refuse(node, 'info needs labels only, such as {job="x"}')


def _check_binary(node: Binary, known: _Types) -> Type | None:
    types = tuple(
        _expect_type(side, ("scalar", "vector"), node.op, known) for side in (node.left, node.right)
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
