"""Pyrra's ``ServiceLevelObjective``, the same as a file or in Kubernetes.

The keys are those of ``pyrra.dev/v1alpha1`` (Pyrra v0.10,
``kubernetes/api/v1alpha1/servicelevelobjective_types.go``).  One of them is one objective without a
service, so each becomes a service of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal, InvalidOperation

from promql.expr import Vector, decimal_text
from promql.query import InvalidQuery
from slos.document import Document
from slos.durations import parse_duration
from slos.errors import BadValue, Problem
from slos.events import edge_matcher
from slos.generic import WINDOW, parsed
from slos.imports.foreign import (
    OF_TIERS,
    At,
    Draft,
    Notes,
    anything,
    disabled,
    items,
    labels,
    name,
    of_counter,
    one_line,
    percent,
    taken,
    text,
    texts,
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
        if not found.keys() >= {"metadata", "spec"}:
            missing = "metadata" if "metadata" not in found else "spec"
            place.refuse("is missing", f"add {missing}", missing)
        elif draft := _draft(found["metadata"], found["spec"], place, notes):
            yield draft


def _draft(metadata: At, spec: At, place: Place, notes: Notes) -> Draft | None:
    about = taken(
        metadata.value,
        metadata.place,
        {"name": text, "namespace": text, "labels": texts, "annotations": texts}
        | dict.fromkeys(("uid", "generation", "resourceVersion", "creationTimestamp"), anything),
        notes,
    )
    read = {
        "target": percent,
        "window": text,
        "description": text,
        "indicator": anything,
        "alerting": anything,
        "performanceOverAccuracy": truth,
    }
    found = taken(spec.value, spec.place, read, notes)
    for key in ("target", "window", "indicator"):
        if key not in found and not (isinstance(spec.value, dict) and spec.value.get(key)):
            spec.place.refuse("is missing", f"add {key}", key)
    if "name" not in about:
        metadata.place.refuse("is missing", "add name", "name")
    service = name(about["name"], notes) if "name" in about else At("", metadata.place)
    kind, indicator = "", None
    if "indicator" in found:
        kind, indicator = _indicator(found["indicator"], str(service.value), notes)
    _said_about(about, found, notes)
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
    if indicator is None or "name" not in about or not found.keys() >= {"target", "window"}:
        return None
    objective = {
        "name": kind,
        "indicator": indicator,
        "target": found["target"],
        **_grouping(found["indicator"], notes),
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


def _said_about(about: dict[str, At], found: dict[str, At], notes: Notes) -> None:
    if "namespace" in about:
        notes.left_out(
            about["namespace"].place,
            "is left out: it is where the rules were, not what they are about",
            "add labels: {namespace: …} if alerts are to tell it",
        )
    for key, value in (about["labels"].value if "labels" in about else {}).items():
        if not key.startswith(_PREFIX):
            notes.left_out(
                value.place,
                "is left out: it only chose which Prometheus loads the rules",
                "put it on the PrometheusRule that holds the generated ones",
            )
    for key, value in (about["annotations"].value if "annotations" in about else {}).items():
        if not key.startswith(_PREFIX):
            fix = f"call it {_PREFIX}… if alerts are to have it"
            notes.left_out(value.place, "is left out: it is not about alerts", fix)
    if "performanceOverAccuracy" in found and found["performanceOverAccuracy"].value:
        notes.left_out(
            found["performanceOverAccuracy"].place,
            "is left out: long windows are always summed from short ones, exactly",
            "delete it",
        )


def _indicator(of: At, service: str, notes: Notes) -> tuple[str, At | None]:
    """Return what the objective is called and its indicator; None after saying why not."""
    kinds = taken(of.value, of.place, dict.fromkeys(_KINDS, anything), notes)
    if len(kinds) != 1:
        of.place.refuse("holds no indicator, or several", f"give one of {', '.join(_KINDS)}")
        return "", None
    ((kind, given),) = kinds.items()
    notes.about(service, _KINDS[kind])
    return _KINDS[kind], _READ[kind](given, notes)


def _grouping(of: At, notes: Notes) -> dict[str, object]:
    """Return the labels whose values have a budget each."""
    ((kind, indicator),) = of.value.items()
    given = indicator.get("grouping") if isinstance(indicator, dict) else None
    place = of.place.at(kind).at("grouping")
    named = [(text(label, at), at) for label, at in items(given, place)] if given else []
    free = [At(label, at) for label, at in named if label not in OF_TIERS]
    if len(free) < len(named) or (named and kind == "latencyNative"):
        notes.lost(
            place,
            "is left out: our alerts set such a label themselves, or the queries cannot be grouped",
            "give the label another name, or write an objective for each of its values",
        )
        return {}
    return {"group_by": At(free, place)} if free else {}


def _selector(value: object, _: Place) -> Vector:
    query: str = text(value, _)
    try:
        selector = parsed(query).selector
    except InvalidQuery as error:
        raise BadValue(str(error), "correct the selector") from None
    if selector is None:
        raise BadValue("is not a plain selector", 'write one such as errors_total{job="a"}')
    return selector


def _metrics(
    of: At, notes: Notes, *wanted: str, **more: Reader
) -> list[tuple[Vector, Place]] | None:
    """Read the metrics of an indicator; None after saying what is wrong with them."""
    readers = {**dict.fromkeys(wanted, anything), "grouping": anything, **more}
    found = taken(of.value, of.place, readers, notes)
    metrics = []
    for key in wanted:
        if key not in found:
            of.place.refuse("is missing", f"add {key}: {{metric: …}}", key)
            continue
        parts = taken(found[key].value, found[key].place, {"metric": _selector}, notes)
        if "metric" in parts:
            metrics.append((parts["metric"].value, parts["metric"].place))
        elif not (isinstance(found[key].value, dict) and found[key].value.get("metric")):
            found[key].place.refuse("is missing", "add metric with a selector", "metric")
    return metrics if len(metrics) == len(wanted) else None


def _ratio(of: At, notes: Notes) -> At | None:
    metrics = _metrics(of, notes, "errors", "total")
    if metrics is None:
        return None
    queries = zip(("bad", "total"), metrics, strict=True)
    return At(
        {role: At(of_counter(str(metric)), place) for role, (metric, place) in queries}, of.place
    )


def _latency(of: At, notes: Notes) -> At | None:
    metrics = _metrics(of, notes, "success", "total")
    if metrics is None:
        return None
    (success, at_success), (total, at_total) = metrics
    edges = [matcher for matcher in success.matchers if matcher.label == "le"]
    edge = _edge(edges[0].value) if len(edges) == 1 and edges[0].op == "=" else None
    if edge is None:
        at_success.refuse("has no bucket", 'add le="…" with a bucket edge of the histogram')
        return None
    others = tuple(matcher for matcher in success.matchers if matcher.label != "le")
    base = success.metric.removesuffix("_bucket")
    if total.metric == f"{base}_count" and set(others) == set(total.matchers):
        histogram = At(str(Vector(base, others)), at_success)
        return At({"histogram": histogram, "threshold": At(_bare(edge), at_success)}, of.place)
    within = replace(success, matchers=(*others, edge_matcher(edge)))
    return At(
        {
            "good": At(f"sum(rate({within}[{WINDOW}]))", at_success),
            "total": At(f"sum(rate({total}[{WINDOW}]))", at_total),
        },
        of.place,
    )


def _edge(written: str) -> Decimal | None:
    try:
        edge = Decimal(written)
    except InvalidOperation:
        return None
    return edge if edge.is_finite() and edge > 0 else None


def _bare(edge: Decimal) -> int | float:
    return int(edge) if edge == edge.to_integral_value() else float(edge)


def _native(of: At, notes: Notes) -> At | None:
    """Weigh what a native histogram says is above the latency by its observations."""
    metrics = _metrics(of, notes, "total", latency=text)
    latency = of.value.get("latency") if isinstance(of.value, dict) else None
    if metrics is None:
        return None
    if latency is None:
        of.place.refuse("is missing", "add latency: 200ms", "latency")
        return None
    seconds = read_value(_duration, latency, of.place.at("latency"))
    if seconds is None:
        return None
    ((metric, place),) = metrics
    rate = f"sum(rate({metric}[{WINDOW}]))"
    slow = f"1 - histogram_fraction(0, {decimal_text(seconds)}, {rate})"
    return At({"ratio": At(slow, place), "weight": At(f"histogram_count({rate})", place)}, of.place)


def _duration(value: object, place: Place) -> Decimal:
    return parse_duration(text(value, place))


def _gauge(of: At, notes: Notes) -> At | None:
    found = taken(of.value, of.place, {"metric": _selector, "grouping": anything}, notes)
    if "metric" not in found:
        if not (isinstance(of.value, dict) and of.value.get("metric")):
            of.place.refuse("is missing", "add metric with a selector", "metric")
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
