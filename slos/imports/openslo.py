"""OpenSLO's objects: ``openslo/v1``, ``openslo/v1alpha`` and ``openslo.com/v2alpha``.

References are followed within the file.  Rules follow from the promise alone, so policies,
conditions and targets of alerts are left out, and said to be.  Queries must be PromQL;
``{{.window}}``, which the specification's own examples use, is where a range goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from promql import parse
from promql.expr import decimal_text, vector
from promql.query import InvalidQuery
from slos.document import Document
from slos.errors import BadValue, Problem, quoted
from slos.generic import WINDOW, is_counter, parsed
from slos.imports.foreign import (
    OF_TIERS,
    At,
    Draft,
    Notes,
    anything,
    as_rate,
    divided,
    items,
    labels,
    name,
    number,
    of_counter,
    one_line,
    percent,
    share,
    taken,
    text,
    truth,
    unless_empty,
    windowed,
)
from slos.names import BASE_WINDOW
from slos.schema import Place, Reader

_ALERTS = ("AlertPolicy", "AlertCondition", "AlertNotificationTarget")
_KINDS = ("SLO", "SLI", "Service", "DataSource", *_ALERTS)
_PROMETHEUS = ("prometheus", "thanos", "mimir", "cortex", "victoriametrics")
OUR_SLICES = ("1m", "5m")
_OPERATORS = {"lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_NOT_ZERO = re.compile(r"\((.*)\) != bool 0")
_PERIODS = {"M": "30d", "Q": "90d", "Y": "365d"}
_UNITS = {"second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w", "month": "M",
          "quarter": "Q", "year": "Y"}  # fmt: skip


_Parts = Mapping[str, object]
"""Keys of an objective of ours: its indicator, and what belongs to that."""


@dataclass(frozen=True, slots=True)
class _Object:
    """One object of a file, taken apart; ``version`` is that of its apiVersion, such as v1."""

    kind: str
    version: str
    metadata: Mapping[str, At]
    spec: At


@dataclass(frozen=True, slots=True)
class _File:
    """All objects of a file by kind and name, and where notes go."""

    objects: Mapping[tuple[str, str], _Object]
    notes: Notes


@dataclass(frozen=True, slots=True)
class _Slo:
    """What an SLO's objectives have in common."""

    file: _File
    service: At
    name: At
    sli: At | None
    method: str
    common: Mapping[str, object]


def drafts(documents: list[Document], problems: list[Problem], notes: Notes) -> Iterator[Draft]:
    """Tell the services that the SLOs of a file are about, one for each of their windows."""
    objects = [
        found
        for document in documents
        if (found := _object(document.value, Place(document, problems), notes))
    ]
    file = _File({(each.kind, _name_of(each)): each for each in objects}, notes)
    services: dict[tuple[str, str], list[At]] = {}
    firsts: dict[tuple[str, str], tuple[At, At]] = {}
    for each in objects:
        notes.about()
        if each.kind in _ALERTS:
            notes.left_out(
                each.spec.place,
                f"{each.kind} is left out: alerts follow from the promise",
                "set labels of pages and tickets under alerting after converting",
            )
        if each.kind == "SLO" and (told := _slo(each, file)):
            service, window, objectives = told
            key = (str(service.value), str(window.value))
            firsts.setdefault(key, (service, window))
            services.setdefault(key, []).extend(objectives)
    windows: dict[str, str] = {}
    for (service_name, period), objectives in services.items():
        service, window = firsts[service_name, period]
        if windows.setdefault(service_name, period) != period:
            service = _apart(service, window, notes)
        if objectives:
            yield Draft(
                {
                    "apiVersion": "tokenslo/v1",
                    "service": service,
                    **_described(file, service_name),
                    "window": window,
                    "objectives": objectives,
                },
                service.place,
            )


def _apart(service: At, window: At, notes: Notes) -> At:
    """Name a service of its own for the SLOs of another window."""
    other = f"{service.value}-{window.value}"
    notes.left_out(
        window.place,
        f"differs from that of the other SLOs of {service.value}, and a service has one window",
        f"expect these objectives under the service {other}",
    )
    return At(other, service.place)


