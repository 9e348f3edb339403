"""How an objective is measured, and the PromQL that counts events rightly.

Shared by the indicators that tokenslo knows and by those that an SLO file brings along.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation

from promql.expr import (
    Binary,
    Expr,
    Matcher,
    Subquery,
    Vector,
    aggregate,
    call,
    decimal_text,
    number,
    one_of,
    vector,
)
from slos.durations import format_duration, parse_duration
from slos.model import TimeSlices
from slos.names import BASE_WINDOW

SLICE = "30s"
"""Length of a time slice: some objectives ask in each slice whether all was well."""
BASE_SECONDS = 300
"""The base window; a number of events in it divided by this is a rate."""
_NOISE = Decimal("1.01")
_LONGEST_GAP = "30m"
"""How long scrapes may fail, and what happened meanwhile be counted when they no longer do."""
# What is beyond is no edge of any histogram, and 1e999999999 would fill the memory when written.
_LEAST_EDGE, _MOST_EDGE = Decimal("1e-12"), Decimal("1e18")


@dataclass(frozen=True, slots=True)
class Events:
    """How an objective is measured; every expression gives one element without labels, or none.

    ``bad`` and ``total`` are events per second over the base window, and where an objective is
    grouped they have an element, with its labels, for each group.  ``missing`` has an element
    while the objective cannot be measured at all, ``uncovered`` while some servers report in a way
    that leaves them out of both rates (``None`` where that cannot happen).  ``impossible`` has one
    while the numbers contradict each other, which ``bad`` may hide (``None`` likewise).
    """

    bad: Expr
    total: Expr
    missing: Expr
    uncovered: Expr | None = None
    impossible: Expr | None = None


@dataclass(frozen=True, slots=True)
class Counting:
    """Over which ``window`` rates are, and ``by`` which labels their sums are told apart."""

    window: str = BASE_WINDOW
    by: tuple[str, ...] = ()

    def sum(self, expr: Expr) -> Expr:
        """Return the sum for each combination of labels."""
        return aggregate("sum", expr, self.by)

    def rate(self, series: Vector) -> Expr:
        """Return a counter's rate."""
        return call("rate", replace(series, window=self.window))

    def counted(self, some: Vector, known: Vector, matching: str) -> Expr:
        """Return the rate, by series, of ``some`` of the events that ``known`` counters tell of.

        A counter that appears with its first failure has nothing to rise from, so ``rate`` never
        sees that failure.  But while it is younger than the window, and the ``known`` counter
        beside it is not, its value *is* what happened in the window.  Before that first failure
        there is no series at all: while ``known`` is there, that means zero.
        """
        found = self.seen(some, known, matching)
        return found if some == known else found.or_(self.scraped(known) * number(0))

    def seen(self, some: Vector, known: Vector, matching: str) -> Expr:
        """Return the same as :meth:`counted` where there are series of ``some``."""
        newborn = some.unless(self.before(some)).and_(self.before(known), matching)
        return (newborn / number(parse_duration(self.window))).or_(self.risen(some))

    def risen(self, some: Vector) -> Expr:
        """Return the rate, by series, of a counter that may miss scrapes for a while.

        A difference loses nothing at the edges of scrapes, where ``rate`` has to extrapolate, nor
        between scrapes that are further apart than the window; but only ``rate`` sees through a
        reset.
        """
        was_reset = call("resets", replace(some, window=self.window)).compare(">", number(0))
        rise = (some - self.before(some)).compare(">=", number(0)).unless(was_reset)
        return (rise / number(parse_duration(self.window))).or_(self.rate(some))

    def before(self, some: Vector) -> Expr:
        """Return what counters were when the window began, or when last scraped before that."""
        return call("last_over_time", replace(some, window=_LONGEST_GAP, offset=self.window))

    def scraped(self, some: Vector) -> Expr:
        """Return what there was in the window."""
        return call("last_over_time", replace(some, window=self.window))


def exceeds(part: Expr, whole: Expr) -> Expr:
    """Say that a part is more than the whole, by more than what separate extrapolation makes."""
    return part.compare(">", whole * number(_NOISE))


def outside(ratio: Expr) -> Expr:
    """Say that some ratios are none, and how many."""
    no_ratio = ratio.compare("<", number(0)).or_(ratio.compare(">", number(_NOISE)))
    return aggregate("count", no_ratio)


def absent(expr: Expr) -> Expr:
    """Say that ``expr`` is empty; the sum keeps its matchers from becoming labels."""
    return call("absent", aggregate("sum", expr))


