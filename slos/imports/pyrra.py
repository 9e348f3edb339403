"""Pyrra's ``ServiceLevelObjective``, the same as a file or in Kubernetes.

The keys are those of ``pyrra.dev/v1alpha1`` (Pyrra v0.10,
``kubernetes/api/v1alpha1/servicelevelobjective_types.go``).  One of them is one objective without a
service, so each becomes a service of its own.
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
from slos.events import edge_matcher
from slos.generic import WINDOW, parsed
from slos.imports.foreign import (
    METADATA,
    OF_TIERS,
    At,
    Draft,
    Notes,
    anything,
    disabled,
    edge_of,
    has_all,
    histogram,
    items,
    labels,
    name,
    of_counter,
    one_line,
    percent,
    said_about_object,
    taken,
    text,
    truth,
    unless_empty,
)
from slos.schema import Place, Reader, read_value

_PREFIX = "pyrra.dev/"
_KINDS = {
    "ratio": "errors",
    "latency": "latency",
    "latencyNative": "latency",
    "bool_gauge": "uptime",
}
"""What an objective is called, by its indicator."""


def drafts(documents: list[Document], problems: list[Problem], notes: Notes) -> Iterator[Draft]:
    """Tell every objective of a file."""
    readers = dict.fromkeys(("apiVersion", "kind", "metadata", "spec", "status"), anything)
    for document in documents:
        place = Place(document, problems)
        notes.about()
        found = taken(document.value, place, readers, notes)
        whole = has_all(found, document.value, place, metadata="", spec="")
        if whole and (draft := _draft(found["metadata"], found["spec"], place, notes)):
            yield draft


def _draft(metadata: At, spec: At, place: Place, notes: Notes) -> Draft | None:
    about = taken(metadata.value, metadata.place, METADATA, notes)
    read = {
        "target": percent,
        "window": text,
        "description": text,
        "indicator": anything,
        "alerting": anything,
        "performanceOverAccuracy": truth,
    }
    found = taken(spec.value, spec.place, read, notes)
    whole = has_all(found, spec.value, spec.place, target=": '99.9'", window=": 4w", indicator="")
    service = At("", metadata.place)
    if has_all(about, metadata.value, metadata.place, name=""):
        service = name(about["name"], notes)
    kind, indicator = "", None
    if "indicator" in found:
        kind, indicator = _indicator(found["indicator"], str(service.value), notes)
    annotate = f"call it {_PREFIX}… if alerts are to have it"
    said_about_object(about, notes, _PREFIX, annotate=annotate)
    if "performanceOverAccuracy" in found and found["performanceOverAccuracy"].value:
        notes.left_out(
            found["performanceOverAccuracy"].place,
            "is left out: long windows are always summed from short ones, exactly",
            "delete it",
        )
    own = {
        part: {
            key.removeprefix(_PREFIX): value
            for key, value in (about[part].value if part in about else {}).items()
            if key.startswith(_PREFIX)
        }
        for part in ("labels", "annotations")
    }
    annotated = unless_empty(annotations=labels(own["annotations"], notes, ()))
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
        **unless_empty(labels=labels(own["labels"], notes, OF_TIERS)),
        "objectives": [At(objective, spec.place)],
    }
    return Draft(tree, place)


def _indicator(of: At, service: str, notes: Notes) -> tuple[str, dict[str, object] | None]:
    """Return what the objective is called, and its indicator and groups; None after saying why."""
    kinds = taken(of.value, of.place, dict.fromkeys(_KINDS, anything), notes)
    if len(kinds) != 1:
        of.place.refuse("holds no indicator, or several", f"give one of {', '.join(_KINDS)}")
        return "", None
    ((kind, given),) = kinds.items()
    notes.about(service, _KINDS[kind])
    read = _READ[kind](given, notes)
    if read is None:
        return _KINDS[kind], None
    return _KINDS[kind], {"indicator": read, **_grouping(kind, given, notes)}


def _grouping(kind: str, indicator: At, notes: Notes) -> dict[str, object]:
    """Return the labels whose values have a budget each."""
    place = indicator.place.at("grouping")
    given = list(items(indicator.value.get("grouping") or [], place))
    named = [At(read, at) for label, at in given if (read := read_value(text, label, at))]
    if not named:
        return {}
    ours = [str(label.value) for label in named if label.value in OF_TIERS]
    why = f"our alerts set {' and '.join(ours)} themselves" if ours else ""
    if kind == "latencyNative":
        why = "nobody can tell by label what histogram_fraction gives"
    if why:
        fix = "write an objective for each of its values, or give the label another name"
        notes.lost(place, f"is left out: {why}", fix)
        return {}
    return {"group_by": At(named, place)}


def _selector(value: object, _: Place) -> Vector:
    query: str = text(value, _)
    try:
        selector = parsed(query).selector
    except InvalidQuery as error:
        raise BadValue(str(error), "correct the selector") from None
    if selector is None:
        raise BadValue("is not a plain selector", 'write one such as errors_total{job="a"}')
    return selector


def _parts(of: At, notes: Notes, *metrics: str, **more: Reader) -> dict[str, At] | None:
    """Read the metrics and the other parts of an indicator; None after saying what is wrong."""
    readers = {**dict.fromkeys(metrics, _metric(notes)), "grouping": anything, **more}
    found = taken(of.value, of.place, readers, notes)
    wanted = {**dict.fromkeys(metrics, ": {metric: …}"), **dict.fromkeys(more, ": 200ms")}
    if not has_all(found, of.value, of.place, **wanted):
        return None
    return {key: part.value if key in metrics else part for key, part in found.items()}


def _metric(notes: Notes) -> Reader:
    def read(value: object, place: Place) -> At | None:
        found = taken(value, place, {"metric": _selector}, notes)
        whole = has_all(found, value, place, metric=" with a selector")
        return found["metric"] if whole else None

    return read


def _ratio(of: At, notes: Notes) -> At | None:
    found = _parts(of, notes, "errors", "total")
    if found is None:
        return None
    counted = {"bad": found["errors"], "total": found["total"]}
    return At(
        {role: At(of_counter(str(each.value)), each.place) for role, each in counted.items()},
        of.place,
    )


def _latency(of: At, notes: Notes) -> At | None:
    found = _parts(of, notes, "success", "total")
    if found is None:
        return None
    success, total = found["success"], found["total"]
    edge = edge_of(success.value)
    if edge is None:
        success.place.refuse("has no bucket", 'add le="…" with a bucket edge of the histogram')
        return None
    if told := histogram(success.value, total.value):
        return At({key: At(part, success.place) for key, part in told.items()}, of.place)
    others = (matcher for matcher in success.value.matchers if matcher.label != "le")
    within = replace(success.value, matchers=(*others, edge_matcher(edge)))
    return At(
        {
            "good": At(f"sum(rate({within}[{WINDOW}]))", success.place),
            "total": At(f"sum(rate({total.value}[{WINDOW}]))", total.place),
        },
        of.place,
    )


def _native(of: At, notes: Notes) -> At | None:
    """Weigh what a native histogram says is above the latency by its observations."""
    found = _parts(of, notes, "total", latency=_duration)
    if found is None:
        return None
    total = found["total"]
    rate = f"sum(rate({total.value}[{WINDOW}]))"
    slow = f"1 - histogram_fraction(0, {decimal_text(found['latency'].value)}, {rate})"
    weight = f"histogram_count({rate})"
    return At({"ratio": At(slow, total.place), "weight": At(weight, total.place)}, of.place)


def _duration(value: object, place: Place) -> Decimal:
    return parse_duration(text(value, place))


def _gauge(of: At, notes: Notes) -> At | None:
    readers = {"metric": _selector, "grouping": anything}
    found = taken(of.value, of.place, readers, notes)
    if not has_all(found, of.value, of.place, metric=" with a selector"):
        return None
    metric = found["metric"]
    return At({"gauge": At(str(metric.value), metric.place)}, of.place)


_READ = {"ratio": _ratio, "latency": _latency, "latencyNative": _native, "bool_gauge": _gauge}


def _alerting(alerting: At | None, annotated: dict[str, object], notes: Notes) -> dict[str, object]:
    readers = {
        "disabled": truth,
        "burnrates": truth,
        "absent": truth,
        "name": text,
        "absentName": text,
        "severities": anything,
    }
    found = taken(alerting.value, alerting.place, readers, notes) if alerting else {}
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
    told = {"page": annotated, "ticket": annotated} if annotated else {}
    return unless_empty(alerting={**told, **unless_empty(disable=disabled(*kinds))})