def _described(file: _File, service: str) -> Mapping[str, At]:
    found = file.objects.get(("Service", service))
    if found is None:
        return {}
    spec = taken(found.spec.value, found.spec.place, {"description": text}, file.notes)
    return one_line(spec.get("description"))


def _object(value: object, place: Place, notes: Notes) -> _Object | None:
    readers: dict[str, Reader] = {"apiVersion": text, "kind": text}
    found = taken(value, place, {**readers, "metadata": anything, "spec": anything}, notes)
    for key in ("kind", "metadata"):
        if key not in found:
            place.refuse("is missing", f"add {key}", key)
    if not found.keys() >= {"kind", "metadata"}:
        return None
    kind = str(found["kind"].value)
    if kind not in _KINDS:
        fix = f"write one of {', '.join(_KINDS)}"
        found["kind"].place.refuse(f"{quoted(kind)} is not a kind of OpenSLO", fix)
        return None
    more = {"name": text, "displayName": text, "labels": _labels, "annotations": anything}
    metadata = taken(found["metadata"].value, found["metadata"].place, more, notes)
    if "name" not in metadata:
        found["metadata"].place.refuse("is missing", "add name", "name")
        return None
    version = str(found["apiVersion"].value).partition("/")[2]
    spec = found.get("spec") or At({}, place)
    return _Object(kind, version, metadata, spec)


def _labels(value: object, place: Place) -> dict[str, At]:
    """Read labels, of which v1 allows several values each."""
    if not isinstance(value, dict):
        raise BadValue("is no mapping", "write names with their values")
    return {
        key: At(", ".join(map(str, part)) if isinstance(part, list) else str(part), place.at(key))
        for key, part in value.items()
    }


def _name_of(found: _Object) -> str:
    return str(found.metadata["name"].value)


# SLOs


def _slo(found: _Object, file: _File) -> tuple[At, At, list[At]] | None:
    notes = file.notes
    readers: dict[str, Reader] = {
        "description": text,
        **dict.fromkeys(("service", "serviceRef"), text),
        **dict.fromkeys(("indicator", "sli"), anything),
        **dict.fromkeys(("indicatorRef", "sliRef"), text),
        **dict.fromkeys(("timeWindow", "timeWindows"), anything),
        "budgetingMethod": text,
        "objectives": anything,
        "alertPolicies": anything,
    }
    spec = taken(found.spec.value, found.spec.place, readers, notes)
    service = spec.get("service") or spec.get("serviceRef")
    periods = spec.get("timeWindow") or spec.get("timeWindows")
    for key, part in (
        ("service", service), ("timeWindow", periods), ("objectives", spec.get("objectives")),
    ):  # fmt: skip
        if part is None:
            found.spec.place.refuse("is missing", f"add {key}", key)
    if service is None or periods is None or "objectives" not in spec:
        return None
    service = name(service, notes)
    notes.about(str(service.value))
    own = name(found.metadata["name"], notes)
    notes.about(str(service.value), str(own.value))
    window = _window(periods, notes)
    _said_about(found, spec, notes)
    common = {
        **one_line(spec.get("description") or found.metadata.get("displayName")),
        **unless_empty(labels=_kept_labels(found, notes)),
    }
    method = str(spec["budgetingMethod"].value) if "budgetingMethod" in spec else "Occurrences"
    slo = _Slo(file, service, own, _sli(spec, file), method, common)
    given = list(items(spec["objectives"].value, spec["objectives"].place))
    if not given:
        spec["objectives"].place.refuse("holds no objective", "add one")
    told = [
        At(objective, place)
        for item, place in given
        if (objective := _objective(item, place, slo, alone=len(given) == 1))
    ]
    return None if window is None else (service, window, told)


def _kept_labels(found: _Object, notes: Notes) -> dict[str, At]:
    given = found.metadata.get("labels")
    return labels(given.value, notes, OF_TIERS) if given else {}


