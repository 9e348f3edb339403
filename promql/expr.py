"""PromQL expressions as data: build them from parts, render them to text.

Expressions are immutable and compare by value.  Arithmetic on them builds larger expressions, so a
ratio reads ``bad / total``.  Rendering adds only the parentheses that precedence requires; numbers
are written as the shortest decimal that says the same (``0.001``, never ``0.0009999999999999432``),
which is why they are given as :class:`decimal.Decimal`, ``int`` or ``str``.  :func:`pretty` breaks
long expressions over several lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
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
    "for_matchers",
    "number",
    "one_of",
    "pretty",
    "quote",
    "selector_text",
    "vector",
]

MatchOp = Literal["=", "!=", "=~", "!~"]

# Binding strength, weakest first; https://prometheus.io/docs/prometheus/latest/querying/operators/
PRECEDENCE = {
    "or": 1,
    **dict.fromkeys(("and", "unless"), 2),
    **dict.fromkeys(("==", "!=", ">", "<", ">=", "<=", "</", ">/"), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%", "atan2"), 5),
    "^": 6,
}
_ATOM = 7
_REGEX_META = re.compile(r"([\\.+*?()|\[\]{}^$])")


# Few texts and numbers stand in the many queries of a rule file.
_remembered = lru_cache(maxsize=1 << 14)


@_remembered
def quote(text: str) -> str:
    """Render ``text`` as a double-quoted PromQL string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


@_remembered
def decimal_text(value: Decimal | int | str) -> str:
    """Return the shortest plain decimal: no exponent, no trailing zeros."""
    value = Decimal(value)
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


PATTERN_ERRORS = (re.error, RecursionError, OverflowError)
"""What Python raises for patterns that it cannot compile: deep or long ones, too."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """One label matcher of a selector."""

    label: str
    op: MatchOp
    value: str

    def __str__(self) -> str:
        return self.label + self.op + quote(self.value)

    def accepts(self, value: str) -> bool:
        """Whether a label of this value is selected; regular expressions are Python's here."""
        if "~" not in self.op:
            return (value == self.value) is (self.op == "=")
        try:
            found = re.fullmatch(self.value, value) is not None
        except PATTERN_ERRORS:  # RE2 knows what Python does not
            return False
        return found is (self.op == "=~")


def equal(labels: Mapping[str, str]) -> tuple[Matcher, ...]:
    """Return an equality matcher for each label, in the order given."""
    return tuple(Matcher(name, "=", value) for name, value in labels.items())


def one_of(label: str, values: Iterable[str]) -> Matcher:
    """Match any of ``values`` literally; regular-expression characters in them are escaped."""
    return Matcher(label, "=~", "|".join(_REGEX_META.sub(r"\\\1", value) for value in values))


def selector_text(metric: str, matchers: Iterable[Matcher]) -> str:
    """Render an instant vector selector."""
    inside = ",".join([str(matcher) for matcher in matchers])
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

    def and_(self, other: Expr, matching: str = "") -> Binary:
        """Set intersection, on all labels unless ``matching`` says otherwise."""
        return Binary(self, "and", other, matching=matching)

    def unless(self, other: Expr, matching: str = "") -> Binary:
        """Set difference, on all labels unless ``matching`` says otherwise."""
        return Binary(self, "unless", other, matching=matching)

    def or_(self, other: Expr) -> Binary:
        """Set union."""
        return Binary(self, "or", other)


@dataclass(frozen=True, slots=True)
class Number(Expr):
    """A scalar literal."""

    text: str

    @property
    def strength(self) -> int:  # type: ignore[override]
        """An atom, but for the sign: ``-1 ^ 2`` is ``-(1 ^ 2)``."""
        return PRECEDENCE["*"] if self.text.startswith("-") else _ATOM

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Text(Expr):
    """PromQL given as text; parenthesised inside anything else, unless it is known to be whole."""

    text: str
    whole: bool = False

    @property
    def strength(self) -> int:  # type: ignore[override]
        """An atom if whole, such as a call; else nobody knows."""
        return _ATOM if self.whole else 0

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Vector(Expr):
    """An instant vector, or with ``window`` a range vector; as it was ``offset`` ago."""

    metric: str
    matchers: tuple[Matcher, ...] = ()
    window: str | None = None
    offset: str | None = None

    def __str__(self) -> str:
        text = selector_text(self.metric, self.matchers)
        if self.window is not None:
            text += f"[{self.window}]"
        return text if self.offset is None else f"{text} offset {self.offset}"


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

    @property
    def head(self) -> str:
        """What stands before the parenthesis."""
        return f"{self.op} by ({', '.join(self.by)}) " if self.by else self.op

    @property
    def args(self) -> tuple[Expr, ...]:
        """What stands between the parentheses."""
        return (self.parameter, self.expr) if self.parameter else (self.expr,)

    def __str__(self) -> str:
        return f"{self.head}({', '.join(map(str, self.args))})"


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
        return PRECEDENCE[self.op]

    @property
    def operator(self) -> str:
        """What stands between the operands."""
        text = f"{self.op} bool" if self.bool_ else self.op
        return f"{text} {self.matching}" if self.matching else text

    @property
    def needs(self) -> tuple[int, int]:
        """How strong each operand must be to stand without parentheses.

        All but ^ associate to the left, so an equal operator on the right needs them.
        """
        mine = self.strength
        return (mine + 1, mine) if self.op == "^" else (mine, mine + 1)

    def __str__(self) -> str:
        need_left, need_right = self.needs
        left, right = str(self.left), str(self.right)
        if self.left.strength < need_left:
            left = f"({left})"
        if self.right.strength < need_right:
            right = f"({right})"
        return f"{left} {self.operator} {right}"


def _inside(expr: Expr, at_least: int) -> str:
    return str(expr) if expr.strength >= at_least else f"({expr})"


def pretty(expr: Expr, width: int = 88) -> str:
    """Render ``expr`` on one line if it fits, else broken at its outermost operators.

    Every line after a break starts with its operator, and what is in parentheses is indented.
    Selectors and text given as such are never broken, so a line may still be longer.
    """
    return "\n".join(_lines(expr, width))


def _lines(expr: Expr, width: int, used: int = 0) -> list[str]:
    """Render ``expr`` after ``used`` characters that stand before it on its first line."""
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
        case Subquery(inner, window, step):
            *lines, last = _lines_inside(inner, _ATOM, width, used)
            return [*lines, f"{last}[{window}:{step}]"]
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


def aggregate(op: str, expr: Expr, by: Iterable[str] = (), parameter: Expr | None = None) -> Expr:
    """Aggregate ``expr``, keeping only the labels in ``by``."""
    return Aggregate(op, expr, tuple(by), parameter)
