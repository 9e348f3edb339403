"""Evaluate arithmetic on durations: ``[5m * 2]``, ``offset (step())``."""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import fmod, isfinite
from typing import Any

from promql.lexer import InvalidPromQL
from promql.tree import Binary, Call, Expr, Negative, Number, bare

MAX_SECONDS = 2**63 / 1e9
"""Prometheus counts nanoseconds in 64 bits."""
FUNCTIONS = frozenset({"max_of", "min_of", "range", "step"})
"""Functions that duration expressions may call."""


def seconds(node: Expr) -> float | None:
    """Return the seconds of a duration; None if they depend on the query, such as its step."""
    node = bare(node)
    match node:
        case Number(value=value):
            return value
        case Negative(expr=expr):
            value = seconds(expr)
            return None if value is None else -value
        case Call(function=function, args=args) if function.lower() in FUNCTIONS:
            wanted = 2 if function.lower().endswith("_of") else 0
            if len(args) != wanted:
                raise InvalidPromQL(f"{function} takes {wanted} arguments", node.start, node.end)
            lengths = [seconds(each) for each in args]
            if not lengths or None in lengths:
                return None
            return (max if function.lower() == "max_of" else min)(each or 0.0 for each in lengths)
        case Binary(op=op, left=left, right=right) if op in _ARITHMETIC:
            one, other = seconds(left), seconds(right)
            if op in "/%" and isinstance(bare(right), Number) and other == 0:
                raise InvalidPromQL("this divides by zero", node.start, node.end)
            if one is None or other is None:
                return None
            try:
                result = _ARITHMETIC[op](one, other)
            except (ArithmeticError, ValueError):
                return None
            return result if isinstance(result, float) and isfinite(result) else None
    raise InvalidPromQL("this is no length of time", node.start, node.end)


_ARITHMETIC: dict[str, Callable[[float, float], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": fmod,
    "^": operator.pow,
}