def _said_about(found: _Object, spec: Mapping[str, At], notes: Notes) -> None:
    if "annotations" in found.metadata:
        place = found.metadata["annotations"].place
        fix = "put what alerts are to say under alerting after converting"
        notes.left_out(place, "are left out: they are about the object", fix)
    if "displayName" in found.metadata and "description" in spec:
        place = found.metadata["displayName"].place
        fix = "put it into the description if it says more"
        notes.left_out(place, "is left out: there is a description", fix)
    if "alertPolicies" in spec and spec["alertPolicies"].value:
        notes.left_out(
            spec["alertPolicies"].place,
            "are left out: burn-rate alerts in several windows follow from the promise",
            "set labels of pages and tickets under alerting after converting",
        )


def _window(periods: At, notes: Notes) -> At | None:
    """Return the rolling window; a calendar one becomes as long a rolling one, and is lost."""
    given = list(items(periods.value, periods.place))
    if len(given) != 1:
        periods.place.refuse("must hold one window", "give one, such as [{duration: 28d}]")
        return None
    ((value, place),) = given
    readers: dict[str, Reader] = {
        "duration": text, "count": text, "unit": text, "isRolling": truth, "calendar": anything,
    }  # fmt: skip
    found = taken(value, place, readers, notes)
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
        place.refuse("is missing", "add duration: 28d", "duration")
        return None
    if "calendar" in found or ("isRolling" in found and not found["isRolling"].value):
        notes.lost(
            found["calendar"].place if "calendar" in found else found["isRolling"].place,
            "asks for a calendar window, and Prometheus only looks back a fixed time",
            "set isRolling: true, and delete calendar",
        )
    return At(_days(written, at, notes), at)


def _days(written: str, place: Place, notes: Notes) -> str:
    number, unit = written[:-1], written[-1:]
    if unit not in _PERIODS or not number.isdecimal() or len(number) > 3:
        return written
    days = f"{int(number) * int(_PERIODS[unit][:-1])}d"
    notes.left_out(place, f"{written} is not always as long", f"expect {days}")
    return days


# Objectives


_OBJECTIVE: dict[str, Reader] = {
    "displayName": text,
    "op": text,
    "value": number,
    "target": share,
    "targetPercent": percent,
    "timeSliceTarget": number,
    "timeSliceWindow": text,
    "ratioMetrics": anything,
    "ratioMetric": anything,
    "compositeWeight": anything,
    **dict.fromkeys(("indicator", "sli"), anything),
    **dict.fromkeys(("indicatorRef", "sliRef"), text),
}


def _objective(value: object, place: Place, slo: _Slo, *, alone: bool) -> dict[str, Any] | None:
    notes = slo.file.notes
    found = taken(value, place, _OBJECTIVE, notes)
    target = found.get("target") or found.get("targetPercent")
    own = slo.name if alone else _own_name(found, place, slo)
    notes.about(str(slo.service.value), str(own.value))
    if target is None and (
        not isinstance(value, dict) or value.keys().isdisjoint(("target", "targetPercent"))
    ):
        place.refuse("is missing", "add target: 0.99", "target")
    if "compositeWeight" in found:
        notes.lost(
            found["compositeWeight"].place,
            "weighs objectives into one, and each stands for itself here",
            "write one indicator that counts what all of them count",
        )
    if "displayName" in found and alone:
        fix = "put it into the description if it says more"
        notes.left_out(found["displayName"].place, "is left out: the SLO has one objective", fix)
    sli = _sli(found, slo.file) or slo.sli
    inline = found.get("ratioMetrics") or found.get("ratioMetric")  # as v1alpha has it
    if inline is not None:
        sli = At({"ratioMetric": inline.value}, inline.place)
    if sli is None:
        place.refuse("has no indicator", "add indicator to the SLO", "indicator")
        return None
    indicator = _indicator(sli, inline, found, slo)
    if indicator is None or target is None:
        return None
    return {"name": own, **indicator, "target": target, **slo.common}


