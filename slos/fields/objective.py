"""Read an objective of an SLO file, and check its keys against its indicator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from slos.durations import parse_duration, parse_share
from slos.errors import BadValue, quoted
from slos.fields.alerting import OVERRIDES, read_overrides
from slos.fields.error_budget import ERROR_BUDGET, read_error_budget
from slos.fields.reserved_labels import GROUP_RESERVED, SELECTOR_RESERVED, SERVICE_RESERVED
from slos.fields.time_slices import TIME_SLICES, read_time_slices
from slos.fields.values import (
    NAME_SHAPE,
    is_quantity,
    read_histograms,
    read_name,
    read_ratio,
    read_seconds,
    read_target,
    read_threshold,
)
from slos.generic import GENERIC_SHAPE, WINDOW, Generic, can_be_grouped, can_be_sliced, read_generic
from slos.indicators import CLAUSES, INDICATORS, has_refusals
from slos.model import HISTOGRAMS, Alerting, Overrides
from slos.schema import (
    DURATION,
    LABEL_NAME,
    LINE,
    SHARE,
    Field,
    Place,
    Reader,
    Shape,
    alert_labels,
    expect,
    label_map,
    list_of,
    mapping_of,
    names_to_text,
    nearest,
    one_line,
    read_mapping,
    read_value,
)

CLAUSES_EXAMPLE = "{ttft: 800ms, tpot: 60ms}"
_MEASURES: Mapping[str, tuple[Reader, str]] = {
    "seconds": (read_seconds, "800ms"),
    "ratio": (read_ratio, "90%"),
}
"""How an indicator's threshold is read, and an example."""
SELECTOR_SHAPE, ALERT_LABELS_SHAPE = (
    names_to_text(SELECTOR_RESERVED),
    names_to_text(SERVICE_RESERVED),
)


def _indicator(value: object, place: Place) -> str | Generic | None:
    if isinstance(value, dict):
        return read_generic(value, place)
    choices = f"use one of {', '.join(INDICATORS)}"
    key: str = expect(str, f"one of {', '.join(INDICATORS)}", value)
    if key not in INDICATORS:
        near = nearest(key, INDICATORS)
        raise BadValue(f"{quoted(key)} is not an indicator", f"write {near}" if near else choices)
    return key


def _clauses(value: object, place: Place) -> dict[str, Decimal]:
    given = {**expect(dict, f"a mapping such as {CLAUSES_EXAMPLE}", value)}
    if not given:
        raise BadValue("has no clause", f"write at least one, such as {CLAUSES_EXAMPLE}")
    if "itl" in given:
        del given["itl"]
        place.at("itl").refuse(
            "is about a share of all gaps, which a single request does not have",
            "use max_gap for its longest gap, or tpot for its mean one",
        )
    return read_mapping(CLAUSE, given, place)


def read_objective(value: object, place: Place) -> dict[str, Any]:
    """Read an objective into the fields of :class:`~slos.model.Objective`."""
    read = read_mapping(OBJECTIVE, value, place)
    read["line"] = place.line
    if "time_slices" in read:
        read["slices"] = read.pop("time_slices")
    given, text = "threshold" in read, read.pop("threshold", None)
    if (indicator := read.get("indicator")) is None:
        if text is not None and not any(
            is_quantity(text, parse) for parse in (parse_duration, parse_share)
        ):
            message = f"{quoted(text)} is neither a duration nor a percentage"
            place.at("threshold").refuse(message, "write one, such as 800ms or 90%")
        return read
    if "error_budget" in read and (isinstance(indicator, Generic) or not has_refusals(indicator)):
        counted = ", ".join(filter(has_refusals, INDICATORS))
        place.at("error_budget").refuse(
            "does not apply to this indicator, which counts no refused requests",
            f"delete it, or use one of {counted}",
        )
    if isinstance(indicator, Generic):
        if given:
            message = "cannot be combined with an indicator of your own"
            place.at("threshold").refuse(message, "move it into the indicator, next to histogram")
        if "clauses" in read:
            place.at("clauses").refuse("only goodput has clauses", "delete it")
        _fits_queries(indicator, read, place)
        _has_histogram(indicator.kind, "histogram" in indicator.queries, read, place)
        own = {"indicator": indicator.kind, "queries": indicator.queries}
        return {**read, **own, "threshold": indicator.threshold}
    if indicator == "goodput" and "clauses" not in read:
        place.refuse(
            "is missing, but goodput needs it", f"add clauses: {CLAUSES_EXAMPLE}", "clauses"
        )
    elif indicator != "goodput" and "clauses" in read:
        place.at("clauses").refuse(f"{indicator} has no clauses", "delete it")
    if INDICATORS[indicator].in_slices and read.get("slices"):
        place.at("time_slices").refuse(f"{indicator} is counted in time slices anyway", "delete it")
    measure = INDICATORS[indicator].threshold
    _has_histogram(indicator, measure == "seconds", read, place)
    if measure is None:
        if text is not None:
            place.at("threshold").refuse(f"{indicator} has no threshold", "delete it")
        return read
    reader, example = _MEASURES[measure]
    if text is not None:
        read["threshold"] = read_value(reader, text, place.at("threshold"))
    elif not given:
        message, fix = f"is missing, but {indicator} needs it", f"add threshold: {example}"
        place.refuse(message, fix, "threshold")
    return read


