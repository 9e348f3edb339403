"""Queries that other people wrote: check that Prometheus takes them, and what kind they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, get_args

from promql.expr import Expr, Matcher, MatchOp, Text, Vector, aggregate

MAX_LENGTH = 10_000

# A string is kept as it is; blanks and comments between the words are one space.
_PIECES = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)|((?:\s|\#[^\n]*)+)""")
_OPS: tuple[MatchOp, ...] = get_args(MatchOp)


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


def read_query(text: str) -> Query:
    """Check a query as Prometheus 2.45 would; raises :class:`InvalidQuery`.

    The parser is loaded here, as only those need it who bring their own queries.
    """
    import promql_parser

    if len(text) > MAX_LENGTH:
        raise InvalidQuery(f"is longer than {MAX_LENGTH:,} characters")
    try:
        tree = promql_parser.parse(text)
    except ValueError as error:
        raise InvalidQuery(f"is not PromQL: {' '.join(str(error).split())}") from None
    text = one_line(text)
    try:
        promql_parser.parse(f"sum({text})")
    except ValueError:
        raise InvalidQuery("gives a range, a number or text, not an instant vector") from None
    while isinstance(tree, promql_parser.ParenExpr):
        tree = tree.expr
    summed = isinstance(tree, promql_parser.AggregateExpr) and not (
        tree.modifier or str(tree.op) in ("topk", "bottomk", "count_values")
    )
    return Query(text, _selector(tree), summed, _rated(tree), _metrics(tree))


def one_line(text: str) -> str:
    """Write a query on one line, without comments and with single spaces."""
    line, at = "", 0
    for piece in _PIECES.finditer(text):
        line += text[at : piece.start()]
        at = piece.end()
        inside = line[-1:] in ("", *"([{") or text[at : at + 1] in ("", *")]},")
        line += piece[1] or ("" if inside else " ")
    return line + text[at:]


def _selector(tree: Any) -> Vector | None:
    if type(tree).__name__ != "VectorSelector" or not tree.name:
        return None
    if tree.offset or tree.at or tree.matchers.or_matchers:
        return None
    return Vector(tree.name, tuple(map(_matcher, tree.matchers.matchers)))


def _rated(tree: Any) -> Vector | None:
    """Return x of ``sum(rate(x[5m]))``."""
    if type(tree).__name__ != "AggregateExpr" or str(tree.op) != "sum":
        return None
    call = tree.expr
    if type(call).__name__ != "Call" or call.func.name != "rate":
        return None
    (counter,) = call.args
    return _selector(getattr(counter, "vector_selector", None))


def _metrics(tree: Any) -> frozenset[str]:
    import promql_parser

    found: set[str] = set()

    def visit(part: Any) -> None:
        selector = getattr(part, "vector_selector", part)
        if type(selector).__name__ == "VectorSelector" and selector.name:
            found.add(selector.name)

    promql_parser.walk(tree, visit)
    return frozenset(found)


def _matcher(given: Any) -> Matcher:
    """Read the operator off the parser's text, which begins with the label's name."""
    rest = str(given).removeprefix(given.name)
    op = next(op for op in sorted(_OPS, key=len, reverse=True) if rest.startswith(op))
    return Matcher(given.name, op, given.value)
