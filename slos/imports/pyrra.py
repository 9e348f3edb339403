"""Convert Pyrra's ``ServiceLevelObjective``, from a file or from Kubernetes.

The keys are those of ``pyrra.dev/v1alpha1`` (Pyrra v0.10,
``kubernetes/api/v1alpha1/servicelevelobjective_types.go``).  Each resource is one objective without
a service, and becomes a service with one objective.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from promql.expr import Vector, decimal_text
from promql.query import InvalidQuery
from slos.document import Document
from slos.durations import parse_duration
from slos.errors import BadValue, Problem
from slos.events import boundary_matcher
from slos.generic import WINDOW, parsed
from slos.imports.drafts import (
    SET_BY_TIERS,
    Draft,
    Notes,
    PlacedValue,
    boundary_of,
    disabled,
    histogram,
    labels,
    name,
    non_empty,
    one_line,
    rate_of_counter,
)
from slos.imports.readers import (
    METADATA,
    anything,
    boolean,
    check_required_keys,
    items,
    note_object_metadata,
    percent,
    read_optional_mapping,
    text,
)
from slos.schema import Place, Reader, read_value

_PREFIX = "pyrra.dev/"
_KINDS = {
    "ratio": "errors",
    "latency": "latency",
    "latencyNative": "latency",
    "bool_gauge": "uptime",
}
"""Name of the objective, by its indicator."""


def drafts(documents: list[Document], problems: list[Problem], notes: Notes) -> Iterator[Draft]:
    """Yield a draft for each objective of a file."""
    readers = dict.fromkeys(("apiVersion", "kind", "metadata", "spec", "status"), anything)
    for document in documents:
        place = Place(document, problems)
        notes.about()
        found = read_optional_mapping(document.value, place, readers, notes)
        whole = check_required_keys(found, document.value, place, metadata="", spec="")
        if whole and (draft := _draft(found["metadata"], found["spec"], place, notes)):
            yield draft


def _draft(metadata: PlacedValue, spec: PlacedValue, place: Place, notes: Notes) -> Draft | None:
    about = read_optional_mapping(metadata.value, metadata.place, METADATA, notes)
    read = {
        "target": percent,
        "window": text,
        "description": text,
        "indicator": anything,
        "alerting": anything,
        "performanceOverAccuracy": boolean,
    }
    found = read_optional_mapping(spec.value, spec.place, read, notes)
    whole = check_required_keys(
        found, spec.value, spec.place, target=": '99.9'", window=": 4w", indicator=""
    )
    service = PlacedValue("", metadata.place)
    if check_required_keys(about, metadata.value, metadata.place, name=""):
        service = name(about["name"], notes)
    kind, indicator = "", None
    if "indicator" in found:
        kind, indicator = _indicator(found["indicator"], str(service.value), notes)
    annotate = f"name it {_PREFIX}… to add it to alerts"
    note_object_metadata(about, notes, _PREFIX, annotate=annotate)
    if "performanceOverAccuracy" in found and found["performanceOverAccuracy"].value:
        notes.left_out(
            found["performanceOverAccuracy"].place,
            "is left out: long windows are always summed from short ones, exactly",
            "delete it",
        )
    own = {
        field: {
            key.removeprefix(_PREFIX): value
            for key, value in (about[field].value if field in about else {}).items()
            if key.startswith(_PREFIX)
        }
        for field in ("labels", "annotations")
    }
    annotated = non_empty(annotations=labels(own["annotations"], notes, ()))
    alerting = _alerting(found.get("alerting"), annotated, notes)
    if indicator is None or not service.value or not whole:
        return None
    objective = {
        "name": kind,
        **indicator,
        "target": found["target"],
        **one_line(found.get("description")),
        **alerting,
    }
    tree = {
        "apiVersion": "tokenslo/v1",
        "service": service,
        "window": found["window"],
        **non_empty(labels=labels(own["labels"], notes, SET_BY_TIERS)),
        "objectives": [PlacedValue(objective, spec.place)],
    }
    return Draft(tree, place)


def _indicator(of: PlacedValue, service: str, notes: Notes) -> tuple[str, dict[str, object] | None]:
    """Return name, indicator and ``group_by`` of an objective, None after reporting the reason."""
    kinds = read_optional_mapping(of.value, of.place, dict.fromkeys(_KINDS, anything), notes)
    if len(kinds) != 1:
        of.place.refuse("must have exactly one indicator", f"give one of {', '.join(_KINDS)}")
        return "", None
    ((kind, given),) = kinds.items()
    notes.about(service, _KINDS[kind])
    read = _CONVERTERS[kind](given, notes)
    if read is None:
        return _KINDS[kind], None
    return _KINDS[kind], {"indicator": read, **_grouping(kind, given, notes)}


def _grouping(kind: str, indicator: PlacedValue, notes: Notes) -> dict[str, object]:
    """Return the labels to group by."""
    place = indicator.place.at("grouping")
    given = list(items(indicator.value.get("grouping") or [], place))
    named = [PlacedValue(read, at) for label, at in given if (read := read_value(text, label, at))]
    if not named:
        return {}
    reserved = [str(label.value) for label in named if label.value in SET_BY_TIERS]
    why = f"generated alerts set {' and '.join(reserved)}" if reserved else ""
    if kind == "latencyNative":
        why = "the result of histogram_fraction has no label to select by"
    if why:
        fix = "write an objective for each of its values, or give the label another name"
        notes.lost(place, f"is left out: {why}", fix)
        return {}
    return {"group_by": PlacedValue(named, place)}


def _selector(value: object, _: Place) -> Vector:
    query: str = text(value, _)
    try:
        selector = parsed(query).selector
    except InvalidQuery as error:
        raise BadValue(str(error), "correct the selector") from None
    if selector is None:
        raise BadValue("is not a plain selector", 'write one such as errors_total{job="a"}')
    return selector


def _read_fields(
    of: PlacedValue, notes: Notes, *metrics: str, **more: Reader
) -> dict[str, PlacedValue] | None:
    """Read the metrics and other fields of an indicator, None after reporting problems."""
    readers = {**dict.fromkeys(metrics, _metric(notes)), "grouping": anything, **more}
    found = read_optional_mapping(of.value, of.place, readers, notes)
    wanted = {**dict.fromkeys(metrics, ": {metric: …}"), **dict.fromkeys(more, ": 200ms")}
    if not check_required_keys(found, of.value, of.place, **wanted):
        return None
    return {key: value.value if key in metrics else value for key, value in found.items()}


def _metric(notes: Notes) -> Reader:
    def read(value: object, place: Place) -> PlacedValue | None:
        found = read_optional_mapping(value, place, {"metric": _selector}, notes)
        whole = check_required_keys(found, value, place, metric=" with a selector")
        return found["metric"] if whole else None

    return read


def _ratio(of: PlacedValue, notes: Notes) -> PlacedValue | None:
    found = _read_fields(of, notes, "errors", "total")
    if found is None:
        return None
    counted = {"bad": found["errors"], "total": found["total"]}
    return PlacedValue(
        {
            role: PlacedValue(rate_of_counter(str(each.value)), each.place)
            for role, each in counted.items()
        },
        of.place,
    )


def _latency(of: PlacedValue, notes: Notes) -> PlacedValue | None:
    found = _read_fields(of, notes, "success", "total")
    if found is None:
        return None
    success, total = found["success"], found["total"]
    boundary = boundary_of(success.value)
    if boundary is None:
        success.place.refuse("has no bucket", 'add le="…" with a bucket boundary of the histogram')
        return None
    if found_keys := histogram(success.value, total.value):
        return PlacedValue(
            {key: PlacedValue(value, success.place) for key, value in found_keys.items()},
            of.place,
        )
    others = (matcher for matcher in success.value.matchers if matcher.label != "le")
    within = replace(success.value, matchers=(*others, boundary_matcher(boundary)))
    return PlacedValue(
        {
            "good": PlacedValue(f"sum(rate({within}[{WINDOW}]))", success.place),
            "total": PlacedValue(f"sum(rate({total.value}[{WINDOW}]))", total.place),
        },
        of.place,
    )


def _native(of: PlacedValue, notes: Notes) -> PlacedValue | None:
    """Convert a native histogram: the ratio above the latency, weighted by observations."""
    found = _read_fields(of, notes, "total", latency=_duration)
    if found is None:
        return None
    total = found["total"]
    rate = f"sum(rate({total.value}[{WINDOW}]))"
    slow = f"1 - histogram_fraction(0, {decimal_text(found['latency'].value)}, {rate})"
    weight = f"histogram_count({rate})"
    return PlacedValue(
        {"ratio": PlacedValue(slow, total.place), "weight": PlacedValue(weight, total.place)},
        of.place,
    )


def _duration(value: object, place: Place) -> Decimal:
    return parse_duration(text(value, place))


def _gauge(of: PlacedValue, notes: Notes) -> PlacedValue | None:
    readers = {"metric": _selector, "grouping": anything}
    found = read_optional_mapping(of.value, of.place, readers, notes)
    if not check_required_keys(found, of.value, of.place, metric=" with a selector"):
        return None
    metric = found["metric"]
    return PlacedValue({"gauge": PlacedValue(str(metric.value), metric.place)}, of.place)


_CONVERTERS = {"ratio": _ratio, "latency": _latency, "latencyNative": _native, "bool_gauge": _gauge}


def _alerting(
    alerting: PlacedValue | None, annotated: dict[str, object], notes: Notes
) -> dict[str, object]:
    readers = {
        "disabled": boolean,
        "burnrates": boolean,
        "absent": boolean,
        "name": text,
        "absentName": text,
        "severities": anything,
    }
    found = (
        read_optional_mapping(alerting.value, alerting.place, readers, notes) if alerting else {}
    )
    for key, why in (
        ("name", "alerts are named after service and objective"),
        ("absentName", "alerts are named after service and objective"),
        ("severities", "pages are critical and tickets are warnings"),
    ):
        if key in found:
            fix = "change routes and silences, or set alerting.page.labels after converting"
            notes.left_out(found[key].place, f"is left out: {why}", fix)
    off = {key for key in ("disabled", "burnrates", "absent") if key in found}
    all_off = "disabled" in off and found["disabled"].value
    kinds = []
    if all_off or ("burnrates" in off and not found["burnrates"].value):
        kinds += ["page", "ticket", "exhausted"]
    if all_off or ("absent" in off and not found["absent"].value):
        kinds.append("absent")
    found_keys = {"page": annotated, "ticket": annotated} if annotated else {}
    return non_empty(alerting={**found_keys, **non_empty(disable=disabled(*kinds))})
