"""PromQL expressions as an immutable tree, and its printer.

:mod:`promql.expr` builds trees, :func:`promql.parse.parse` reads them; both yield the same nodes.
``str(expr)`` prints a node with the fewest parentheses; :class:`Paren` keeps parentheses that a
text had.  Nodes compare by value.  A node from a text also has its place there, which does not
count in comparisons.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from promql.literals import number_value
from promql.matchers import (
    Matcher,
    Template,
    known_labels,
    labels_text,
    selector_text,
    string_text,
)

# Binding strength, weakest first; https://prometheus.io/docs/prometheus/latest/querying/operators/
PRECEDENCE = {
    "or": 1,
    **dict.fromkeys(("and", "unless"), 2),
    **dict.fromkeys(("==", "!=", ">", "<", ">=", "<=", "</", ">/"), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%", "atan2"), 5),
    "^": 6,
}
SET_OPERATORS = frozenset({"and", "or", "unless"})
COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
ATOM = 7
"""Binding strength of what never needs parentheses."""


@dataclass(frozen=True, slots=True)
class Expr:
    """A PromQL expression; ``text[start:end]`` is its source, if parsed."""

    start: int = field(default=0, compare=False, repr=False, kw_only=True)
    end: int = field(default=0, compare=False, repr=False, kw_only=True)
    strength = ATOM

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

    def and_(self, other: Expr, matching: Matching | None = None) -> Binary:
        """Set intersection, on all labels by default."""
        return Binary(self, "and", other, matching=matching)

    def unless(self, other: Expr, matching: Matching | None = None) -> Binary:
        """Set difference, on all labels by default."""
        return Binary(self, "unless", other, matching=matching)

    def or_(self, other: Expr) -> Binary:
        """Set union."""
        return Binary(self, "or", other)


@dataclass(frozen=True, slots=True)
class Number(Expr):
    """A scalar literal, which may be a duration."""

    text: str

    @property
    def value(self) -> float | None:
        """The number, a duration in seconds; None for a Grafana variable."""
        return None if isinstance(self.text, Template) else number_value(self.text)

    @property
    def strength(self) -> int:  # type: ignore[override]
        """An atom, but for the sign: ``-1 ^ 2`` is ``-(1 ^ 2)``."""
        return PRECEDENCE["*"] if self.text.startswith("-") else ATOM

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class String(Expr):
    """A string literal."""

    value: str

    def __str__(self) -> str:
        return string_text(self.value)


@dataclass(frozen=True, slots=True)
class Text(Expr):
    """PromQL text as an operand; parenthesised unless ``whole``, like a call."""

    text: str
    whole: bool = False

    @property
    def strength(self) -> int:  # type: ignore[override]
        """An atom if whole, else the weakest."""
        return ATOM if self.whole else 0

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Vector(Expr):
    """An instant vector selector, or with ``window`` a range vector selector.

    ``offset`` and ``at`` are the texts after these keywords; ``extended`` is ``anchored`` or
    ``smoothed``.  ``templates`` are matchers whose label a Grafana variable hides.
    """

    metric: str
    matchers: tuple[Matcher, ...] = ()
    window: str | None = None
    offset: str | None = None
    at: str | None = None
    extended: str = ""
    templates: tuple[Template, ...] = ()

    @property
    def name(self) -> str:
        """The metric, also from a ``__name__`` matcher; empty if unknown."""
        if not self.metric and not self.templates:
            named = [each for each in self.matchers if each.label == "__name__"]
            return named[0].known_value or "" if named and named[0].op == "=" else ""
        return "" if isinstance(self.metric, Template) else self.metric

    @property
    def shifted(self) -> bool:
        """Whether ``offset`` or ``@`` changes the evaluation time."""
        return self.offset is not None or self.at is not None

    def __str__(self) -> str:
        text = selector_text(self.metric, self.matchers, self.templates)
        if self.window is not None:
            text += f"[{self.window}]"
        if self.extended:
            text += f" {self.extended}"
        return text + _shift_text(self.offset, self.at)


def _shift_text(offset: str | None, at: str | None) -> str:
    text = "" if offset is None else f" offset {offset}"
    return text if at is None else f"{text} @ {at}"


@dataclass(frozen=True, slots=True)
class Subquery(Expr):
    """``(expr)[window:step]``: a range vector from evaluating ``expr`` every ``step``."""

    expr: Expr
    window: str
    step: str = ""
    offset: str | None = None
    at: str | None = None

    @property
    def suffix(self) -> str:
        """The text after the expression."""
        return f"[{self.window}:{self.step}]{_shift_text(self.offset, self.at)}"

    def __str__(self) -> str:
        return parenthesised(self.expr, ATOM) + self.suffix


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A function call."""

    function: str
    args: tuple[Expr, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class Aggregate(Expr):
    """An aggregation ``op by (grouping) (expr)``; ``grouping`` is None without that clause."""

    op: str
    expr: Expr
    grouping: tuple[str, ...] | None = None
    parameter: Expr | None = None
    without: bool = False

    @property
    def head(self) -> str:
        """The text before the parenthesis."""
        if self.grouping is None:
            return self.op
        clause = "without" if self.without else "by"
        return f"{self.op} {clause} {labels_text(self.grouping)} "

    @property
    def args(self) -> tuple[Expr, ...]:
        """The expressions between the parentheses."""
        return (self.parameter, self.expr) if self.parameter else (self.expr,)

    @property
    def labels(self) -> frozenset[str] | None:
        """The known labels of the grouping clause, None without one."""
        return None if self.grouping is None else known_labels(self.grouping)

    @property
    def templated(self) -> bool:
        """Whether the grouping clause contains Grafana variables."""
        return any(isinstance(label, Template) for label in self.grouping or ())

    @property
    def picks(self) -> bool:
        """Whether the result is a subset of the series, unchanged."""
        return self.op in ("topk", "bottomk", "limitk", "limit_ratio")

    @property
    def is_one(self) -> bool:
        """Whether the result has at most one element, without labels."""
        known = self.op != "count_values" and not isinstance(self.op, Template)
        return known and not (self.grouping or self.without or self.picks)

    def keeps(self, label: str) -> bool:
        """Whether the result has ``label``, or may have it."""
        if self.picks or self.templated:
            return True
        return (label in (self.grouping or ())) != self.without

    def __str__(self) -> str:
        return f"{self.head}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class Matching:
    """Vector matching: ``on (labels) group_left (include)``."""

    kind: Literal["on", "ignoring"]
    labels: tuple[str, ...] = ()
    group: Literal["", "group_left", "group_right"] = ""
    include: tuple[str, ...] | None = None

    def __str__(self) -> str:
        text = f"{self.kind} {labels_text(self.labels)}"
        if self.group:
            text += f" {self.group}"
        return text if self.include is None else f"{text} {labels_text(self.include)}"


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """``left op right``; ``fill`` is the text of fill modifiers."""

    left: Expr
    op: str
    right: Expr
    bool_: bool = False
    matching: Matching | None = None
    fill: str = ""

    @property
    def strength(self) -> int:  # type: ignore[override]
        """The binding strength of the operator."""
        return PRECEDENCE[self.op]

    @property
    def operator(self) -> str:
        """The text between the operands."""
        parts = (self.op, "bool" if self.bool_ else "", self.matching, self.fill)
        return " ".join([str(part) for part in parts if part])

    @property
    def grouped(self) -> bool:
        """Whether ``group_left`` or ``group_right`` matches many to one."""
        return self.matching is not None and self.matching.group != ""

    @property
    def needs(self) -> tuple[int, int]:
        """The precedence that each operand needs to omit parentheses.

        All but ^ associate to the left, so an equal operator on the right needs them.
        """
        mine = self.strength
        return (mine + 1, mine) if self.op == "^" else (mine, mine + 1)

    def __str__(self) -> str:
        need_left, need_right = self.needs
        if isinstance(self.right, Negative | Number):
            need_right = 0  # a sign after an operator belongs to what follows it
        left, right = parenthesised(self.left, need_left), parenthesised(self.right, need_right)
        return f"{left} {self.operator} {right}"


@dataclass(frozen=True, slots=True)
class Negative(Expr):
    """``-expr``."""

    expr: Expr
    strength = PRECEDENCE["*"]

    def __str__(self) -> str:
        needed = 0 if isinstance(self.expr, Negative) else PRECEDENCE["^"]
        return f"-{parenthesised(self.expr, needed)}"


@dataclass(frozen=True, slots=True)
class Paren(Expr):
    """``(expr)``, where a text has parentheses."""

    expr: Expr

    def __str__(self) -> str:
        return f"({self.expr})"


def parenthesised(expr: Expr, at_least: int) -> str:
    """Render an operand, in parentheses if it binds less than ``at_least``."""
    return str(expr) if expr.strength >= at_least else f"({expr})"


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the expressions directly inside another, in the order of the text."""
    match expr:
        case Subquery() | Negative() | Paren():
            return (expr.expr,)
        case Call() | Aggregate():
            return expr.args
        case Binary():
            return (expr.left, expr.right)
    return ()


def walk(expr: Expr, around: tuple[Expr, ...] = ()) -> Iterator[tuple[Expr, tuple[Expr, ...]]]:
    """Yield every part with the expressions around it, outermost first."""
    yield expr, around
    for child in children(expr):
        yield from walk(child, (*around, expr))


def bare(expr: Expr) -> Expr:
    """Return the expression inside any parentheses."""
    while isinstance(expr, Paren):
        expr = expr.expr
    return expr


def selectors(expr: Expr) -> Iterator[Vector]:
    """Yield the selectors of an expression."""
    return (part for part, _ in walk(expr) if isinstance(part, Vector))


def is_range(expr: Expr) -> bool:
    """Whether an expression is a range vector."""
    expr = bare(expr)
    return isinstance(expr, Subquery) or (isinstance(expr, Vector) and expr.window is not None)
