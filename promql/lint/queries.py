"""Find the queries of dashboards, rule files and Kubernetes manifests.

Supported are Grafana dashboards (classic, with rows, nested, of the v2 schema; bare, as the API
wraps them, or in a ConfigMap or GrafanaDashboard), Prometheus rule files (Mimir's and vmalert's are
the same), PrometheusRule and similar resources, and what :mod:`promql.lint.scalers` reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from promql.expr import quote
from promql.lint.located_text import SUFFIXES, LocatedText, NoQueries, UnreadableFile, Value, parse
from promql.lint.scalers import (
    Scaler,
    ScalerQuery,
    TriggerSettings,
    adapter_queries,
    scaler,
    trigger_queries,
)
from promql.literals import duration

Use = Literal["panel", "annotation", "variable", "record", "alert", "trigger", "adapter"]
Path = tuple[str | int, ...]

_PROMETHEUS = ("prometheus", "mimir", "thanos", "cortex", "victoriametrics")
_MAX_QUERIES = 20_000
_MAX_NESTING = 3  # of files in texts


@dataclass(frozen=True, slots=True)
class LocatedQuery:
    """One PromQL expression of a file.

    ``place`` describes its place for messages, ``path`` gives its keys.  ``name`` is the title of
    the panel, or the record or alert of the rule.  ``unit`` is the panel's unit in Grafana's terms,
    empty if unknown.  ``shortest`` is the minimum step of a panel in seconds, if it sets one.
    ``labels`` are those of a rule, ``templates`` its annotations.  ``settings`` are those of a
    scaler's trigger; ``unselective`` marks an adapter's rule that has the same value for every pod.
    """

    file: str
    text: LocatedText
    use: Use
    place: str
    path: Path
    name: str = ""
    unit: str = ""
    shortest: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    templates: tuple[str, ...] = ()
    settings: TriggerSettings | None = None
    unselective: bool = False
    dashboard: int = 0
    """Number of the dashboard in the file, from 1; 0 for rules."""

    def line(self, offset: int = 0) -> int:
        """Return the line of a character of the expression."""
        return self.text.line + (self.text.count("\n", 0, offset) if self.text.block else 0)


@dataclass(slots=True)
class FileQueries:
    """The queries of a file, and notes about parts that cannot be checked."""

    queries: list[LocatedQuery] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    intervals: list[float] = field(default_factory=list)
    """Scrape intervals, in seconds."""
    scalers: list[tuple[Path, Scaler]] = field(default_factory=list)
    """Scalers, with the paths of their manifests."""
    recognized: bool = False
    dashboards: int = 0


def find_queries(file: str, documents: list[Value]) -> FileQueries:
    """Return the queries of a file; raises :class:`UnreadableFile` if it cannot have any."""
    found = FileQueries()
    for index, document in enumerate(documents):
        _document(file, document, (index,) if len(documents) > 1 else (), found)
    if not found.recognized:
        raise NoQueries(
            0,
            "is neither a Grafana dashboard nor a file of Prometheus rules",
            "give dashboards as JSON, and rules as YAML with `groups`",
        )
    if len(found.queries) > _MAX_QUERIES:
        raise UnreadableFile(
            0, f"has more than {_MAX_QUERIES} queries", "split it into several files"
        )
    return found


def _document(file: str, value: Value, path: Path, found: FileQueries, nesting: int = 0) -> None:
    if not isinstance(value, dict):
        return
    spec = _mapping(value.get("spec"))
    if one := scaler(value):
        found.recognized = True
        found.scalers.append((path, one))
    if isinstance(value.get("groups"), list):
        found.recognized = True
        found.queries += _rules(file, value["groups"], (*path, "groups"))
    elif isinstance(spec.get("groups"), list):
        found.recognized = True
        found.queries += _rules(file, spec["groups"], (*path, "spec", "groups"))
    elif intervals := [*_scrape_intervals(value, spec)]:
        found.recognized = True
        found.intervals += intervals
    elif isinstance(spec.get("triggers"), list):
        found.recognized = True
        found.queries += _of_scalers(file, trigger_queries(value), path, "trigger")
    elif rules := [*adapter_queries(value)]:
        found.recognized = True
        found.queries += _of_scalers(file, rules, path, "adapter")
    elif isinstance(value.get("items"), list):
        for index, item in enumerate(value["items"]):
            _document(file, item, (*path, "items", index), found, nesting)
    elif isinstance(value.get("dashboard"), dict):
        _document(file, value["dashboard"], (*path, "dashboard"), found, nesting)
    elif isinstance(spec.get("elements"), dict):
        _dashboard(file, spec, (*path, "spec"), found)
    elif any(isinstance(value.get(key), list) for key in ("panels", "rows")):
        _dashboard(file, value, path, found)
    elif nesting < _MAX_NESTING:
        for keys, text in _inner_files(value, spec):
            for document in _parse_inner(text):
                _document(
                    file, _with_outer_lines(document, text), (*path, *keys), found, nesting + 1
                )


_MONITORS = {"ServiceMonitor": "endpoints", "PodMonitor": "podMetricsEndpoints"}
_DEFAULT_INTERVAL = 60.0  # Prometheus's own


def _scrape_intervals(value: Mapping[str, Value], spec: Mapping[str, Value]) -> Iterator[float]:
    """Yield the intervals of a Prometheus configuration, a ServiceMonitor or a PodMonitor."""
    if isinstance(value.get("scrape_configs"), list) or "scrape_interval" in _mapping(
        value.get("global")
    ):
        usual = duration(_text(_mapping(value.get("global")).get("scrape_interval")))
        jobs = [_mapping(job) for job in _list(value.get("scrape_configs"))]
        for job in jobs or [{}]:
            own = duration(_text(job.get("scrape_interval")))
            yield own or usual or _DEFAULT_INTERVAL
    for endpoint in _list(spec.get(_MONITORS.get(_text(value.get("kind")), ""))):
        if own := duration(_text(_mapping(endpoint).get("interval"))):
            yield own


def _inner_files(
    value: Mapping[str, Value], spec: Mapping[str, Value]
) -> Iterator[tuple[Path, LocatedText]]:
    """Yield the files that a manifest contains as text."""
    for name, text in _mapping(value.get("data")).items():
        if isinstance(text, LocatedText) and name.endswith((*SUFFIXES, ".rules")):
            yield ("data", name), text
    if isinstance(text := spec.get("json"), LocatedText):
        yield ("spec", "json"), text


def _parse_inner(text: LocatedText) -> list[Value]:
    try:
        return parse(str(text))
    except UnreadableFile as problem:
        line = text.line + problem.line - 1 if text.block and problem.line else text.line
        raise UnreadableFile(line, f"contains a file that {problem.message}", problem.fix) from None


def _with_outer_lines(value: Value, outer: LocatedText) -> Value:
    """Return a value of an inner file with the line numbers of the outer file."""
    if isinstance(value, dict):
        return {key: _with_outer_lines(inner, outer) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_outer_lines(inner, outer) for inner in value]
    if isinstance(value, LocatedText):
        line = outer.line + value.line - 1 if outer.block else outer.line
        return LocatedText(value, line, value.block and outer.block)
    return value


def _rules(file: str, groups: list[Value], path: Path) -> Iterator[LocatedQuery]:
    for at, group in enumerate(groups):
        group = _mapping(group)
        for index, rule in enumerate(_list(group.get("rules"))):
            rule = _mapping(rule)
            text = rule.get("expr")
            use: Use = "alert" if "alert" in rule else "record"
            name = _text(rule.get(use))
            labels = {**_texts(group.get("labels")), **_texts(rule.get("labels"))}
            if isinstance(text, LocatedText):
                yield LocatedQuery(
                    file,
                    text,
                    use,
                    f"group {_quoted(group.get('name'))}, {use} {_short(name)}",
                    (*path, at, "rules", index, "expr"),
                    name,
                    labels=labels,
                    templates=(*_texts(rule.get("annotations")).values(), *labels.values()),
                )


def _of_scalers(
    file: str, found: Iterable[ScalerQuery], path: Path, use: Use
) -> Iterator[LocatedQuery]:
    for each in found:
        yield LocatedQuery(
            file,
            each.text,
            use,
            each.place,
            (*path, *each.path),
            each.name,
            settings=each.settings,
            unselective=each.unselective,
        )


def _dashboard(file: str, value: Mapping[str, Value], path: Path, found: FileQueries) -> None:
    found.recognized = True
    found.dashboards += 1
    sources = _datasources(value)
    for where, panel in _panels(value, path):
        place = f"panel {_quoted(panel.get('title'))} (id {_short(str(panel.get('id', '?')))})"
        if "libraryPanel" in panel:
            found.notes.append(
                f"{file}: {place} is a library panel: its queries are kept in Grafana and were "
                "not checked"
            )
        for target_path, target in _targets(panel):
            text = _query_text(target)
            if text is None or not _is_for_prometheus(target, panel, sources):
                continue
            found.queries.append(
                LocatedQuery(
                    file,
                    text,
                    "panel",
                    f"{place}, target {_short(_text(target.get('refId')) or '?')}",
                    (*path, *where, *target_path),
                    _text(panel.get("title")),
                    _unit(panel),
                    duration(_text(target.get("interval") or panel.get("interval")).lstrip(">")),
                    dashboard=found.dashboards,
                )
            )
    annotations = _mapping(value.get("annotations"))
    for index, annotation in enumerate(_list(annotations.get("list") or value.get("annotations"))):
        annotation = _mapping(annotation)
        text = annotation.get("expr") or _mapping(annotation.get("target")).get("expr")
        if (
            isinstance(text, LocatedText)
            and text.strip()
            and _is_for_prometheus(annotation, {}, sources)
        ):
            place = f"annotation {_quoted(annotation.get('name'))}"
            where = (*path, "annotations", "list", index, "expr")
            found.queries.append(
                LocatedQuery(file, text, "annotation", place, where, dashboard=found.dashboards)
            )
    for index, variable in enumerate(_variables(value)):
        text = _variable_query(variable)
        if text is not None and _is_for_prometheus(variable, {}, sources):
            place = f"variable {_quoted(variable.get('name'))}"
            where = (*path, "templating", "list", index, "query")
            found.queries.append(
                LocatedQuery(file, text, "variable", place, where, dashboard=found.dashboards)
            )


def _panels(value: Mapping[str, Value], path: Path) -> Iterator[tuple[Path, Mapping[str, Value]]]:
    """Yield panels in order, including those of rows and collapsed rows."""
    for key in ("panels", "rows"):
        for index, panel in enumerate(_list(value.get(key))):
            panel = _mapping(panel)
            yield (key, index), panel
            for where, inner in _panels(panel, path):
                yield (key, index, *where), inner
    for name, element in _mapping(value.get("elements")).items():
        spec = _mapping(_mapping(element).get("spec"))
        yield ("elements", name, "spec"), spec


def _targets(panel: Mapping[str, Value]) -> Iterator[tuple[Path, Mapping[str, Value]]]:
    for index, target in enumerate(_list(panel.get("targets"))):
        yield ("targets", index, "expr"), _mapping(target)
    queries = _mapping(_mapping(panel.get("data")).get("spec")).get("queries")
    for index, query in enumerate(_list(queries)):
        spec = _mapping(_mapping(query).get("spec"))
        inner = _mapping(spec.get("query"))
        where = ("data", "spec", "queries", index, "spec", "query", "spec", "expr")
        yield (
            where,
            {
                "datasource": {"type": inner.get("group") or inner.get("kind")},
                **_mapping(inner.get("spec")),
                "refId": spec.get("refId"),
            },
        )


def _query_text(target: Mapping[str, Value]) -> LocatedText | None:
    text = target.get("expr")
    return text if isinstance(text, LocatedText) and text.strip() else None


def _variables(value: Mapping[str, Value]) -> Iterator[Mapping[str, Value]]:
    templating = _mapping(value.get("templating"))
    for variable in _list(templating.get("list") or value.get("variables")):
        variable = _mapping(variable)
        yield _mapping(variable.get("spec")) or variable


_LOOKUP = re.compile(
    r"\s*(?P<function>label_values|query_result|metrics|label_names)\s*\((?P<inside>.*)\)\s*",
    re.DOTALL,
)


def _variable_query(variable: Mapping[str, Value]) -> LocatedText | None:
    """Return the PromQL in a variable's query, such as ``label_values(metric{…}, label)``."""
    if variable.get("type", "query") != "query":
        return None
    query = variable.get("query")
    if isinstance(query, dict):
        query = query.get("query") or query.get("expr")
    found = _LOOKUP.fullmatch(query) if isinstance(query, LocatedText) else None
    if not found or not isinstance(query, LocatedText):
        return None
    inside = found["inside"]
    if found["function"] == "label_values":
        inside = inside.rpartition(",")[0]
    elif found["function"] != "query_result":
        return None
    return LocatedText(inside, query.line) if inside.strip() else None


