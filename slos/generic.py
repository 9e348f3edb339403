"""Indicators that an SLO file defines: queries and metrics of any service.

Their PromQL is used unchanged, with ``{window}`` replaced by the base window; the file's
``selector`` is not added.  A query of events returns events per second.  A plain counter may stand
for its rate: then errors with which a series starts are counted as well, which no query of the form
``rate(…)`` can do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from promql.expr import (
    Binary,
    Expr,
    Text,
    Vector,
    aggregate,
    call,
    decimal_text,
    number,
    on,
    vector,
)
from promql.query import MAX_LENGTH, InstantQuery, InvalidQuery, one_line, read_query
from slos.durations import format_duration, parse_duration
from slos.errors import BadValue
from slos.events import (
    SLICE,
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
from slos.model import Objective
from slos.names import BASE_WINDOW, TOTAL, series_labels
from slos.schema import (
    DURATION,
    Field,
    Place,
    Reader,
    Shape,
    expect,
    mapping_of,
    read_mapping,
    read_value,
)

WINDOW = "{window}"

FORMS: Mapping[frozenset[str], str] = {
    frozenset({"bad", "total"}): "bad_events",
    frozenset({"good", "total"}): "good_events",
    frozenset({"ratio"}): "error_ratio",
    frozenset({"ratio", "weight"}): "weighted_ratio",
    frozenset({"histogram", "threshold"}): "histogram",
    frozenset({"gauge"}): "gauge",
}
"""Indicators by their keys."""

# Names of counters.  Gauges and recorded rates have other forms.
_COUNTER = re.compile(r"[^:]*_(?:total|count|bucket|sum)")
_PART = re.compile(r"_(?:bucket|count|sum)$")
# Prometheus adds these labels to all counters of one target.
_ONE_TARGET = on("job", "instance")
# Units per second, by the suffix of a metric.
_UNITS = {"_seconds": Decimal(1), "_milliseconds": Decimal(1000), "_ms": Decimal(1000)}


@dataclass(frozen=True, slots=True)
class Generic:
    """A user's indicator: its kind, one of :data:`FORMS`, and its queries by role.

    ``threshold`` is a bucket boundary of a histogram, in the unit of its metric.
    """

    kind: str
    queries: Mapping[str, str]
    threshold: Decimal | None


def is_counter(selector: Vector) -> bool:
    """Whether a selector selects a counter by its name, and may stand for its rate."""
    return bool(_COUNTER.fullmatch(selector.metric))


def parsed(text: str, window: str = BASE_WINDOW) -> InstantQuery:
    """Read a query of an SLO file; raises :class:`~promql.query.InvalidQuery`."""
    return read_query(text.replace(WINDOW, window))


def can_be_grouped(indicator: Generic) -> bool:
    """Whether all queries keep labels: they are plain counters."""
    return all(_counter(parsed(text)) for text in indicator.queries.values())


def can_be_sliced(indicator: Generic) -> bool:
    """Whether all queries can be evaluated over one slice."""
    return all(WINDOW in text or parsed(text).selector for text in indicator.queries.values())


def unit_of(metric: str) -> Decimal | None:
    """Return how many units of a metric make a second, None if its name has no unit."""
    return next((unit for end, unit in _UNITS.items() if metric.endswith(end)), None)


def edge_text(objective: Objective) -> str:
    """Write the threshold of a histogram: a duration if its unit is known."""
    assert objective.threshold is not None  # noqa: S101  (read_generic requires it)
    unit = unit_of(objective.queries["histogram"].partition("{")[0])
    seconds = objective.threshold / unit if unit else None
    return decimal_text(objective.threshold) if seconds is None else format_duration(seconds)


# Reading


def read_generic(value: object, place: Place) -> Generic | None:
    """Read an indicator; return None after reporting its problems."""
    before = len(place.problems)
    read = read_mapping(GENERIC, value, place)
    if len(place.problems) > before:
        return None
    kind = FORMS.get(frozenset(read))
    if kind is None:
        known = " or ".join(f"{{{', '.join(sorted(keys))}}}" for keys in FORMS)
        raise BadValue(f"is no indicator with {', '.join(read) or 'nothing'}", f"give {known}")
    edge = read.pop("threshold", None)
    if edge is not None:
        metric = read["histogram"].partition("{")[0]
        edge = read_value(_edge_of(metric), edge, place.at("threshold"))
    return Generic(kind, read, edge)


def _query(value: object, _: Place) -> str:
    text: str = expect(str, "a PromQL query", value)
    if "{{" in text:
        raise BadValue('holds "{{", a template that is not filled in', f"write {WINDOW}")
    try:
        parsed(text)
    except InvalidQuery as error:
        raise BadValue(str(error), "correct the query") from None
    return one_line(text)


def _events(value: object, place: Place) -> str:
    text = _query(value, place)
    selector = parsed(text).selector
    if selector and not is_counter(selector):
        raise BadValue(
            f"selects {selector.metric}, which is neither a rate nor, by its name, a counter",
            f"write sum(rate({text}[{WINDOW}])) if it is a counter, or sum({text}) if it is a rate",
        )
    return text


def _histogram(value: object, place: Place) -> str:
    text = _query(value, place)
    selector = parsed(text).selector
    if selector is None:
        raise BadValue("is no plain selector", "write one, such as http_request_duration_seconds")
    if _PART.search(selector.metric):
        name = _PART.sub("", selector.metric)
        raise BadValue(f"{selector.metric} is a part of a histogram", f"write {name}")
    if any(matcher.label == "le" for matcher in selector.matchers):
        raise BadValue("selects by le, which the threshold says", "delete it")
    return text


def _threshold(value: object, _: Place) -> Any:
    return expect((str, int, float), "a duration such as 400ms, or a bucket edge", value)


def _edge_of(metric: str) -> Reader:
    """Read a bucket boundary of ``metric``, in its own unit or as a duration."""
    unit = unit_of(metric)

    def read(value: object, _: Place) -> Decimal:
        if not isinstance(value, str):
            edge = Decimal(repr(value))
        elif unit is None:
            why = f"the unit of {metric} is unknown, as its name does not end in _seconds or _ms"
            raise BadValue(why, "write the bucket edge as a bare number")
        else:
            edge = parse_duration(value) * unit
        if not edge.is_finite() or edge <= 0:
            raise BadValue("is not above 0", "write a bucket edge of the histogram")
        return edge.normalize()

    return read


_EVENTS = "A PromQL query of {what} events per second with [{window}], or a plain counter."
_QUERY: Shape = {"type": "string", "minLength": 1, "maxLength": MAX_LENGTH}
GENERIC = (
    Field("bad", _events, about=_EVENTS.replace("{what}", "bad"), shape=_QUERY),
    Field("good", _events, about=_EVENTS.replace("{what}", "good"), shape=_QUERY),
    Field("total", _events, about=_EVENTS.replace("{what}", "all"), shape=_QUERY),
    Field("ratio", _query, about="A PromQL query of the error ratio, 0 to 1.", shape=_QUERY),
    Field("weight", _events, about=_EVENTS.replace("{what}", "the ratio's"), shape=_QUERY),
    Field("histogram", _histogram, about="A histogram, without _bucket.", shape=_QUERY),
    Field(
        "threshold",
        _threshold,
        about="One of the histogram's bucket edges: a duration, or a number in its unit.",
        shape={"anyOf": [DURATION, {"type": "number"}]},
    ),
    Field(
        "gauge", _query, about="A PromQL query that gives 0 while all is not well.", shape=_QUERY
    ),
)
GENERIC_SHAPE: Shape = {
    **mapping_of(GENERIC),
    "oneOf": [{"required": sorted(keys), "maxProperties": len(keys)} for keys in FORMS],
}
"""The shape of a user-defined indicator."""


# Measuring


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
    """The queries of an objective by role, and ``edge`` for a histogram.

    ``unmeasured`` marks that nothing was recorded.
    """

    edge: Decimal | None
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

    def sum_of(self, some: Vector, every: Vector) -> Expr:
        """Return ``some`` of the events that ``every`` counter counts."""
        if some == every:
            return self.counting.events(some)
        return self.counting.born_late(some, every, _ONE_TARGET)

    def missing(self, total: InstantQuery) -> Expr:
        """Return an element while no event is counted, by the counters where all queries are."""
        counter = _counter(total)
        plain = all(map(_counter, self.queries.values()))
        return absent(counter) if counter and plain else self.unmeasured


def _bad_events(of: _GenericQueries) -> Events:
    bad, total = of.queries["bad"], of.queries["total"]
    some, every = _counter(bad), _counter(total)
    all_ = of.per_second(total)
    if total.selector and bad.selector:
        known = of.sum_of(bad.selector, total.selector)
    else:
        known = of.per_second(bad)
        if not some:  # a difference of rates may be slightly below zero
            known = call("clamp_min", known, number(0))
    # Series of bad events that do not exist yet are zero while others are counted.
    bad_ = known.or_(all_ * number(0))
    impossible = _contradiction(of, some, every, known, all_, good=False)
    return Events(bad_, all_, of.missing(total), impossible=impossible)


def _good_events(of: _GenericQueries) -> Events:
    good, total = of.queries["good"], of.queries["total"]
    some, every = _counter(good), _counter(total)
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
    impossible = _contradiction(of, some, every, good_, all_, good=True)
    return Events(bad, all_, of.missing(total), impossible=impossible)


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
    return Events(bad, total, of.unmeasured, impossible=outside(ratio))


def _weighted_ratio(of: _GenericQueries) -> Events:
    ratio, weight = _expr(of.queries["ratio"]), of.queries["weight"]
    all_ = of.per_second(weight)
    share = call("clamp", aggregate("avg", ratio, of.counting.by), number(0), number(1))
    known = all_
    return Events(
        _number(share * known).or_(known * number(0)),
        all_,
        of.missing(weight),
        impossible=outside(ratio),
    )


def _observations(of: _GenericQueries) -> Events:
    histogram = of.queries["histogram"].selector
    assert histogram is not None  # noqa: S101  (read_generic requires it)
    assert of.edge is not None  # noqa: S101  (likewise)
    return bucketed(histogram.metric, histogram.matchers, of.edge, of.counting)


def _native_observations(of: _GenericQueries) -> Events:
    histogram = of.queries["histogram"].selector
    assert histogram is not None  # noqa: S101  (read_generic requires it)
    assert of.edge is not None  # noqa: S101  (likewise)
    return native(histogram, of.edge, of.counting)


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
    match {role: _counter(query) for role, query in queries.items()}:
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
    """Drop NaN: one recorded NaN would spoil every longer window."""
    return expr.compare(">=", number(0))


def _counter(query: InstantQuery) -> Vector | None:
    return query.selector or query.rated
