"""Convert OpenSLO's SLIs, by their budgeting method.

Queries must be PromQL; ``{{.window}}``, as in the specification's examples, marks a range.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from promql.expr import decimal_text, vector
from promql.lexer import InvalidPromQL
from promql.parse import parse
from promql.tree import Aggregate, Vector, bare, is_range, walk
from slos.durations import parse_duration
from slos.errors import BadValue, quoted
from slos.generic import WINDOW, is_counter
from slos.imports import idioms
from slos.imports.drafts import (
    Notes,
    PlacedValue,
    as_rate,
    fill_window,
    histogram,
    note_counts_per_window,
    query_of,
    rate_of_counter,
)
from slos.imports.openslo_objects import File
from slos.imports.readers import anything, boolean, number, read_optional_mapping, text
from slos.names import BASE_WINDOW
from slos.schema import Place, Reader

METHODS = ("Occurrences", "Timeslices", "RatioTimeslices")
OPERATORS = {"lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
SUPPORTED_SLICES = ("1m", "5m")
_PROMETHEUS = ("prometheus", "thanos", "mimir", "cortex", "victoriametrics")
_NOT_ZERO = re.compile(r"\((.*)\) != bool 0")
_ObjectiveKeys = Mapping[str, object]
"""Keys of an objective: ``indicator``, and ``time_slices`` or ``group_by``."""


def slice_window(value: object, place: Place) -> str:
    """Read the length of time slices; early versions write minutes without a unit."""
    written = text(value, place)
    length = f"{written}m" if written.isdecimal() else written
    if parse_duration(length) <= 0:
        raise BadValue(f"{written} is not above 0", "write a duration such as 1m")
    return length


def slice_target(value: object, place: Place) -> str:
    """Read the target of a slice: a ratio above 0, at most 1."""
    written = number(value, place)
    if not 0 < Decimal(written) <= 1:
        raise BadValue(f"{written} is not above 0 and at most 1", "write a ratio such as 0.95")
    return written


def indicator(
    sli: PlacedValue, objective: Mapping[str, PlacedValue], place: Place, file: File, method: str
) -> _ObjectiveKeys | None:
    """Convert an SLI; return None after reporting the reason.

    ``sli`` holds a metric by its kind, and ``place`` is that of ``objective``.
    """
    slices = _Slices.of(objective, place, file.notes, method)
    if "ratioMetric" in sli.value:
        return _ratio(sli.value["ratioMetric"], slices, file)
    if "thresholdMetric" in sli.value:
        return _threshold(sli.value["thresholdMetric"], objective, slices, file)
    sli.place.refuse("is missing", "add ratioMetric or thresholdMetric", "ratioMetric")
    return None


def _by(indicator: Mapping[str, object], metric: PlacedValue) -> _ObjectiveKeys:
    return {"indicator": PlacedValue(indicator, metric.place)}


@dataclass(frozen=True, slots=True)
class _Slices:
    """Length and target of an objective's time slices.

    ``window`` is empty if events are counted, ``target`` if the ratios of slices are averaged.
    """

    window: str = ""
    target: str = ""

    @property
    def share(self) -> Decimal:
        """The target of a slice."""
        return Decimal(self.target or 0)

    @property
    def are_supported(self) -> bool:
        """Whether tokenslo has slices of this length and target."""
        return self.window in SUPPORTED_SLICES and 0 < self.share < 1

    @classmethod
    def of(
        cls, objective: Mapping[str, PlacedValue], place: Place, notes: Notes, method: str
    ) -> _Slices:
        if method == "Occurrences":
            return cls()

        def setting(key: str, default: str) -> str:
            if key not in objective:
                message = f"has no {key}, so the default {default} is used"
                notes.left_out(place, message, f"add {key}")
            return str(objective[key].value) if key in objective else default

        window = setting("timeSliceWindow", "1m")
        return cls(window, "" if method == "RatioTimeslices" else setting("timeSliceTarget", "1"))


def _query(metric: PlacedValue, file: File) -> PlacedValue | None:
    """Return the query of a metric, None after reporting the reason."""
    notes = file.notes
    source = read_optional_mapping(metric.value, metric.place, _METRIC, notes)
    inner: Mapping[str, PlacedValue] = source
    if outer := source.get("metricSource"):
        inner = read_optional_mapping(outer.value, outer.place, _SOURCE, notes)
    if not _is_prometheus(inner, file):
        return None
    spec = (
        read_optional_mapping(inner["spec"].value, inner["spec"].place, _SPEC, notes)
        if "spec" in inner
        else {}
    )
    query = spec.get("query") or spec.get("promql") or source.get("query")
    if query is None:
        metric.place.refuse("has no query", "add metricSource: {spec: {query: …}}", "query")
        return None
    return fill_window(query, notes)


_METRIC: dict[str, Reader] = {
    "metricSource": anything,
    **dict.fromkeys(("dataSourceRef", "source", "queryType", "query"), text),
    **dict.fromkeys(("dataSourceSpec", "spec"), anything),
}
_SOURCE: dict[str, Reader] = {"metricSourceRef": text, "type": text, "spec": anything}
_SPEC: dict[str, Reader] = dict.fromkeys(("query", "promql", "queryType", "dimensions"), text)


def _is_prometheus(source: Mapping[str, PlacedValue], file: File) -> bool:
    """Whether a data source uses PromQL, which is the default."""
    declared = source.get("type") or source.get("source")
    ref = source.get("metricSourceRef") or source.get("dataSourceRef")
    if declared is None and ref is not None:
        other = file.named("DataSource", str(ref.value))
        if other is None:
            return True
        readers = {"type": text, "description": text, "connectionDetails": anything}
        declared = read_optional_mapping(
            other.spec.value, other.spec.place, readers, file.notes
        ).get("type")
    if declared is None and "dataSourceSpec" in source:
        inline = source["dataSourceSpec"]
        readers = {"type": text, "connectionDetails": anything, "description": text}
        declared = read_optional_mapping(inline.value, inline.place, readers, file.notes).get(
            "type"
        )
    if declared is None or str(declared.value).lower() in _PROMETHEUS:
        return True
    file.notes.lost(
        declared.place,
        f"{quoted(str(declared.value))} does not use PromQL",
        "write the same query in PromQL",
    )
    return False


def _as_rate(query: PlacedValue, notes: Notes, *, counter: bool | None) -> PlacedValue | None:
    """Convert a query to events per second; return None after reporting the reason.

    ``counter`` is whether a query without a range selects counters, None if unknown.
    """
    written = str(query.value)
    try:
        node = bare(parse(written.replace(WINDOW, BASE_WINDOW)))
    except InvalidPromQL:
        return query  # a later check refuses it, with its place
    if any(is_range(part) for part, _ in walk(node)):
        return query
    summed = isinstance(node, Aggregate) and node.op == "sum" and node.labels is None
    inner = bare(node.expr) if isinstance(node, Aggregate) and summed else node
    selector = inner if isinstance(inner, Vector) else None
    if counter and selector:
        plain = written[selector.start : selector.end]
        rate = f"sum(rate({plain}[{WINDOW}]))" if summed else rate_of_counter(plain)
        return PlacedValue(rate, query.place)
    if counter or (counter is None and selector and is_counter(vector(selector.name))):
        notes.lost(
            query.place,
            "reads the totals of counters, not their rates",
            "write rates, such as sum(rate(x[{{.window}}]))",
        )
        return None
    return PlacedValue(as_rate(written), query.place)


def _ratio(metric: PlacedValue, slices: _Slices, file: File) -> _ObjectiveKeys | None:
    notes = file.notes
    readers: dict[str, Reader] = {
        "counter": boolean,
        "incremental": boolean,
        **dict.fromkeys(("good", "bad", "total", "raw"), anything),
        "rawType": text,
    }
    found = read_optional_mapping(metric.value, metric.place, readers, notes)
    if "raw" in found:
        return _raw(found["raw"], found.get("rawType"), metric, slices, file)
    roles = [role for role in ("good", "bad") if role in found]
    if len(roles) != 1 or "total" not in found:
        metric.place.refuse("is not a ratio", "give good or bad, and total; or raw and rawType")
        return None
    declared = found.get("counter") or found.get("incremental")
    counter = declared.value if declared else None
    queries = {
        role: rate
        for role in (*roles, "total")
        if (query := _query(found[role], file))
        and (rate := _as_rate(query, notes, counter=counter))
    }
    if len(queries) < 2:
        return None
    note_counts_per_window(queries["total"], notes)
    if not slices.window:
        part, total = queries[roles[0]], queries["total"]
        found_events = idioms.events(roles[0], str(part.value), str(total.value), counters=True)
        return idioms.objective_keys(found_events, roles[0], part, total, notes)
    return _sliced(roles[0], queries, metric, slices, notes)


def _of_histogram(queries: Mapping[str, PlacedValue]) -> dict[str, PlacedValue] | None:
    """Convert a bucket and the count of a histogram to a histogram indicator; None for others."""
    read = {role: query_of(str(query.value)) for role, query in queries.items()}
    good, total = (each and each.selector for each in (read.get("good"), read["total"]))
    found_events = histogram(good, total) if good and total else None
    return (
        {key: PlacedValue(value, queries["good"].place) for key, value in found_events.items()}
        if found_events
        else None
    )


def _sliced(
    role: str,
    queries: Mapping[str, PlacedValue],
    metric: PlacedValue,
    slices: _Slices,
    notes: Notes,
) -> _ObjectiveKeys | None:
    """Convert a ratio of time slices; note slices that tokenslo evaluates differently."""
    if slices.are_supported and all(_can_be_sliced(str(query.value)) for query in queries.values()):
        keys = {"window": slices.window, "target": f"{decimal_text(slices.share * 100)}%"}
        found_events = _of_histogram(queries) or queries
        return {**_by(found_events, metric), "time_slices": PlacedValue(keys, metric.place)}
    part, total = (
        _rated(str(query.value)).replace(WINDOW, slices.window)
        for query in (queries[role], queries["total"])
    )
    share_of = f"({part} or {total} * 0) / ({total} > 0)"
    place = queries["total"].place
    _note_slices(metric.place, slices, notes)
    if slices.target:
        good = share_of if role == "good" else f"1 - {share_of}"
        return _by({"gauge": PlacedValue(f"{good} >= bool {slices.target}", place)}, metric)
    bad = share_of if role == "bad" else f"1 - {share_of}"
    return _by({"ratio": PlacedValue(bad, place)}, metric)


def _can_be_sliced(query: str) -> bool:
    """Whether a query can be evaluated over one slice."""
    read = query_of(query)
    return WINDOW in query or bool(read and read.selector and is_counter(read.selector))


def _rated(query: str) -> str:
    """Return the rate of a query that is a plain selector; other queries as they are."""
    read = query_of(query)
    if read and read.selector:
        return f"sum(rate({query}[{WINDOW}]))"
    return query if read is None or read.summed else f"({query})"


def _note_slices(place: Place, slices: _Slices, notes: Notes) -> None:
    notes.left_out(
        place,
        f"slices of {slices.window} overlap, as one is evaluated every 30s, and idle ones do not "
        "count",
        "expect the same ratio of good slices, with some noise",
    )


def _raw(
    raw: PlacedValue, kind: PlacedValue | None, metric: PlacedValue, slices: _Slices, file: File
) -> _ObjectiveKeys | None:
    query = _query(raw, file)
    if query is None:
        return None
    if kind is None or kind.value not in ("success", "failure"):
        metric.place.refuse("is neither success nor failure", "write rawType: failure", "rawType")
        return None
    success = kind.value == "success"
    if not slices.window:
        fix = "give good and total if there are any"
        return idioms.quotient_keys(query, file.notes, fix, success=success)
    filled = str(query.value).replace(WINDOW, slices.window)
    _note_slices(metric.place, slices, file.notes)
    if slices.target:
        good = f"({filled})" if success else f"1 - ({filled})"
        return _by({"gauge": PlacedValue(f"{good} >= bool {slices.target}", query.place)}, metric)
    return _by(
        {"ratio": PlacedValue(f"1 - ({filled})" if success else filled, query.place)}, metric
    )


def _threshold(
    metric: PlacedValue, objective: Mapping[str, PlacedValue], slices: _Slices, file: File
) -> _ObjectiveKeys | None:
    query = _query(metric, file)
    op, value = objective.get("op"), objective.get("value")
    if op is None or value is None or op.value not in OPERATORS:
        where = op.place if op else metric.place
        known = ", ".join(OPERATORS)
        where.refuse("the objective of a thresholdMetric has no op and value", f"add op: {known}")
        return None
    if query is None:
        return None
    written = str(query.value)
    gauge = _NOT_ZERO.fullmatch(written)
    if gauge and (op.value, value.value) == ("gt", "0") and query_of(gauge[1]):
        return _by({"gauge": PlacedValue(gauge[1], query.place)}, metric)  # the form of the export
    file.notes.left_out(
        metric.place,
        "each series is evaluated every 30s, at any scrape interval",
        "expect a ratio of time",
    )
    limit = f"{OPERATORS[str(op.value)]} bool {value.value}"
    expression = f"({written.replace(WINDOW, slices.window or WINDOW)}) {limit}"
    if slices.target:
        expression = f"avg_over_time(({expression})[{slices.window}:30s]) >= bool {slices.target}"
    return _by({"gauge": PlacedValue(expression, query.place)}, metric)
