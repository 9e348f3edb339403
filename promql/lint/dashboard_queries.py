"""Find the queries of Grafana dashboards: classic, with rows, nested, and of the v2 schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from promql.lint.located_query import FileQueries, LocatedQuery, Path
from promql.lint.located_text import LocatedText, Value
from promql.lint.values import list_of, mapping_of, quoted, short, text_of
from promql.literals import duration

_PROMETHEUS = ("prometheus", "mimir", "thanos", "cortex", "victoriametrics")


def add_dashboard(file: str, value: Mapping[str, Value], path: Path, found: FileQueries) -> None:
    """Add the queries of a dashboard to those of its file."""
    found.recognized = True
    found.dashboards += 1
    sources = _datasources(value)
    for where, panel in _panels(value, path):
        place = f"panel {quoted(panel.get('title'))} (id {short(str(panel.get('id', '?')))})"
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
                    f"{place}, target {short(text_of(target.get('refId')) or '?')}",
                    (*path, *where, *target_path),
                    text_of(panel.get("title")),
                    _unit(panel),
                    duration(text_of(target.get("interval") or panel.get("interval")).lstrip(">")),
                    dashboard=found.dashboards,
                )
            )
    annotations = mapping_of(value.get("annotations"))
    for index, annotation in enumerate(
        list_of(annotations.get("list") or value.get("annotations"))
    ):
        annotation = mapping_of(annotation)
        text = annotation.get("expr") or mapping_of(annotation.get("target")).get("expr")
        if (
            isinstance(text, LocatedText)
            and text.strip()
            and _is_for_prometheus(annotation, {}, sources)
        ):
            place = f"annotation {quoted(annotation.get('name'))}"
            where = (*path, "annotations", "list", index, "expr")
            found.queries.append(
                LocatedQuery(file, text, "annotation", place, where, dashboard=found.dashboards)
            )
    for index, variable in enumerate(_variables(value)):
        text = _variable_query(variable)
        if text is not None and _is_for_prometheus(variable, {}, sources):
            place = f"variable {quoted(variable.get('name'))}"
            where = (*path, "templating", "list", index, "query")
            found.queries.append(
                LocatedQuery(file, text, "variable", place, where, dashboard=found.dashboards)
            )


def _panels(value: Mapping[str, Value], path: Path) -> Iterator[tuple[Path, Mapping[str, Value]]]:
    """Yield panels in order, including those of rows and collapsed rows."""
    for key in ("panels", "rows"):
        for index, panel in enumerate(list_of(value.get(key))):
            panel = mapping_of(panel)
            yield (key, index), panel
            for where, inner in _panels(panel, path):
                yield (key, index, *where), inner
    for name, element in mapping_of(value.get("elements")).items():
        spec = mapping_of(mapping_of(element).get("spec"))
        yield ("elements", name, "spec"), spec


def _targets(panel: Mapping[str, Value]) -> Iterator[tuple[Path, Mapping[str, Value]]]:
    for index, target in enumerate(list_of(panel.get("targets"))):
        yield ("targets", index, "expr"), mapping_of(target)
    queries = mapping_of(mapping_of(panel.get("data")).get("spec")).get("queries")
    for index, query in enumerate(list_of(queries)):
        spec = mapping_of(mapping_of(query).get("spec"))
        inner = mapping_of(spec.get("query"))
        where = ("data", "spec", "queries", index, "spec", "query", "spec", "expr")
        yield (
            where,
            {
                "datasource": {"type": inner.get("group") or inner.get("kind")},
                **mapping_of(inner.get("spec")),
                "refId": spec.get("refId"),
            },
        )


def _query_text(target: Mapping[str, Value]) -> LocatedText | None:
    text = target.get("expr")
    return text if isinstance(text, LocatedText) and text.strip() else None


def _variables(value: Mapping[str, Value]) -> Iterator[Mapping[str, Value]]:
    templating = mapping_of(value.get("templating"))
    for variable in list_of(templating.get("list") or value.get("variables")):
        variable = mapping_of(variable)
        yield mapping_of(variable.get("spec")) or variable


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
            types[text_of(variable.get("name"))] = text_of(variable.get("query"))
    for entry in map(mapping_of, list_of(value.get("__inputs"))):
        if entry.get("type") == "datasource":
            types[text_of(entry.get("name"))] = text_of(entry.get("pluginId"))
    return types


def _is_for_prometheus(
    target: Mapping[str, Value], panel: Mapping[str, Value], sources: Mapping[str, str]
) -> bool:
    """Whether a query's data source is Prometheus, or unknown."""
    for source in (target.get("datasource"), panel.get("datasource")):
        kind = ""
        if isinstance(source, dict):
            kind = text_of(source.get("type"))
            source = source.get("uid")
        name = re.sub(r"^\$\{?|\[\[|\}$|\]\]$", "", text_of(source))
        kind = kind or sources.get(name, "")
        if kind:
            return any(each in kind.lower() for each in _PROMETHEUS)
    return True


def _unit(panel: Mapping[str, Value]) -> str:
    """Return the unit of all queries of a panel, empty if overrides may change it."""
    config = mapping_of(panel.get("fieldConfig"))
    options = mapping_of(
        mapping_of(mapping_of(panel.get("vizConfig")).get("spec")).get("fieldConfig")
    )
    config = config or options
    for override in list_of(config.get("overrides")):
        for each in list_of(mapping_of(override).get("properties")):
            if mapping_of(each).get("id") == "unit":
                return ""
    unit = text_of(mapping_of(config.get("defaults")).get("unit"))
    if unit or config:
        return unit
    axes = [mapping_of(axis) for axis in list_of(panel.get("yaxes"))]
    return text_of(axes[0].get("format")) if axes else text_of(panel.get("format"))
