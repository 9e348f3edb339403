"""Read and classify users' PromQL queries."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from promql.expr import Text, aggregate
from promql.lexer import InvalidPromQL
from promql.parse import parse
from promql.tree import Aggregate, Call, Expr, Vector, bare, selectors
from promql.types import check

MAX_LENGTH = 10_000

# Strings stay as they are; blanks and comments become one space.
_PIECES = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)|((?:\s|\#[^\n]*)+)""")
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class InvalidQuery(ValueError):  # noqa: N818  (reads as a statement at the raise)
    """A text is not PromQL, or not an instant vector; the message has the reason."""


@dataclass(frozen=True, slots=True)
class InstantQuery:
    """A query that returns an instant vector, on one line.

    ``selector`` is the query if it is a plain selector, and ``rated`` the counter of
    ``sum(rate(counter[…]))``.  ``summed`` marks a query with at most one element, without labels.
    ``metrics`` are the metrics it reads by name.
    """

    text: str
    selector: Vector | None
    summed: bool
    rated: Vector | None
    metrics: frozenset[str]

    @property
    def sum(self) -> Expr:
        """The sum of the query: one element without labels."""
        if self.summed:
            return Text(self.text, whole=True)
        return aggregate("sum", self.selector or Text(self.text))


@lru_cache(maxsize=1 << 16)  # each output reads the queries of all objectives again
def read_query(text: str) -> InstantQuery:
    """Parse and check a query as Prometheus 3 does; raises :class:`InvalidQuery`."""
    if len(text) > MAX_LENGTH:
        raise InvalidQuery(f"is longer than {MAX_LENGTH:,} characters")
    try:
        tree = parse(text)
        gives = check(tree)
    except InvalidPromQL as problem:
        raise InvalidQuery(f"is not PromQL: {problem.message}") from None
    if gives != "vector":
        raise InvalidQuery("gives a range, a number or text, not an instant vector")
    tree = bare(tree)
    summed = isinstance(tree, Aggregate) and tree.is_one
    metrics = frozenset(each.name for each in selectors(tree) if each.name)
    return InstantQuery(one_line(text), _selector(tree), summed, _rated(tree), metrics)


def one_line(text: str) -> str:
    """Join a query to one line, without comments and with single spaces."""
    line, at = "", 0
    for piece in _PIECES.finditer(text):
        line += text[at : piece.start()]
        at = piece.end()
        inside = line[-1:] in ("", *"([{") or text[at : at + 1] in ("", *")]},")
        line += piece[1] or ("" if inside else " ")
    return line + text[at:]


def _selector(tree: Expr) -> Vector | None:
    """Return a plain selector whose names need no quotes, None for any other expression."""
    if not isinstance(tree, Vector) or tree.shifted or not _METRIC.fullmatch(tree.metric):
        return None
    for each in tree.matchers:
        if each.label == "__name__" or not _LABEL.fullmatch(each.label):
            return None
    return Vector(tree.metric, tree.matchers)


def _rated(tree: Expr) -> Vector | None:
    """Return x of ``sum(rate(x[5m]))``."""
    match tree:
        case Aggregate(op="sum", expr=Call(function="rate", args=(counter,))):
            return _selector(counter)
    return None
