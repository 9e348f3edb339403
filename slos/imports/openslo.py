"""Convert OpenSLO: ``openslo/v1`` (also ``openslo.com/v1``), ``v1alpha`` and ``v2alpha``.

References are resolved within the file.  Alert policies, conditions and targets are left out, with
a note: alerts follow from the objective.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from slos.document import Document
from slos.errors import BadValue, Problem, quoted
from slos.imports.drafts import (
    SET_BY_TIERS,
    Draft,
    Notes,
    PlacedValue,
    labels,
    name,
    non_empty,
    one_line,
)
from slos.imports.openslo_indicators import METHODS, indicator, slice_target, slice_window
from slos.imports.openslo_objects import ALERTS, File, Object, read_objects
from slos.imports.readers import (
    anything,
    boolean,
    check_required_keys,
    items,
    number,
    percent,
    read_optional_mapping,
    share,
    text,
)
from slos.schema import Place, Reader, nearest

_PERIODS = {"M": "30d", "Q": "90d", "Y": "365d"}
_UNITS = {"second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w", "month": "M",
          "quarter": "Q", "year": "Y"}  # fmt: skip
_V1 = {
    "serviceRef": "service",
    "timeWindows": "timeWindow",
    "sli": "indicator",
    "sliRef": "indicatorRef",
    "ratioMetrics": "ratioMetric",
    "targetPercent": "target",
}
"""Keys with other names in v1alpha and v2alpha."""
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class _Slo:
    """What the objectives of an SLO share."""

    file: File
    service: PlacedValue
    name: PlacedValue
    sli: PlacedValue | None
    method: str
    common: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class _ObjectiveGroup:
    """Objectives of one service over one window; ``original`` is the service's name in the file."""

    original: str
    service: PlacedValue
    window: PlacedValue
    objectives: list[PlacedValue]


def drafts(documents: list[Document], problems: list[Problem], notes: Notes) -> Iterator[Draft]:
    """Yield the services of a file, one for each of their windows."""
    file = read_objects(documents, problems, notes)
    groups: dict[tuple[str, str], _ObjectiveGroup] = {}
    for each in file.objects:
        notes.about()
        _note_metadata(each, notes)
        if each.kind == "SLO" and (converted := _slo(each, file)):
            first = groups.setdefault(
                (str(converted.service.value), str(converted.window.value)), converted
            )
            if first is not converted:
                first.objectives.extend(converted.objectives)
    notes.about()
    for each in file.unused("SLI"):
        notes.left_out(
            each.metadata["name"].place,
            f"the SLI {quoted(each.name)} is left out: no SLO of this file refers to it",
            "add an SLO that refers to it",
        )
    windows: dict[str, str] = {}
    for (service_name, period), one in groups.items():
        service = one.service
        if windows.setdefault(service_name, period) != period:
            service = _separate_service(service, one.window, notes)
        if one.objectives:
            tree = {
                "apiVersion": "tokenslo/v1",
                "service": service,
                **_of_service(file, one.original),
                "window": one.window,
                "objectives": one.objectives,
            }
            yield Draft(tree, service.place)


def _separate_service(service: PlacedValue, window: PlacedValue, notes: Notes) -> PlacedValue:
    """Return a separate service for the SLOs of another window."""
    other = f"{service.value}-{window.value}"
    notes.left_out(
        window.place,
        f"differs from that of the other SLOs of {service.value}, and a service has one window",
        f"expect these objectives under the service {other}",
    )
    return PlacedValue(other, service.place)


def _note_metadata(each: Object, notes: Notes) -> None:
    """Note the fields of an object that are never converted."""
    if each.kind in ALERTS:
        notes.left_out(
            each.spec.place,
            f"{each.kind} is left out: alerts follow from the objective",
            "set labels of pages and tickets under alerting after converting",
        )
        return
    kept = ("name", "displayName", "labels") if each.kind in ("SLO", "Service") else ("name",)
    for key, value in each.metadata.items():
        if key not in kept:
            fix = "set annotations of alerts under alerting after converting"
            notes.left_out(value.place, "is left out: it describes the object", fix)
    has_spec = isinstance(each.spec.value, dict)
    if each.kind == "DataSource" and has_spec and "connectionDetails" in each.spec.value:
        place = each.spec.place.at("connectionDetails")
        fix = "load the rules into the Prometheus that has the metrics"
        notes.left_out(place, "are left out: rules query the Prometheus that loads them", fix)


def _of_service(file: File, original: str) -> dict[str, object]:
    """Return the keys that a ``Service`` object of the file sets."""
    found = file.named("Service", original)
    if found is None:
        return {}
    spec = read_optional_mapping(
        found.spec.value, found.spec.place, {"description": text}, file.notes
    )
    return {
        **_described(found, spec, file.notes),
        **non_empty(labels=_kept_labels(found, file.notes)),
    }