def _datasources(value: Mapping[str, Value]) -> Mapping[str, str]:
    """Return the data source type of each variable and input of a dashboard."""
    types = {}
    for variable in _variables(value):
        if variable.get("type") == "datasource":
            types[_text(variable.get("name"))] = _text(variable.get("query"))
    for entry in map(_mapping, _list(value.get("__inputs"))):
        if entry.get("type") == "datasource":
            types[_text(entry.get("name"))] = _text(entry.get("pluginId"))
    return types


def _is_for_prometheus(
    target: Mapping[str, Value], panel: Mapping[str, Value], sources: Mapping[str, str]
) -> bool:
    """Whether a query's data source is Prometheus, or unknown."""
    for source in (target.get("datasource"), panel.get("datasource")):
        kind = ""
        if isinstance(source, dict):
            kind = _text(source.get("type"))
            source = source.get("uid")
        name = re.sub(r"^\$\{?|\[\[|\}$|\]\]$", "", _text(source))
        kind = kind or sources.get(name, "")
        if kind:
            return any(each in kind.lower() for each in _PROMETHEUS)
    return True


def _unit(panel: Mapping[str, Value]) -> str:
    """Return the unit of all queries of a panel, empty if overrides may change it."""
    config = _mapping(panel.get("fieldConfig"))
    options = _mapping(_mapping(_mapping(panel.get("vizConfig")).get("spec")).get("fieldConfig"))
    config = config or options
    for override in _list(config.get("overrides")):
        for each in _list(_mapping(override).get("properties")):
            if _mapping(each).get("id") == "unit":
                return ""
    unit = _text(_mapping(config.get("defaults")).get("unit"))
    if unit or config:
        return unit
    axes = [_mapping(axis) for axis in _list(panel.get("yaxes"))]
    return _text(axes[0].get("format")) if axes else _text(panel.get("format"))


def _mapping(value: Value) -> Mapping[str, Value]:
    return value if isinstance(value, dict) else {}


def _list(value: Value) -> list[Value]:
    return value if isinstance(value, list) else []


def _text(value: Value) -> str:
    return str(value) if isinstance(value, str) else ""


def _texts(value: Value) -> Mapping[str, str]:
    return {key: _text(text) for key, text in _mapping(value).items()}


def _short(text: str) -> str:
    """Return a name on one line, shortened for a message."""
    text = "".join(c if c.isprintable() else "�" for c in text)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _quoted(value: Value) -> str:
    return quote(_short(_text(value)))
