"""Build PromQL expressions from parts, and lay out long ones over several lines.

Arithmetic on expressions builds larger ones, so a ratio reads ``bad / total``.  Numbers are given
as :class:`decimal.Decimal`, ``int`` or ``str`` and written as the shortest decimal: ``0.001``, not
``0.0009999999999999432``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from decimal import Decimal
from functools import lru_cache

from promql.literals import decimal_text, quote
from promql.matchers import Matcher, one_of, selector_text
from promql.tree import (
    ATOM,
    Aggregate,
    Binary,
    Call,
    Expr,
    Matching,
    Number,
    Paren,
    Subquery,
    Text,
    Vector,
)

__all__ = [
    "Aggregate",
    "Binary",
    "Call",
    "Expr",
    "Matcher",
    "Matching",
    "Number",
    "Subquery",
    "Text",
    "Vector",
    "aggregate",
    "call",
    "decimal_text",
    "equal",
    "for_matchers",
    "ignoring",
    "number",
    "on",
    "one_of",
    "pretty",
    "quote",
    "selector_text",
    "vector",
]


def equal(labels: Mapping[str, str]) -> tuple[Matcher, ...]:
    """Return an equality matcher for each label, in the order given."""
    return tuple(Matcher(name, "=", value) for name, value in labels.items())


def number(value: Decimal | int | str) -> Number:
    """Make a scalar literal."""
    return Number(decimal_text(value))


def vector(
    metric: str,
    matchers: Iterable[Matcher] | Mapping[str, str] = (),
    window: str | None = None,
    offset: str | None = None,
) -> Vector:
    """Select ``metric``; a mapping of labels means equality."""
    chosen = equal(matchers) if isinstance(matchers, Mapping) else tuple(matchers)
    return Vector(metric, chosen, window, offset)


def call(function: str, *args: Expr) -> Call:
    """Call a PromQL function."""
    return Call(function, args)


def aggregate(
    op: str,
    expr: Expr,
    by: Iterable[str] = (),
    parameter: Expr | None = None,
    *,
    without: bool = False,
) -> Expr:
    """Aggregate ``expr``, keeping only the labels in ``by``, or all ``without`` those."""
    return Aggregate(op, expr, tuple(by) or None, parameter, without)


def on(*labels: str, group_left: Iterable[str] | None = None) -> Matching:
    """Match vectors on these labels; ``group_left`` matches many to one, and adds labels."""
    if group_left is None:
        return Matching("on", labels)
    return Matching("on", labels, "group_left", tuple(group_left))


def ignoring(*labels: str) -> Matching:
    """Match vectors on all labels but these."""
    return Matching("ignoring", labels)


def pretty(expr: Expr, width: int = 88) -> str:
    """Render ``expr`` on one line if it fits, else broken at its outermost operators.

    Every line after a break starts with its operator, and what is in parentheses is indented.
    Selectors and text given as such are never broken, so a line may still be longer.
    """
    return "\n".join(_lines(expr, width))


def _lines(expr: Expr, width: int, used: int = 0) -> list[str]:
    """Render ``expr`` after ``used`` characters on its first line."""
    text = str(expr)
    if used + len(text) <= width:
        return [text]
    match expr:
        case Binary(left, _, right):
            for_left, for_right = expr.needs
            operator = f"{expr.operator} "
            first, *rest = _lines_inside(right, for_right, width, len(operator))
            return [*_lines_inside(left, for_left, width, used), operator + first, *rest]
        case Call(function, args):
            return _block(f"{function}(", args, ")", width)
        case Aggregate():
            return _block(f"{expr.head}(", expr.args, ")", width)
        case Subquery(inner):
            *lines, last = _lines_inside(inner, ATOM, width, used)
            return [*lines, last + expr.suffix]
        case Paren(inner):
            return _block("(", (inner,), ")", width)
        case _:
            return [text]


def _lines_inside(expr: Expr, at_least: int, width: int, used: int) -> list[str]:
    if expr.strength >= at_least:
        return _lines(expr, width, used)
    text = f"({expr})"
    return [text] if used + len(text) <= width else _block("(", (expr,), ")", width)


def _block(opening: str, args: tuple[Expr, ...], closing: str, width: int) -> list[str]:
    lines = [opening]
    for arg in args:
        lines += [f"  {line}" for line in _lines(arg, width - 2)]
        lines[-1] += ","
    lines[-1] = lines[-1].removesuffix(",")
    return [*lines, closing]


def for_matchers(render: Callable[..., str]) -> Callable[..., str]:
    """Cache ``render(matchers, *values)``, a query whose selectors all end in ``matchers``.

    Where :func:`pretty` breaks a query depends on the length of its selectors, not on what they
    select: one rendering serves all matchers of the same length.
    """

    @lru_cache(maxsize=1 << 10)
    def rendered(length: int, *values: object) -> str:
        return render(_PLACEHOLDER * length, *values)

    def text(matchers: str, *values: Hashable) -> str:
        length = len(matchers)
        return rendered(length, *values).replace(_PLACEHOLDER * length, matchers)

    return text


_PLACEHOLDER = "\0"  # no query holds it