def _own_name(found: Mapping[str, At], place: Place, slo: _Slo) -> At:
    """Name one of several objectives: after its own words, else its target."""
    word = found.get("displayName") or found.get("target") or found.get("targetPercent")
    said = re.sub(r"[^a-z0-9]+", "-", str(word.value).lower()).strip("-") if word else ""
    return At(f"{slo.name.value}-{said}".rstrip("-"), word.place if word else place)


def _sli(parts: Mapping[str, At], file: _File) -> At | None:
    """Return the spec of the SLI that stands there, or is referred to."""
    notes = file.notes
    if inline := parts.get("indicator") or parts.get("sli"):
        found = taken(inline.value, inline.place, _ANY_SLI, notes)
        return found.get("spec") or inline
    if ref := parts.get("indicatorRef") or parts.get("sliRef"):
        other = file.objects.get(("SLI", str(ref.value)))
        if other is None:
            message = f"there is no SLI called {quoted(str(ref.value))} in this file"
            ref.place.refuse(message, "put it into this file, or write it inline")
            return At(None, ref.place)
        return other.spec
    return None


_ANY_SLI = dict.fromkeys(
    ("apiVersion", "kind", "metadata", "spec", "thresholdMetric", "ratioMetric"), anything
)


def _indicator(sli: At, inline: At | None, objective: Mapping[str, At], slo: _Slo) -> _Parts | None:
    if sli.value is None:  # as has been said
        return None
    readers = {"description": text, "thresholdMetric": anything, "ratioMetric": anything}
    found = taken(sli.value, sli.place, readers, slo.file.notes) if inline is None else {}
    if inline is not None:
        found = {"ratioMetric": inline}
    slices = _Slices.of(objective, slo)
    if "ratioMetric" in found:
        return _ratio(found["ratioMetric"], slices, slo)
    if "thresholdMetric" in found:
        return _threshold(found["thresholdMetric"], objective, slices, slo)
    sli.place.refuse("is missing", "add ratioMetric or thresholdMetric", "ratioMetric")
    return None


def _by(indicator: Mapping[str, object], metric: At) -> _Parts:
    return {"indicator": At(indicator, metric.place)}


@dataclass(frozen=True, slots=True)
class _Slices:
    """How an objective is budgeted in slices of time: how long they are, and what each must reach.

    ``window`` is "" where events are counted, and ``target`` "" where slices are averaged.
    """

    window: str = ""
    target: str = ""

    @property
    def share(self) -> Decimal:
        """What each slice must reach."""
        return Decimal(self.target or 0)

    @property
    def are_ours(self) -> bool:
        """Whether our language has slices like these."""
        return self.window in OUR_SLICES and 0 < self.share < 1

    @classmethod
    def of(cls, objective: Mapping[str, At], slo: _Slo) -> _Slices:
        if slo.method == "Occurrences":
            return cls()
        window = objective.get("timeSliceWindow")
        target = objective.get("timeSliceTarget")
        length = str(window.value) if window else "1m"
        # A bare number is of minutes, as it was before it could be a duration.
        length += "m" * length.isdecimal()
        if slo.method == "RatioTimeslices":
            return cls(length)
        return cls(length, str(target.value) if target else "1")


def _query(metric: At, slo: _Slo) -> At | None:
    """Return the query of a metric; None after saying why there is none."""
    notes = slo.file.notes
    source = taken(metric.value, metric.place, _METRIC, notes)
    inner: Mapping[str, At] = source
    if outer := source.get("metricSource"):
        inner = taken(outer.value, outer.place, _SOURCE, notes)
    if not _is_prometheus(inner, slo):
        return None
    spec = taken(inner["spec"].value, inner["spec"].place, _SPEC, notes) if "spec" in inner else {}
    query = spec.get("query") or spec.get("promql") or source.get("query")
    if query is None:
        metric.place.refuse("has no query", "add metricSource: {spec: {query: …}}", "query")
        return None
    return windowed(query, notes)


_METRIC: dict[str, Reader] = {
    "metricSource": anything,
    **dict.fromkeys(("dataSourceRef", "source", "queryType", "query"), text),
    **dict.fromkeys(("dataSourceSpec", "spec"), anything),
}
_SOURCE: dict[str, Reader] = {"metricSourceRef": text, "type": text, "spec": anything}
_SPEC: dict[str, Reader] = dict.fromkeys(("query", "promql", "queryType", "dimensions"), text)


