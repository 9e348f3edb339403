"""Count good and bad events in PromQL.

Shared by the indicators of tokenslo and by indicators that an SLO file defines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation

from promql.expr import (
    Binary,
    Expr,
    Matcher,
    Matching,
    Vector,
    aggregate,
    call,
    decimal_text,
    ignoring,
    number,
    one_of,
    vector,
)
from slos.model import TimeSlices
from slos.names import BAD, BASE_WINDOW, TOTAL

MINUTE = 60
"""Seconds over which rules record increases; also how often they are evaluated."""
_NOISE = Decimal("1.01")
LONGEST_GAP = "30m"
"""Longest scrape gap after which the increase during the gap still counts."""
# Larger values are no bucket boundaries, and 1e999999999 would exhaust the memory when written.
_LEAST_BOUNDARY, _MOST_BOUNDARY = Decimal("1e-12"), Decimal("1e18")


@dataclass(frozen=True, slots=True)
class Events:
    """The expressions that measure an objective; each has at most one element, without labels.

    ``bad`` and ``total`` are events, in the unit of their :class:`Counting`; a grouped objective
    has an element, with its labels, for each group.  ``missing`` has an element while the objective
    cannot be measured, ``uncovered`` while some servers are in neither count, and ``inconsistent``
    while the counts contradict each other (``None`` where that cannot happen).
    """

    bad: Expr
    total: Expr
    missing: Expr
    uncovered: Expr | None = None
    inconsistent: Expr | None = None


@dataclass(frozen=True, slots=True)
class Counting:
    """How to count events: per second over ``window``, in sums ``by`` these labels.

    With ``recorded``, the labels of an objective's recorded series, count the events of the last
    minute instead.  Then the total is recorded first, and ``bad`` may read it.  ``plain`` counts
    rates over ``window``.
    """

    window: str = BASE_WINDOW
    by: tuple[str, ...] = ()
    recorded: tuple[Matcher, ...] | None = None
    plain: bool = False

    @property
    def differs(self) -> bool:
        """Whether a count is the difference of two values, and not a rate."""
        return self.recorded is not None and not self.plain

    @property
    def seconds(self) -> int:
        """The unit of a count in seconds."""
        return 1 if self.recorded is None else MINUTE

    def sum(self, expr: Expr) -> Expr:
        """Return the sum for each combination of labels."""
        return aggregate("sum", expr, self.by)

    def rate(self, series: Vector) -> Expr:
        """Return a counter's rate per second."""
        return call("rate", replace(series, window=self.window))

    def scaled(self, per_second: Expr) -> Expr:
        """Return events in the unit of this counting."""
        return per_second if self.seconds == 1 else per_second * number(self.seconds)

    def each(self, counter: Vector, earlier: Vector | None = None) -> Expr:
        """Return the increase of each series of a counter.

        ``earlier`` selects the values of the minute before.  It may select more series: subtraction
        drops those without a later value.

        Increases between two evaluations add up to the increase over any window, at any scrape
        interval; ``rate`` extrapolates at both ends.  A counter has no increase in the minute in
        which it restarts or in which Prometheus first sees it: it may be old.
        """
        if not self.differs:
            return self.scaled(self.rate(counter))
        increase = self._last(counter) - self._before(earlier or counter)
        return increase.compare(">=", number(0))

    def observations(self, histogram: Vector) -> Expr:
        """Return the observations of native histograms, per second or in the last minute.

        A histogram that restarts has no increase in that minute.
        """
        if not self.differs:
            return self.rate(histogram)
        last, before = self._last(histogram), self._before(histogram)
        grown = Binary(call("histogram_count", last), ">=", call("histogram_count", before))
        return (last - before).and_(grown)

    def events(self, counter: Vector, earlier: Vector | None = None) -> Expr:
        """Return the sum of the increases of a counter's series; ``earlier`` as in :meth:`each`."""
        if self.plain:
            return self.scaled(self.sum(self.rate(counter)))
        return self.sum(self.each(counter, earlier))

    def events_with_new_series(
        self, counter: Vector, reference: Vector, matching: Matching
    ) -> Expr:
        """Return the sum of increases of a counter whose series may start with their first event.

        A new series has no earlier value: its value is its increase where the ``reference`` counter
        of the same target is older.
        """
        if not self.differs:
            return self.events(counter)
        new = self._last(counter).and_(self._before(reference), matching)
        return self.sum(self.each(counter).or_(new))

    def total(self, total: Expr) -> Expr:
        """Return the total: the recorded one without its labels, or else as given."""
        return total if self.recorded is None else self.sum(vector(TOTAL, self.recorded))

    def contradiction(self, part: Expr, whole: Expr, *, good: bool) -> Expr:
        """Return an element while good or bad events exceed all events by more than extrapolation.

        In recorded counts, more good events than all events are a negative count of bad ones.
        """
        if self.recorded is None:
            return exceeds(part, whole)
        bad, total = (
            call("sum_over_time", vector(name, self.recorded, BASE_WINDOW)) for name in (BAD, TOTAL)
        )
        if good:
            return bad.compare("<", total * number(1 - _NOISE))
        return exceeds(bad, total)

    def _last(self, series: Vector) -> Expr:
        return call("last_over_time", replace(series, window=LONGEST_GAP))

    def _before(self, series: Vector) -> Expr:
        return call(
            "last_over_time", replace(series, window=LONGEST_GAP, offset=f"{MINUTE // 60}m")
        )


