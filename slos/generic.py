"""Indicators that an SLO file defines: queries and metrics of any service.

Their PromQL is used unchanged, with ``{window}`` replaced by the base window; the file's
``selector`` is not added.  A query of events returns events per second.  A plain counter may stand
for its rate: then errors with which a series starts are counted as well, which no query of the form
``rate(…)`` can do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from promql.expr import Vector
from promql.query import MAX_LENGTH, InstantQuery, InvalidQuery, one_line, read_query
from slos.durations import parse_duration
from slos.errors import BadValue
from slos.histogram_units import unit_of
from slos.names import BASE_WINDOW
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


@dataclass(frozen=True, slots=True)
class Generic:
    """A user's indicator: its kind, one of :data:`FORMS`, and its queries by role.

    ``threshold`` is a bucket boundary of a histogram, in the unit of its metric.
    """

    kind: str
    queries: Mapping[str, str]
    threshold: Decimal | None


def is_counter(selector: Vector) -> bool:
    """Whether a selector names a counter, so that its rate is used."""
    return bool(_COUNTER.fullmatch(selector.metric))


def parsed(text: str, window: str = BASE_WINDOW) -> InstantQuery:
    """Read a query of an SLO file; raises :class:`~promql.query.InvalidQuery`."""
    return read_query(text.replace(WINDOW, window))


def counter_of(query: InstantQuery) -> Vector | None:
    """Return the counter of a plain selector, or of the sum of its rate."""
    return query.selector or query.rated


def can_be_grouped(indicator: Generic) -> bool:
    """Whether all queries keep labels: they are plain counters."""
    return all(counter_of(parsed(text)) for text in indicator.queries.values())


def can_be_sliced(indicator: Generic) -> bool:
    """Whether all queries can be evaluated over one slice."""
    return all(WINDOW in text or parsed(text).selector for text in indicator.queries.values())


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
    boundary = read.pop("threshold", None)
    if boundary is not None:
        metric = read["histogram"].partition("{")[0]
        boundary = read_value(_boundary_of(metric), boundary, place.at("threshold"))
    return Generic(kind, read, boundary)


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
    return expect((str, int, float), "a duration such as 400ms, or a bucket boundary", value)


def _boundary_of(metric: str) -> Reader:
    """Read a bucket boundary of ``metric``, in its own unit or as a duration."""
    unit = unit_of(metric)

    def read(value: object, _: Place) -> Decimal:
        if not isinstance(value, str):
            boundary = Decimal(repr(value))
        elif unit is None:
            why = f"the unit of {metric} is unknown, as its name does not end in _seconds or _ms"
            raise BadValue(why, "write the bucket boundary as a bare number")
        else:
            boundary = parse_duration(value) * unit
        if not boundary.is_finite() or boundary <= 0:
            raise BadValue("is not above 0", "write a bucket boundary of the histogram")
        return boundary.normalize()

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
        about="One of the histogram's bucket boundaries: a duration, or a number in its unit.",
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