def _has_histogram(indicator: str, it_has: bool, read: Mapping[str, Any], place: Place) -> None:
    if "histograms" in read and not it_has:
        place.at("histograms").refuse(f"{indicator} is counted from no histogram", "delete it")


def check_service_fit(
    objective: Mapping[str, Any], service: Mapping[str, Any], place: Place
) -> None:
    """Refuse labels that the indicator or the service's alerts cannot have."""
    groups: Sequence[str] = objective.get("group_by") or ()
    selected = {**service["selector"], **(objective.get("selector") or {})}
    sources = {"the selector names one": selected, "group_by lists it": groups}
    indicator = INDICATORS.get(objective.get("indicator") or "")
    for source, labels in sources.items():
        if "tenant" in labels and indicator and not indicator.by_tenant:
            place.at("indicator").refuse(
                f"{indicator.key} is not counted by tenant, but {source}",
                f"use one of {', '.join(key for key, one in INDICATORS.items() if one.by_tenant)}",
            )
    alerting = (objective.get("alerting") or Overrides()).of(service.get("alerting") or Alerting())
    tiers = alerting.page.labels, alerting.ticket.labels
    given = {*service["labels"], *(objective.get("labels") or ()), *tiers[0], *tiers[1]}
    for index, label in enumerate(groups):
        if label in given and label not in GROUP_RESERVED:
            message = f"{quoted(label)} is also a label that alerts are given"
            place.at("group_by").at(index).refuse(message, "rename that one")


def _fits_queries(indicator: Generic, read: Mapping[str, Any], place: Place) -> None:
    """Refuse keys that user-defined queries do not support."""
    if read.get("selector"):
        message = "is not added to queries of your own"
        place.at("selector").refuse(message, "write its labels into the queries")
    if indicator.kind == "gauge" and read.get("slices"):
        place.at("time_slices").refuse("a gauge is counted in time slices anyway", "delete it")
    elif read.get("slices") and not can_be_sliced(indicator):
        message = f"needs {WINDOW} in every query, to cover one slice each"
        place.at("time_slices").refuse(message, f"write {WINDOW} into each query, as in [{WINDOW}]")
    if read.get("group_by") and not can_be_grouped(indicator):
        place.at("group_by").refuse(
            "the queries of this indicator are not plain counters, so their labels are unknown",
            "give plain selectors, or write one objective for each group",
        )


def _group_by(value: object, place: Place) -> tuple[str, ...]:
    """Read label names; each combination of their values has an SLO of its own."""
    given: list[object] = expect(list, "a list of labels, such as [tenant]", value)
    if not given:
        raise BadValue("has no label", "name one, such as tenant, or delete it")
    for index, name in enumerate(given):
        at = place.at(index)
        if not isinstance(name, str) or not LABEL_NAME.fullmatch(name) or name.startswith("__"):
            at.refuse("is not the name of a label", "use letters, digits and _")
        elif name in GROUP_RESERVED:
            at.refuse(*GROUP_RESERVED[name])
        elif name in given[:index]:
            at.refuse(f"{quoted(name)} is listed twice", "delete one of them")
    return tuple(str(name) for name in given)


