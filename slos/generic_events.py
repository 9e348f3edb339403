"""Good and bad events of user-defined indicators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from promql.expr import Binary, Expr, Text, Vector, aggregate, call, number, on, vector
from promql.query import InstantQuery
from slos.durations import parse_duration
from slos.events import (
    Counting,
    Events,
    absent,
    bucket,
    bucketed,
    native,
    outside,
    share_within,
    slices,
)
from slos.generic import counter_of, parsed
from slos.model import Objective
from slos.names import SLICE, TOTAL, series_labels

# Prometheus adds these labels to all counters of one target.
_ONE_TARGET = on("job", "instance")


def generic_events(
    objective: Objective, service: str, counting: Counting, is_native: bool = False
) -> Events:
    """Return the events of an objective with user-defined queries."""
    recorded = vector(TOTAL, series_labels(service, objective.name))
    queries = {role: parsed(text, counting.window) for role, text in objective.queries.items()}
    query = _GenericQueries(objective.threshold, queries, counting, call("absent", recorded))
    if is_native and "histogram" in queries:
        return _native_observations(query)
    return MEASURES[objective.indicator](query)


@dataclass(frozen=True, slots=True)
class _GenericQueries:
    """The queries of an objective by role, and ``boundary`` for a histogram.

    ``unmeasured`` marks that nothing was recorded.
    """

    boundary: Decimal | None
    queries: Mapping[str, InstantQuery]
    counting: Counting
    unmeasured: Expr

    def per_second(self, query: InstantQuery) -> Expr:
        """Return events per second, as a sum."""
        recorded = self.counting.recorded is not None
        counter = query.selector or (query.rated if self.counting.by or recorded else None)
        if counter:
            return self.counting.events(counter)
        return self.counting.scaled(query.sum if query.rated else _number(query.sum))

    def sum_of(self, selected: Vector, every: Vector) -> Expr:
        """Return the events of ``selected``, a subset of the events of the counter ``every``."""
        if selected == every:
            return self.counting.events(selected)
        return self.counting.events_with_new_series(selected, every, _ONE_TARGET)

    def missing(self, total: InstantQuery) -> Expr:
        """Return an element while no event is counted, by the counters where all queries are."""
        counter = counter_of(total)
        plain = all(map(counter_of, self.queries.values()))
        return absent(counter) if counter and plain else self.unmeasured


def _bad_events(of: _GenericQueries) -> Events:
    bad, total = of.queries["bad"], of.queries["total"]
    some, every = counter_of(bad), counter_of(total)
    all_ = of.per_second(total)
    if total.selector and bad.selector:
        known = of.sum_of(bad.selector, total.selector)
    else:
        known = of.per_second(bad)
        if not some:  # a difference of rates may be slightly below zero
            known = call("clamp_min", known, number(0))
    # Series of bad events that do not exist yet are zero while others are counted.
    bad_ = known.or_(all_ * number(0))
    inconsistent = _contradiction(of, some, every, known, all_, good=False)
    return Events(bad_, all_, of.missing(total), inconsistent=inconsistent)


def _good_events(of: _GenericQueries) -> Events:
    good, total = of.queries["good"], of.queries["total"]
    some, every = counter_of(good), counter_of(total)
    all_ = of.per_second(total)
    if total.selector and good.selector:
        good_ = of.sum_of(good.selector, total.selector)
    else:
        good_ = of.per_second(good)
    recorded = all_
    # No series of good events at all, while others are counted: all of those are bad.
    bad = (recorded - good_).or_(recorded)
    if of.counting.recorded is None:
        bad = call("clamp_min", all_ - good_, number(0)).or_(all_)
    inconsistent = _contradiction(of, some, every, good_, all_, good=True)
    return Events(bad, all_, of.missing(total), inconsistent=inconsistent)


def _contradiction(
    of: _GenericQueries,
    some: Vector | None,
    every: Vector | None,
    part: Expr,
    whole: Expr,
    *,
    good: bool,
) -> Expr | None:
    """Return an element while a part exceeds the whole; None for parts of one counter."""
    same = some is not None and every is not None and some.metric == every.metric
    return None if same else of.counting.contradiction(part, whole, good=good)


def _error_ratio(of: _GenericQueries) -> Events:
    """Count every evaluation of every series as a slice that is bad in part."""
    ratio = _expr(of.queries["ratio"])
    share = _number(call("clamp", ratio, number(0), number(1)))
    bad, total = (aggregate(op, share, of.counting.by) for op in ("sum", "count"))
    if of.counting.recorded is None:
        bad, total = (each / number(parse_duration(SLICE)) for each in (bad, total))
    return Events(bad, total, of.unmeasured, inconsistent=outside(ratio))


def _weighted_ratio(of: _GenericQueries) -> Events:
    ratio, weight = _expr(of.queries["ratio"]), of.queries["weight"]
    all_ = of.per_second(weight)
    share = call("clamp", aggregate("avg", ratio, of.counting.by), number(0), number(1))
    known = all_
    return Events(
        _number(share * known).or_(known * number(0)),
        all_,
        of.missing(weight),
        inconsistent=outside(ratio),
    )


def _observations(of: _GenericQueries) -> Events:
    histogram = of.queries["histogram"].selector
    assert histogram is not None  # noqa: S101  (read_generic requires it)
    assert of.boundary is not None  # noqa: S101  (likewise)
    return bucketed(histogram.metric, histogram.matchers, of.boundary, of.counting)


def _native_observations(of: _GenericQueries) -> Events:
    histogram = of.queries["histogram"].selector
    assert histogram is not None  # noqa: S101  (read_generic requires it)
    assert of.boundary is not None  # noqa: S101  (likewise)
    return native(histogram, of.boundary, of.counting)


def _gauge(of: _GenericQueries) -> Events:
    gauge = of.queries["gauge"]
    query = _expr(gauge)
    made = slices(query, Binary(query, "==", number(0), bool_=True), of.counting)
    return made if gauge.selector else Events(made.bad, made.total, of.unmeasured)


MEASURES: Mapping[str, Callable[[_GenericQueries], Events]] = {
    "bad_events": _bad_events,
    "good_events": _good_events,
    "error_ratio": _error_ratio,
    "weighted_ratio": _weighted_ratio,
    "histogram": _observations,
    "gauge": _gauge,
}
"""The events of an objective, by kind."""


def bad_share(objective: Objective, by: Iterable[str], *, is_native: bool = False) -> Expr | None:
    """Return the share of bad events by labels; None for a query without labels to group by."""

    def rate(counter: Vector) -> Expr:
        return aggregate("sum", Counting().rate(counter), by)

    queries = {role: parsed(text) for role, text in objective.queries.items()}
    match {role: counter_of(query) for role, query in queries.items()}:
        case {"bad": Vector() as bad, "total": Vector() as total}:
            return rate(bad) / rate(total)
        case {"good": Vector() as good, "total": Vector() as total}:
            return number(1) - rate(good) / rate(total)
        case {"histogram": Vector() as of} if objective.threshold is not None:
            if is_native:
                return number(1) - share_within(rate(of), objective.threshold)
            within = bucket(of.metric, of.matchers, objective.threshold)
            return number(1) - rate(within) / rate(vector(f"{of.metric}_count", of.matchers))
        case {"gauge": Vector() as gauge}:
            return aggregate("avg", Binary(gauge, "==", number(0), bool_=True), by)
    return None


def _expr(query: InstantQuery) -> Expr:
    return query.selector or Text(query.text)


def _number(expr: Expr) -> Expr:
    """Drop NaN: one recorded NaN makes every longer window NaN."""
    return expr.compare(">=", number(0))
