"""Context of the checks: known metrics, rules, scrape interval."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from promql.lint.catalogue import Catalogue, Metric, Part, guess
from promql.matchers import Matcher, Template
from promql.tree import Aggregate, Binary, Call, Expr, Negative, Number, Vector, bare, walk

RATES = frozenset({"rate", "irate"})
COUNTER_FUNCTIONS = RATES | {"increase"}
RATIO = re.compile(r"(?<![a-zA-Z])ratio(?![a-zA-Z])")
"""The word in a name, unlike in ``duration``."""
DEFAULT_INTERVAL = 30.0
"""Seconds between two scrapes where no configuration states them."""
TWO_SAMPLES = COUNTER_FUNCTIONS | {"delta", "idelta", "deriv", "predict_linear"}


@dataclass(frozen=True, slots=True)
class LintContext:
    """Metrics that servers emit and that the linted files record.

    ``emitted`` is None if the servers are not given.  ``known`` are the metrics of all servers.
    ``summed`` are recorded series that a query sums over time.  ``scrape_interval`` is in seconds.
    """

    emitted: Catalogue | None
    known: Catalogue
    recorded: frozenset[str] = frozenset()
    summed: frozenset[str] = frozenset()
    scrape_interval: float = DEFAULT_INTERVAL
    interval_given: bool = False
    """Whether an option or a scrape configuration states the interval."""
    vocabulary: frozenset[str] = frozenset()
    """The labels of all known metrics."""
    rules: Mapping[str, Expr] = field(default_factory=dict)
    """The expressions of recording rules, by name."""

    def metric(self, selector: Vector) -> tuple[Metric, Part] | None:
        """Return the metric of a selector and the part of it, None if it is unknown."""
        name = selector.name
        if not name or name in self.recorded:
            return None
        found = self.emitted.find(name) if self.emitted else None
        found = found or self.known.find(name)
        return found or (None if self.known.covers(name) else guess(name))

    def guesses(self, selector: Vector) -> bool:
        """Whether a metric is guessed from its name."""
        return self.known.find(selector.name) is None

    def accumulates(self, selector: Vector) -> bool:
        """Whether the series count from the start of their process."""
        match self.metric(selector):
            case (_, "bucket" | "sum" | "count"):
                return True
            case (Metric(kind="counter"), ""):
                return True
        return False


def constant(node: Expr) -> float | None:
    """Return the value of arithmetic on numbers, None for any other expression."""
    node = bare(node)
    match node:
        case Number(value=value):
            return value
        case Negative(expr=expr):
            value = constant(expr)
            return None if value is None else -value
        case Binary(op="+" | "-" | "*" | "/" as op, left=left, right=right):
            one, other = constant(left), constant(right)
            if one is None or other is None or (op == "/" and other == 0):
                return None
            return {"+": one + other, "-": one - other, "*": one * other}.get(
                op, one / (other or 1.0)
            )
    return None


def calls(node: Expr, functions: Iterable[str]) -> bool:
    """Whether an expression calls any of the functions."""
    names = frozenset(functions)
    return any(isinstance(part, Call) and part.function in names for part, _ in walk(node))


def alternatives(matcher: Matcher) -> tuple[str, ...] | None:
    """Return the values that a positive matcher accepts, None if they cannot be listed."""
    if matcher.known_value is None:
        return None
    if matcher.op == "=":
        return (matcher.value,)
    if matcher.op != "=~":
        return None
    literal = re.sub(r"\\([.+*?|()\[\]{}^$-])", "", matcher.value)
    if re.search(r"[\\+*?()\[\]{}^$]", literal):
        return None
    return tuple(re.sub(r"\\(.)", r"\1", each) for each in matcher.value.split("|"))


def tests_existence(around: tuple[Expr, ...]) -> bool:
    """Whether an outer expression only tests that there are series."""
    return any(
        (isinstance(each, Call) and each.function in ("absent", "absent_over_time"))
        or (isinstance(each, Aggregate) and each.op in ("count", "group"))
        for each in around
    )


def merging_aggregation(around: tuple[Expr, ...], label: str) -> Aggregate | None:
    """Return the aggregation that merges series which differ by ``label``, None without one.

    ``around`` are the expressions around a selector.  The search stops at an operator between two
    vectors and at functions that write labels, which may add or remove the label.
    """
    for index in range(len(around) - 1, -1, -1):
        match around[index]:
            case Aggregate() as aggregate if not aggregate.keeps(label):
                return aggregate
            case Binary() as binary if not _keeps_series(binary):
                return None
            case Call(function="label_replace" | "label_join" | "histogram_quantile" | Template()):
                return None
    return None


def _keeps_series(binary: Binary) -> bool:
    """Whether an operator scales its vector or joins series, and keeps all labels."""
    return binary.op == "or" or any(
        constant(side) is not None or isinstance(bare(side), Number)
        for side in (binary.left, binary.right)
    )