def _is_prometheus(source: Mapping[str, At], slo: _Slo) -> bool:
    """Whether a source is asked in PromQL; where nobody says, it is taken for one that is."""
    said = source.get("type") or source.get("source")
    ref = source.get("metricSourceRef") or source.get("dataSourceRef")
    if said is None and ref is not None:
        other = slo.file.objects.get(("DataSource", str(ref.value)))
        if other is None:
            return True
        readers = {"type": text, "description": text, "connectionDetails": anything}
        said = taken(other.spec.value, other.spec.place, readers, slo.file.notes).get("type")
    if said is None and "dataSourceSpec" in source:
        inline = source["dataSourceSpec"]
        readers = {"type": text, "connectionDetails": anything, "description": text}
        said = taken(inline.value, inline.place, readers, slo.file.notes).get("type")
    if said is None or str(said.value).lower() in _PROMETHEUS:
        return True
    slo.file.notes.lost(
        said.place,
        f"{quoted(str(said.value))} is not asked in PromQL",
        "give the same as a query of Prometheus",
    )
    return False


def _as_rate(query: At, notes: Notes, *, counter: bool | None) -> At | None:
    """Return events per second; None after saying why that is not to be had.

    ``counter`` is whether a query without a range selects counters, None if nobody says.
    """
    written = str(query.value)
    try:
        node = parse.bare(parse.parse(written.replace(WINDOW, BASE_WINDOW)))
    except parse.NotPromQL:
        return query  # which is refused later, where it stands
    if any(parse.is_range(part) for part, _ in parse.walk(node)):
        return query
    summed = isinstance(node, parse.Aggregate) and node.op == "sum" and node.labels is None
    inner = parse.bare(node.expr) if isinstance(node, parse.Aggregate) and summed else node
    selector = inner if isinstance(inner, parse.Selector) else None
    if counter and selector:
        plain = written[selector.start : selector.end]
        rate = f"sum(rate({plain}[{WINDOW}]))" if summed else of_counter(plain)
        return At(rate, query.place)
    if counter or (counter is None and selector and is_counter(vector(selector.metric or ""))):
        notes.lost(
            query.place,
            "reads counters since they began, not what happened in a time",
            "write rates, such as sum(rate(x[{{.window}}]))",
        )
        return None
    return At(as_rate(written), query.place)


def _ratio(metric: At, slices: _Slices, slo: _Slo) -> _Parts | None:
    readers: dict[str, Reader] = {
        "counter": truth,
        "incremental": truth,
        **dict.fromkeys(("good", "bad", "total", "raw"), anything),
        "rawType": text,
    }
    found = taken(metric.value, metric.place, readers, slo.file.notes)
    if "raw" in found:
        return _raw(found["raw"], found.get("rawType"), metric, slices, slo)
    roles = [role for role in ("good", "bad") if role in found]
    if len(roles) != 1 or "total" not in found:
        metric.place.refuse("is no ratio", "give good or bad, and total; or raw and rawType")
        return None
    said = found.get("counter") or found.get("incremental")
    counter = said.value if said else None
    queries = {
        role: rate
        for role in (*roles, "total")
        if (query := _query(found[role], slo))
        and (rate := _as_rate(query, slo.file.notes, counter=counter))
    }
    if len(queries) < 2:
        return None
    if not slices.window:
        return _by(queries, metric)
    return _sliced(roles[0], queries, metric, slices, slo)