def _described(
    found: Object, spec: Mapping[str, PlacedValue], notes: Notes
) -> Mapping[str, PlacedValue]:
    shown = found.metadata.get("displayName")
    if shown and "description" in spec:
        fix = "put it into the description if it adds anything"
        notes.left_out(shown.place, "is left out: the description is used", fix)
    return one_line(spec.get("description") or shown)


def _kept_labels(found: Object, notes: Notes) -> dict[str, PlacedValue]:
    given = found.metadata.get("labels")
    return labels(given.value, notes, SET_BY_TIERS) if given else {}


def _in_v1(fields: Mapping[str, _Value]) -> dict[str, _Value]:
    """Rename keys to those of v1."""
    return {_V1.get(key, key): value for key, value in fields.items()}


def _check_required_keys(
    found: Mapping[str, PlacedValue], value: object, place: Place, **wanted: str
) -> bool:
    """Check required keys by their names in v1."""
    given = _in_v1(value) if isinstance(value, dict) else value
    return check_required_keys(found, given, place, **wanted)


# SLOs


def _method(value: object, place: Place) -> str:
    given = text(value, place)
    if given not in METHODS:
        near = nearest(given, METHODS)
        fix = near or f"one of {', '.join(METHODS)}"
        raise BadValue(f"{quoted(given)} is not a budgeting method", f"write {fix}")
    return given


_SLO: dict[str, Reader] = {
    "description": text,
    **dict.fromkeys(("service", "serviceRef"), text),
    **dict.fromkeys(("indicator", "sli"), anything),
    **dict.fromkeys(("indicatorRef", "sliRef"), text),
    **dict.fromkeys(("timeWindow", "timeWindows"), anything),
    "budgetingMethod": _method,
    "objectives": anything,
    "alertPolicies": anything,
}


def _slo(found: Object, file: File) -> _ObjectiveGroup | None:
    notes = file.notes
    given, place = found.spec.value, found.spec.place
    spec = _in_v1(read_optional_mapping(given, place, _SLO, notes))
    if not _check_required_keys(spec, given, place, service="", timeWindow="", objectives=""):
        return None
    service = name(spec["service"], notes)
    notes.about(str(service.value))
    own = name(found.metadata["name"], notes)
    notes.about(str(service.value), str(own.value))
    window = _window(spec["timeWindow"], notes)
    common = {
        **_described(found, spec, notes),
        **non_empty(labels=_kept_labels(found, notes)),
    }
    if "alertPolicies" in spec and spec["alertPolicies"].value:
        notes.left_out(
            spec["alertPolicies"].place,
            "are left out: burn-rate alerts in several windows follow from the objective",
            "set labels of pages and tickets under alerting after converting",
        )
    method = str(spec["budgetingMethod"].value) if "budgetingMethod" in spec else METHODS[0]
    slo = _Slo(file, service, own, _sli(spec, file), method, common)
    each = list(items(spec["objectives"].value, spec["objectives"].place))
    if not each:
        spec["objectives"].place.refuse("has no objective", "add one")
    objectives = [
        PlacedValue(objective, where)
        for item, where in each
        if (objective := _objective(item, where, slo, alone=len(each) == 1))
    ]
    if window is None:
        return None
    return _ObjectiveGroup(str(spec["service"].value), service, window, objectives)


def _window(periods: PlacedValue, notes: Notes) -> PlacedValue | None:
    """Return the rolling window; convert a calendar window to a rolling one, with a note."""
    given = list(items(periods.value, periods.place))
    if len(given) != 1:
        periods.place.refuse("must hold one window", "give one, such as [{duration: 28d}]")
        return None
    ((value, place),) = given
    readers: dict[str, Reader] = {
        "duration": text, "count": text, "unit": text, "isRolling": boolean, "calendar": anything,
    }  # fmt: skip
    found = read_optional_mapping(value, place, readers, notes)
    if "duration" in found:
        at, written = found["duration"].place, str(found["duration"].value)
    elif "count" in found and "unit" in found:
        unit = str(found["unit"].value)
        at = found["unit"].place
        if unit.lower().removesuffix("s") not in _UNITS:
            at.refuse(f"{quoted(unit)} is not a unit", "write Day, Week or Month")
            return None
        written = f"{found['count'].value}{_UNITS[unit.lower().removesuffix('s')]}"
    else:
        check_required_keys(found, value, place, duration=": 28d")
        return None
    if "calendar" in found or ("isRolling" in found and not found["isRolling"].value):
        notes.lost(
            found["calendar"].place if "calendar" in found else found["isRolling"].place,
            "has a calendar window, and a query of Prometheus only covers a rolling one",
            "set isRolling: true, and delete calendar",
        )
    return PlacedValue(_days(written, at, notes), at)


