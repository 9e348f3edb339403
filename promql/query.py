"""Queries that other people wrote: check that Prometheus takes them, and what kind they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from promql.expr import Text, aggregate
from promql.lexer import NotPromQL
from promql.parse import parse
from promql.tree import Aggregate, Call, Expr, Vector, bare, selectors
from promql.types import check

MAX_LENGTH = 10_000

# A string is kept as it is; blanks and comments between the words are one space.
_PIECES = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)|((?:\s|\#[^\n]*)+)""")
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class InvalidQuery(ValueError):  # noqa: N818  (reads as a statement at the raise)
    """A text is not PromQL, or not an instant vector; says why."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query that gives an instant vector, on one line.

    ``selector`` is the whole query if that is a plain selector, and ``rated`` that of a counter if
    the query is the sum of its rate.  ``summed`` tells of a query that gives one element without
    labels at most, as it ends in an aggregation over all labels.  ``metrics`` are all that it reads
    by name.
    """

    text: str
    selector: Vector | None
    summed: bool
    rated: Vector | None
    metrics: frozenset[str]

    @property
    def sum(self) -> Expr:
        """One element without labels: the sum of what the query gives."""
        if self.summed:
            return Text(self.text, whole=True)
        return aggregate("sum", self.selector or Text(self.text))


@lru_cache(maxsize=1 << 16)  # each output reads the queries of all objectives again
def read_query(text: str) -> Query:
    """Check a query as Prometheus 3 would; raises :class:`InvalidQuery`."""
    if len(text) > MAX_LENGTH:
        raise InvalidQuery(f"is longer than {MAX_LENGTH:,} characters")
    try:
        tree = parse(text, variables=False)
        gives = check(tree)
    except NotPromQL as problem:
        raise InvalidQuery(f"is not PromQL: {problem.message}") from None
    if gives != "vector":
        raise InvalidQuery("gives a range, a number or text, not an instant vector")
    tree = bare(tree)
    summed = isinstance(tree, Aggregate) and tree.is_one
    metrics = frozenset(each.name for each in selectors(tree) if each.name)
    return Query(one_line(text), _selector(tree), summed, _rated(tree), metrics)


def one_line(text: str) -> str:
    """Write a query on one line, without comments and with single spaces."""
    line, at = "", 0
    for piece in _PIECES.finditer(text):
        line += text[at : piece.start()]
        at = piece.end()
        inside = line[-1:] in ("", *"([{") or text[at : at + 1] in ("", *")]},")
        line += piece[1] or ("" if inside else " ")
    return line + text[at:]


def _selector(tree: Expr) -> Vector | None:
    """Return a plain selector of a metric, if all of its names can be written without quotes."""
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
