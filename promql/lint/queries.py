"""Find the queries of dashboards, rule files and Kubernetes manifests.

Supported are Grafana dashboards (classic, with rows, nested, of the v2 schema; bare, as the API
wraps them, or in a ConfigMap or GrafanaDashboard), Prometheus rule files (Mimir's and vmalert's are
the same), PrometheusRule and similar resources, and what :mod:`promql.lint.scalers` reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from promql.lint.dashboard_queries import add_dashboard
from promql.lint.located_query import FileQueries, LocatedQuery, Path, Use
from promql.lint.located_text import SUFFIXES, LocatedText, NoQueries, UnreadableFile, Value, parse
from promql.lint.scalers import ScalerQuery, adapter_queries, scaler, trigger_queries
from promql.lint.values import list_of, mapping_of, quoted, short, text_of, texts_of
from promql.literals import duration

_MAX_QUERIES = 20_000
_MAX_NESTING = 3  # of files in texts


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
    spec = mapping_of(value.get("spec"))
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
        add_dashboard(file, spec, (*path, "spec"), found)
    elif any(isinstance(value.get(key), list) for key in ("panels", "rows")):
        add_dashboard(file, value, path, found)
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
    if isinstance(value.get("scrape_configs"), list) or "scrape_interval" in mapping_of(
        value.get("global")
    ):
        usual = duration(text_of(mapping_of(value.get("global")).get("scrape_interval")))
        jobs = [mapping_of(job) for job in list_of(value.get("scrape_configs"))]
        for job in jobs or [{}]:
            own = duration(text_of(job.get("scrape_interval")))
            yield own or usual or _DEFAULT_INTERVAL
    for endpoint in list_of(spec.get(_MONITORS.get(text_of(value.get("kind")), ""))):
        if own := duration(text_of(mapping_of(endpoint).get("interval"))):
            yield own


def _inner_files(
    value: Mapping[str, Value], spec: Mapping[str, Value]
) -> Iterator[tuple[Path, LocatedText]]:
    """Yield the files that a manifest contains as text."""
    for name, text in mapping_of(value.get("data")).items():
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
        group = mapping_of(group)
        for index, rule in enumerate(list_of(group.get("rules"))):
            rule = mapping_of(rule)
            text = rule.get("expr")
            use: Use = "alert" if "alert" in rule else "record"
            name = text_of(rule.get(use))
            labels = {**texts_of(group.get("labels")), **texts_of(rule.get("labels"))}
            if isinstance(text, LocatedText):
                yield LocatedQuery(
                    file,
                    text,
                    use,
                    f"group {quoted(group.get('name'))}, {use} {short(name)}",
                    (*path, at, "rules", index, "expr"),
                    name,
                    labels=labels,
                    templates=(*texts_of(rule.get("annotations")).values(), *labels.values()),
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