def slices(asked: Expr, over: Expr, by: Iterable[str] = ()) -> Events:
    """Return the time slices of every series of ``asked``; ``over`` is 1 in bad ones, else 0."""

    def per_second(function: str, of: Expr) -> Expr:
        some = call(function, Subquery(of, BASE_WINDOW, SLICE))
        return aggregate("sum", some, by) / number(BASE_SECONDS)

    return Events(
        per_second("sum_over_time", over), per_second("count_over_time", asked), absent(asked)
    )


def bucket(metric: str, chosen: tuple[Matcher, ...], edge: Decimal) -> Vector:
    """Select the bucket of a histogram that counts what is at most ``edge``."""
    return vector(f"{metric}_bucket", (*chosen, edge_matcher(edge)))


def in_slices(each: Events, of: TimeSlices) -> Events:
    """Turn the events of every slice into slices, which are bad if too many of their events are.

    ``each`` are rates over one slice.  A slice without events is good: time is promised, nobody was
    failed in it, and so the budget is the same time whatever the traffic.
    """
    step = format_duration(of.window)

    def per_second(function: str, asked: Expr) -> Expr:
        return call(function, Subquery(asked, BASE_WINDOW, step)) / number(BASE_SECONDS)

    over = Binary(each.bad, ">", each.total * number(1 - of.target), bool_=True)
    return replace(
        each,
        bad=per_second("sum_over_time", over),
        total=per_second("count_over_time", each.total),
    )


def bucketed(
    metric: str,
    chosen: tuple[Matcher, ...],
    edge: Decimal,
    counting: Counting,
    forgotten: Expr | None = None,
) -> Events:
    """Return the observations of a histogram; those above ``edge``, one of its own, are bad.

    ``forgotten`` are bad events per second that the histogram never sees.
    """
    every, within = vector(f"{metric}_count", chosen), bucket(metric, chosen, edge)
    # A server without this edge cannot tell slow from fast: it must not make all of them slow.
    observed = counting.sum(counting.risen(every).and_(counting.scraped(within), "ignoring (le)"))
    total = observed if forgotten is None else observed + forgotten
    in_time = counting.sum(counting.risen(within))
    missing = absent(within)
    return Events(
        # The rates are extrapolated separately, so their difference may be a hair below zero.
        bad=call("clamp_min", total - in_time, number(0)),
        total=total,
        missing=missing,
        uncovered=aggregate("count", every.unless(within, "ignoring (le)"))
        .compare(">", number(0))
        .unless(missing),
        impossible=exceeds(in_time, observed),
    )


def native(
    histogram: Vector,
    edge: Decimal,
    counting: Counting,
    unmeasured: Expr,
    forgotten: Expr | None = None,
) -> Events:
    """Return the observations of a native histogram; those above ``edge`` are bad.

    The share of them is exact where ``edge`` is a bucket edge, as in a classic histogram that
    Prometheus 3 has converted; else it is interpolated within one bucket.  ``unmeasured`` says that
    nothing was recorded.
    """
    every = counting.sum(counting.rate(histogram))
    observed = call("histogram_count", every)
    none = observed * number(0)
    # Of no observations there is no share; it is not a number.
    share = share_within(every, edge)
    in_time = (share * observed).compare(">=", number(0)).or_(none)
    total = observed if forgotten is None else observed + forgotten.or_(none)
    return Events(
        bad=call("clamp_min", total - in_time, number(0)), total=total, missing=unmeasured
    )


def share_within(histogram: Expr, edge: Decimal) -> Expr:
    """Return the share of a native histogram's observations that are at most ``edge``."""
    return call("histogram_fraction", number(0), number(edge), histogram)


def edge_matcher(threshold: Decimal) -> Matcher:
    """Match the bucket whose upper bound is ``threshold``, however it is spelled.

    Whole numbers are ``le="1"`` from Triton's serializer and ``le="1.0"`` from Python's, and
    Prometheus 3 rewrites the first into the second.  Python writes tiny ones as ``1e-05``.
    """
    text, python = decimal_text(threshold), repr(float(threshold))
    if "." not in text:
        return Matcher("le", "=~", text + r"(\.0)?")
    return Matcher("le", "=", text) if text == python else one_of("le", (text, python))


def matched_edge(op: str, value: str) -> Decimal | None:
    """Return the edge that a matcher of ``le`` selects; None if it is none, or not a single one.

    A pattern may be spelled as :func:`edge_matcher` does.
    """
    try:
        edge = Decimal(value.removesuffix(r"(\.0)?").partition("|")[0].replace("\\.", "."))
    except InvalidOperation:
        return None
    if not (edge.is_finite() and _LEAST_EDGE <= edge <= _MOST_EDGE):
        return None
    pattern = edge_matcher(edge)
    return edge if op == "=" or (op, value) == (pattern.op, pattern.value) else None