def _by_indicator() -> Iterator[Shape]:
    """Yield conditions on the other keys for each indicator."""
    known = {None: False, "seconds": DURATION, "ratio": SHARE}
    for measure, threshold in known.items():
        keys = [key for key, one in INDICATORS.items() if one.threshold == measure]
        needs = {} if measure is None else {"required": ["threshold"]}
        yield _if_indicator({"enum": keys}, {"properties": {"threshold": threshold}, **needs})
    yield _if_indicator({"const": "goodput"}, {"required": ["clauses"]})
    others = {"not": {"const": "goodput"}}
    yield _if_indicator(others, {"properties": {"clauses": False}})
    refused = {"enum": [*filter(has_refusals, INDICATORS)]}
    yield _if_indicator({"not": refused}, {"properties": {"error_budget": False}})
    own: Shape = {"threshold": False, "selector": {"maxProperties": 0}}
    yield _if_indicator({"type": "object"}, {"properties": own})


def _if_indicator(indicator: Shape, then: Shape) -> Shape:
    given: Shape = {"properties": {"indicator": indicator}, "required": ["indicator"]}
    return {"if": given, "then": then}


CLAUSE = tuple(
    Field(
        name,
        read_seconds,
        about=INDICATORS[name].good.format(threshold="this").capitalize() + ".",
        shape=DURATION,
    )
    for name in CLAUSES
)
OBJECTIVE = (
    Field(
        "name",
        read_name,
        required="first-token",
        about="Name of the objective: lower-case letters, digits and dashes.",
        shape=NAME_SHAPE,
    ),
    Field(
        "indicator",
        _indicator,
        required="ttft",
        about="What is counted: the name of an indicator, or queries of your own.",
        shape={"anyOf": [{"enum": list(INDICATORS)}, GENERIC_SHAPE]},
    ),
    Field(
        "threshold",
        read_threshold,
        about="The limit of a good event, in the unit of the indicator: 800ms, or 90%.",
        shape={"type": "string"},
    ),
    Field(
        "clauses",
        _clauses,
        about="Latency limits that a request must all meet; for goodput.",
        shape={**mapping_of(CLAUSE), "minProperties": 1},
    ),
    Field(
        "target",
        read_target,
        required="99.9%",
        about="The share of events that must be good, above 0% and below 100%.",
        shape=SHARE,
    ),
    Field(
        "time_slices",
        read_time_slices,
        about="Count slices of time instead of events: the target is the share of good slices.",
        shape=mapping_of(TIME_SLICES),
    ),
    Field(
        "group_by",
        _group_by,
        about="Labels such as tenant: each combination of their values has its own budget.",
        shape=list_of({"type": "string", "pattern": f"^(?!__){LABEL_NAME.pattern}$"}, 1),
    ),
    Field(
        "histograms",
        read_histograms,
        about="How Prometheus stores the histogram of this objective.",
        shape={"enum": [*HISTOGRAMS]},
    ),
    Field(
        "error_budget",
        read_error_budget,
        about="Which refused requests are bad events of this objective.",
        shape={**mapping_of(ERROR_BUDGET), "minProperties": 1},
    ),
    Field("description", one_line, about="Why the objective matters; one line.", shape=LINE),
    Field("owner", one_line, about="The owner of the objective; one line.", shape=LINE),
    Field(
        "selector",
        label_map(SELECTOR_RESERVED),
        about="Label matchers of its queries, in addition to the service's.",
        shape=SELECTOR_SHAPE,
    ),
    Field(
        "labels",
        alert_labels(SERVICE_RESERVED),
        about="Labels of its alerts, in addition to the service's.",
        shape=ALERT_LABELS_SHAPE,
    ),
    Field(
        "alerting",
        read_overrides,
        about="Alerting of this objective, merged with the service's.",
        shape=mapping_of(OVERRIDES),
    ),
)
OBJECTIVE_SHAPE: Shape = {**mapping_of(OBJECTIVE), "allOf": [*_by_indicator()]}