def _sliced(
    role: str, queries: Mapping[str, At], metric: At, slices: _Slices, slo: _Slo
) -> _Parts | None:
    """Tell a ratio in slices: one that is idle is neither good nor bad."""
    if slices.are_ours and all(_is_about_a_window(str(query.value)) for query in queries.values()):
        ours = {"window": slices.window, "target": f"{decimal_text(slices.share * 100)}%"}
        return {**_by(queries, metric), "time_slices": At(ours, metric.place)}
    some, total = (
        _rated(str(query.value)).replace(WINDOW, slices.window)
        for query in (queries[role], queries["total"])
    )
    share_of = f"({some} or {total} * 0) / ({total} > 0)"
    place = queries["total"].place
    _said_about_slices(metric.place, slices, slo)
    if slices.target:
        good = share_of if role == "good" else f"1 - {share_of}"
        return _by({"gauge": At(f"{good} >= bool {slices.target}", place)}, metric)
    bad = share_of if role == "bad" else f"1 - {share_of}"
    return _by({"ratio": At(bad, place)}, metric)


def _is_about_a_window(query: str) -> bool:
    """Whether a query can be asked about one slice alone."""
    return WINDOW in query or _is_counter(query)


def _is_counter(query: str) -> bool:
    try:
        selector = parsed(query).selector
    except InvalidQuery:
        return False
    return selector is not None and is_counter(selector)


def _rated(query: str) -> str:
    """Write the rate of what may be a plain counter."""
    try:
        read = parsed(query)
    except InvalidQuery:
        return query  # which is refused later, where it stands
    if read.selector:
        return f"sum(rate({query}[{WINDOW}]))"
    return query if read.summed else f"({query})"


def _said_about_slices(place: Place, slices: _Slices, slo: _Slo) -> None:
    slo.file.notes.left_out(
        place,
        f"slices of {slices.window} are asked every 30s, overlapping, instead of one after the "
        "other",
        "expect the same share of good ones, but for its noise",
    )


def _raw(raw: At, kind: At | None, metric: At, slices: _Slices, slo: _Slo) -> _Parts | None:
    query = _query(raw, slo)
    if query is None:
        return None
    if kind is None or kind.value not in ("success", "failure"):
        metric.place.refuse("is neither success nor failure", "write rawType: failure", "rawType")
        return None
    success = kind.value == "success"
    written = str(query.value)
    if slices.window:
        filled = written.replace(WINDOW, slices.window)
        ratio = f"1 - ({filled})" if success else filled
        _said_about_slices(metric.place, slices, slo)
        if slices.target:
            good = f"({filled})" if success else f"1 - ({filled})"
            return _by({"gauge": At(f"{good} >= bool {slices.target}", query.place)}, metric)
        return _by({"ratio": At(ratio, query.place)}, metric)
    ratio = f"1 - ({written})" if success else written
    if parts := divided(ratio):
        return _by({role: At(part, query.place) for role, part in parts.items()}, metric)
    slo.file.notes.left_out(
        query.place,
        "is no quotient of two sums, so longer windows average it over time, whatever the traffic",
        "give good and total if there are any",
    )
    return _by({"ratio": At(ratio, query.place)}, metric)


def _threshold(
    metric: At, objective: Mapping[str, At], slices: _Slices, slo: _Slo
) -> _Parts | None:
    query = _query(metric, slo)
    op, value = objective.get("op"), objective.get("value")
    if op is None or value is None or op.value not in _OPERATORS:
        where = op.place if op else metric.place
        known = ", ".join(_OPERATORS)
        where.refuse("the objective of a thresholdMetric has no op and value", f"add op: {known}")
        return None
    if query is None:
        return None
    written = str(query.value)
    gauge = _NOT_ZERO.fullmatch(written)
    if gauge and (op.value, value.value) == ("gt", "0") and _is_query(gauge[1]):
        return _by({"gauge": At(gauge[1], query.place)}, metric)  # as we export it
    slo.file.notes.left_out(
        metric.place,
        "each series is asked every 30s, however often it is scraped",
        "expect a share of time",
    )
    limit = f"{_OPERATORS[str(op.value)]} bool {value.value}"
    asked = f"({written.replace(WINDOW, slices.window or WINDOW)}) {limit}"
    if slices.window and slices.target != "1":
        asked = f"avg_over_time(({asked})[{slices.window}:30s]) >= bool {slices.target}"
    return _by({"gauge": At(asked, query.place)}, metric)


def _is_query(text: str) -> bool:
    try:
        parsed(text)
    except InvalidQuery:
        return False
    return True
