"""PromQL expressions as data: build them from parts, render them to text.

Expressions are immutable and compare by value.  Arithmetic on them builds larger expressions, so a
ratio reads ``bad / total``.  Rendering adds only the parentheses that precedence requires; numbers
are written as the shortest decimal that says the same (``0.001``, never ``0.0009999999999999432``),
which is why they are given as :class:`decimal.Decimal`, ``int`` or ``str``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

__all__ = [
    "Aggregate",
    "Binary",
    "Call",
    "Expr",
    "Matcher",
    "Number",
    "Subquery",
    "Text",
    "Vector",
    "aggregate",
    "call",
    "decimal_text",
    "equal",
    "number",
    "one_of",
    "quote",
    "selector_text",
    "vector",
]

MatchOp = Literal["=", "!=", "=~", "!~"]

# Binding strength, weakest first; https://prometheus.io/docs/prometheus/latest/querying/operators/
_PRECEDENCE = {
    "or": 1,
    "and": 2,
    "unless": 2,
    "==": 3,
    "!=": 3,
    ">": 3,
    "<": 3,
    ">=": 3,
    "<=": 3,
    "+": 4,
    "-": 4,
    "*": 5,
    "/": 5,
    "%": 5,
    "^": 6,
}
_ATOM = 7
_REGEX_META = re.compile(r"([\\.+*?()|\[\]{}^$])")


def quote(text: str) -> str:
    """Render ``text`` as a double-quoted PromQL string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def decimal_text(value: Decimal | int | str) -> str:
    """Return the shortest plain decimal: no exponent, no trailing zeros."""
    value = Decimal(value)
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


@dataclass(frozen=True, slots=True)
class Matcher:
    """One label matcher of a selector."""

    label: str
    op: MatchOp
    value: str

    def __str__(self) -> str:
        return f"{self.label}{self.op}{quote(self.value)}"


def equal(labels: Mapping[str, str]) -> tuple[Matcher, ...]:
    """Return an equality matcher for each label, in the order given."""
    return tuple(Matcher(name, "=", value) for name, value in labels.items())


def one_of(label: str, values: Iterable[str]) -> Matcher:
    """Match any of ``values`` literally; regular-expression characters in them are escaped."""
    return Matcher(label, "=~", "|".join(_REGEX_META.sub(r"\\\1", value) for value in values))


def selector_text(metric: str, matchers: Iterable[Matcher]) -> str:
    """Render an instant vector selector."""
    inside = ",".join(map(str, matchers))
    return f"{metric}{{{inside}}}" if inside else metric


class Expr:
    """Any PromQL expression; ``str(expr)`` is its text."""

    __slots__ = ()
    strength = _ATOM

    def __add__(self, other: Expr) -> Binary:
        return Binary(self, "+", other)

    def __sub__(self, other: Expr) -> Binary:
        return Binary(self, "-", other)

    def __mul__(self, other: Expr) -> Binary:
        return Binary(self, "*", other)

    def __truediv__(self, other: Expr) -> Binary:
        return Binary(self, "/", other)

    def compare(self, op: Literal["==", "!=", ">", "<", ">=", "<="], other: Expr) -> Binary:
        """Filter (not ``bool``) comparison; Python's own operators keep their usual meaning."""
        return Binary(self, op, other)

    def and_(self, other: Expr) -> Binary:
        """Set intersection on all labels."""
        return Binary(self, "and", other)

    def or_(self, other: Expr) -> Binary:
        """Set union."""
        return Binary(self, "or", other)


@dataclass(frozen=True, slots=True)
class Number(Expr):
    """A scalar literal."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Text(Expr):
    """PromQL given as text; taken whole, so it is parenthesised inside anything else."""

    text: str
    strength = 0

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Vector(Expr):
    """An instant vector, or with ``window`` a range vector such as ``x[5m]`` or ``x[5m:30s]``."""

    metric: str
    matchers: tuple[Matcher, ...] = ()
    window: str | None = None

    def __str__(self) -> str:
        text = selector_text(self.metric, self.matchers)
        return text if self.window is None else f"{text}[{self.window}]"


@dataclass(frozen=True, slots=True)
class Subquery(Expr):
    """``(expr)[window:step]``: a range vector made by evaluating ``expr`` every ``step``."""

    expr: Expr
    window: str
    step: str

    def __str__(self) -> str:
        return f"{_inside(self.expr, _ATOM)}[{self.window}:{self.step}]"


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A function call."""

    function: str
    args: tuple[Expr, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class Aggregate(Expr):
    """``op by (labels) (expr)``; without labels everything is aggregated into one element."""

    op: str
    expr: Expr
    by: tuple[str, ...] = ()
    parameter: Expr | None = None

    def __str__(self) -> str:
        grouping = f" by ({', '.join(self.by)}) " if self.by else ""
        inside = f"{self.parameter}, {self.expr}" if self.parameter else str(self.expr)
        return f"{self.op}{grouping}({inside})"


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """``left op right``, with ``bool`` or vector matching where asked for."""

    left: Expr
    op: str
    right: Expr
    bool_: bool = False
    matching: str = ""  # such as "on (service, slo) group_left ()"

    @property
    def strength(self) -> int:  # type: ignore[override]
        """How tightly this operator binds its operands."""
        return _PRECEDENCE[self.op]

    def __str__(self) -> str:
        mine = self.strength
        # All but ^ associate to the left, so an equal operator on the right needs parentheses.
        left = _inside(self.left, mine + 1 if self.op == "^" else mine)
        right = _inside(self.right, mine if self.op == "^" else mine + 1)
        words = [left, self.op, "bool" if self.bool_ else "", self.matching, right]
        return " ".join(word for word in words if word)


def _inside(expr: Expr, at_least: int) -> str:
    return str(expr) if expr.strength >= at_least else f"({expr})"


def number(value: Decimal | int | str) -> Number:
    """Make a scalar literal."""
    return Number(decimal_text(value))


def vector(
    metric: str, matchers: Iterable[Matcher] | Mapping[str, str] = (), window: str | None = None
) -> Vector:
    """Select ``metric``; a mapping of labels means equality."""
    chosen = equal(matchers) if isinstance(matchers, Mapping) else tuple(matchers)
    return Vector(metric, chosen, window)


def call(function: str, *args: Expr) -> Call:
    """Call a PromQL function."""
    return Call(function, args)


def aggregate(op: str, expr: Expr, by: Iterable[str] = (), parameter: Expr | None = None) -> Expr:
    """Aggregate ``expr``, keeping only the labels in ``by``."""
    return Aggregate(op, expr, tuple(by), parameter)