def _days(written: str, place: Place, notes: Notes) -> str:
    number, unit = written[:-1], written[-1:]
    if unit not in _PERIODS or not number.isdecimal() or len(number) > 3:
        return written
    days = f"{int(number) * int(_PERIODS[unit][:-1])}d"
    notes.left_out(place, f"{written} varies in length", f"expect {days}")
    return days


# Objectives


_OBJECTIVE: dict[str, Reader] = {
    "displayName": text,
    "op": text,
    "value": number,
    "target": share,
    "targetPercent": percent,
    "timeSliceTarget": slice_target,
    "timeSliceWindow": slice_window,
    **dict.fromkeys(("ratioMetrics", "ratioMetric"), anything),
    "compositeWeight": anything,
    **dict.fromkeys(("indicator", "sli"), anything),
    **dict.fromkeys(("indicatorRef", "sliRef"), text),
}


def _objective(value: object, place: Place, slo: _Slo, *, alone: bool) -> dict[str, Any] | None:
    notes = slo.file.notes
    found = read_optional_mapping(value, place, _OBJECTIVE, notes)
    if found.keys() >= {"target", "targetPercent"}:
        found["targetPercent"].place.refuse("conflicts with target", "delete one of them")
    found = _in_v1(found)
    own = slo.name if alone else _own_name(found, place, slo)
    notes.about(str(slo.service.value), str(own.value))
    whole = _check_required_keys(found, value, place, target=": 0.99")
    _note_composite(found, notes, alone=alone)
    if "displayName" in found and alone:
        fix = "put it into the description if it adds anything"
        notes.left_out(found["displayName"].place, "is left out: the SLO has one objective", fix)
    sli = _sli(found, slo.file) or slo.sli
    if "ratioMetric" in found:  # v1alpha
        sli = PlacedValue({"ratioMetric": found["ratioMetric"]}, place)
    if sli is None:
        place.refuse("has no indicator", "add indicator to the SLO", "indicator")
        return None
    if sli.value is None:  # reported already
        return None
    converted = indicator(sli, found, place, slo.file, slo.method)
    if converted is None or not whole:
        return None
    return {"name": own, **converted, "target": found["target"], **slo.common}


def _note_composite(found: Mapping[str, PlacedValue], notes: Notes, *, alone: bool) -> None:
    own = [found[key] for key in ("compositeWeight", "indicator", "indicatorRef") if key in found]
    if own and not (alone and "compositeWeight" not in found):
        notes.lost(
            own[0].place,
            "combines weighted objectives into one; here each is separate",
            "write one indicator that counts the events of all of them",
        )


def _own_name(found: Mapping[str, PlacedValue], place: Place, slo: _Slo) -> PlacedValue:
    """Name one of several objectives by its display name, else by its target."""
    for given in (found[key] for key in ("displayName", "target") if key in found):
        if slug := re.sub(r"[^a-z0-9]+", "-", str(given.value).lower()).strip("-"):
            return PlacedValue(f"{slo.name.value}-{slug}", given.place)
    return PlacedValue(slo.name.value, place)


def _sli(fields: Mapping[str, PlacedValue], file: File) -> PlacedValue | None:
    """Return the metrics of an inline or referenced SLI, None if there is no SLI.

    The value is a mapping of metrics, or None after reporting a problem.
    """
    if inline := fields.get("indicator"):
        found = read_optional_mapping(inline.value, inline.place, _ANY_SLI, file.notes)
        return (
            _metrics(found["spec"], file) if "spec" in found else PlacedValue(found, inline.place)
        )
    if ref := fields.get("indicatorRef"):
        other = file.named("SLI", str(ref.value))
        if other:
            return _metrics(other.spec, file)
        message = f"there is no SLI named {quoted(str(ref.value))} in this file"
        ref.place.refuse(message, "add it to this file, or write it inline")
        return PlacedValue(None, ref.place)
    return None


def _metrics(spec: PlacedValue, file: File) -> PlacedValue:
    found = read_optional_mapping(spec.value, spec.place, _SLI, file.notes)
    if "description" in found:
        fix = "put it into the description of the SLO if it adds anything"
        file.notes.left_out(found["description"].place, "is left out: it describes the SLI", fix)
    return PlacedValue(found, spec.place)


_SLI: dict[str, Reader] = {
    "description": text,
    **dict.fromkeys(("thresholdMetric", "ratioMetric"), anything),
}
_ANY_SLI = {**_SLI, **dict.fromkeys(("apiVersion", "kind", "metadata", "spec"), anything)}