def exceeds(part: Expr, whole: Expr) -> Expr:
    """Compare a part with the whole, with a margin for separate extrapolation."""
    return part.compare(">", whole * number(_NOISE))


def outside(ratio: Expr) -> Expr:
    """Count ratios below 0 or above 1."""
    no_ratio = ratio.compare("<", number(0)).or_(ratio.compare(">", number(_NOISE)))
    return aggregate("count", no_ratio)


def absent(expr: Expr) -> Expr:
    """Return 1 while ``expr`` is empty; the sum keeps its matchers from becoming labels."""
    return call("absent", aggregate("sum", expr))


def slices(observed: Expr, over: Expr, counting: Counting) -> Events:
    """Return the time slices of every series of ``observed``; ``over`` is 1 in bad ones, else 0."""
    bad, total = (aggregate(op, of, counting.by) for op, of in (("sum", over), ("count", observed)))
    if counting.recorded is None:
        bad, total = bad / number(MINUTE), total / number(MINUTE)
    return Events(bad, total, absent(observed))


def bucket(metric: str, chosen: tuple[Matcher, ...], boundary: Decimal) -> Vector:
    """Select the bucket of a histogram with the upper bound ``boundary``."""
    return vector(f"{metric}_bucket", (*chosen, boundary_matcher(boundary)))


def in_slices(each: Events, of: TimeSlices, counting: Counting) -> Events:
    """Count time slices instead of events; a slice is bad if too many of its events are.

    ``each`` are rates over one slice.  Every evaluation covers the slice that ends with it, in
    proportion to its share of the slice.  A slice without events is good: the objective is about
    time, so the budget is the same time at any traffic.
    """
    share = number(Decimal(counting.seconds) / of.window)
    over = Binary(each.bad, ">", each.total * number(1 - of.target), bool_=True)
    return replace(each, bad=over * share, total=each.total * number(0) + share)


def bucketed(
    metric: str, chosen: tuple[Matcher, ...], boundary: Decimal, counting: Counting
) -> Events:
    """Count the observations of a classic histogram; those above ``boundary`` are bad."""
    every, within = vector(f"{metric}_count", chosen), bucket(metric, chosen, boundary)
    # Without this boundary a server has no count of fast requests; its requests are not all slow.
    observed = counting.sum(counting.each(every).and_(within, ignoring("le")))
    in_time = counting.events(within)
    missing = absent(within)
    return Events(
        bad=counting.total(observed) - in_time,
        total=observed,
        missing=missing,
        uncovered=aggregate("count", every.unless(within, ignoring("le")))
        .compare(">", number(0))
        .unless(missing),
        inconsistent=counting.contradiction(in_time, observed, good=True),
    )


def native(histogram: Vector, boundary: Decimal, counting: Counting) -> Events:
    """Count the observations of a native histogram; those above ``boundary`` are bad.

    Their share is exact where ``boundary`` is a bucket boundary, as in a classic histogram that
    Prometheus 3 has converted; else it is interpolated within one bucket.
    """
    every = counting.sum(counting.observations(histogram))
    count = call("histogram_count", every)
    observed = count if counting.differs else counting.scaled(count)
    total = counting.total(observed)
    # Without observations the share is NaN.
    slow = ((number(1) - share_within(every, boundary)) * total).compare(">=", number(0))
    return Events(bad=slow.or_(total * number(0)), total=observed, missing=absent(histogram))


def share_within(histogram: Expr, boundary: Decimal) -> Expr:
    """Return the share of a native histogram's observations that are at most ``boundary``."""
    return call("histogram_fraction", number(0), number(boundary), histogram)


def boundary_matcher(threshold: Decimal) -> Matcher:
    """Match the bucket with the upper bound ``threshold`` in every spelling.

    Whole numbers are ``le="1"`` from Triton's serializer and ``le="1.0"`` from Python's, and
    Prometheus 3 rewrites the first into the second.  Python writes tiny ones as ``1e-05``.
    """
    text, python = decimal_text(threshold), repr(float(threshold))
    if "." not in text:
        return Matcher("le", "=~", text + r"(\.0)?")
    return Matcher("le", "=", text) if text == python else one_of("le", (text, python))


def matched_boundary(op: str, value: str) -> Decimal | None:
    """Return the boundary that a matcher of ``le`` selects, None if it is not a single one.

    Patterns of :func:`boundary_matcher` select a single one.
    """
    try:
        boundary = Decimal(value.removesuffix(r"(\.0)?").partition("|")[0].replace("\\.", "."))
    except InvalidOperation:
        return None
    if not (boundary.is_finite() and _LEAST_BOUNDARY <= boundary <= _MOST_BOUNDARY):
        return None
    pattern = boundary_matcher(boundary)
    return boundary if op == "=" or (op, value) == (pattern.op, pattern.value) else None
