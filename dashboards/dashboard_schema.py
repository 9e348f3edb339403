"""Check that a dashboard still has the form of Grafana's schema after an overlay changed it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from promql.lexer import InvalidPromQL
from promql.parse import parse
from slos.errors import quoted

Violation = tuple[str, str, str]
"""Field, message, fix."""

_NAMES = {bool: "true or false", dict: "an object", int: "an integer", list: "a list", str: "text"}
_REQUIRED: Mapping[str, type] = {"panels": list, "schemaVersion": int, "title": str, "uid": str}
_OPTIONAL: Mapping[str, type] = {
    "annotations": dict,
    "description": str,
    "editable": bool,
    "graphTooltip": int,
    "links": list,
    "refresh": str,
    "tags": list,
    "templating": dict,
    "time": dict,
    "timepicker": dict,
    "timezone": str,
}
_PANEL: Mapping[str, type] = {
    "collapsed": bool,
    "description": str,
    "fieldConfig": dict,
    "links": list,
    "options": dict,
    "panels": list,
    "targets": list,
    "title": str,
    "transformations": list,
}
_TARGET: Mapping[str, type] = {"expr": str, "legendFormat": str, "refId": str}
_GRID = {"h": (1, 10_000), "w": (1, 24), "x": (0, 23), "y": (0, 100_000)}
# Panels that Grafana 11 and 12 come with.
_PANEL_TYPES = frozenset({
    "alertlist", "annolist", "barchart", "bargauge", "candlestick", "canvas", "dashlist",
    "datagrid", "flamegraph", "gauge", "geomap", "heatmap", "histogram", "logs", "news",
    "nodeGraph", "piechart", "row", "stat", "state-timeline", "status-history", "table", "text",
    "timeseries", "traces", "trend", "xychart",
})  # fmt: skip
_PLUGIN = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+-panel")
_VARIABLE_TYPES = frozenset({
    "adhoc", "constant", "custom", "datasource", "groupby", "interval", "query", "switch",
    "system", "textbox",
})  # fmt: skip
UID_MAX = 40
"""Grafana's limit of characters of a uid."""


def violations(content: object, *, uid: str) -> Iterator[Violation]:
    """Yield schema violations: values that Grafana rejects, and a wrong ``uid``."""
    if not isinstance(content, dict):
        yield "", f"is {_kind(content)}, not a dashboard", "return the changed dashboard"
        return
    yield from _typed(content, "", _REQUIRED, _OPTIONAL)
    if isinstance(content.get("uid"), str) and content["uid"] != uid:
        yield (
            "uid",
            f'is {quoted(content["uid"])} instead of "{uid}", to which alerts and dashboards link',
            "keep the uid, or change it with --dashboard-uid-prefix",
        )
    if content.get("title") == "":
        yield "title", "is empty", "give the dashboard a title"
    panels = content.get("panels")
    if isinstance(panels, list):
        yield from _panels(panels)
    yield from _tags(content.get("tags"))
    templating = content.get("templating")
    if isinstance(templating, dict):
        yield from _variables(templating.get("list", []))


def _typed(
    value: Mapping[str, object],
    where: str,
    required: Mapping[str, type],
    optional: Mapping[str, type],
) -> Iterator[Violation]:
    for key in required:
        if key not in value:
            yield f"{where}{key}", "is missing", f"set it to {_NAMES[required[key]]}"
    for key, type_ in {**required, **optional}.items():
        if key in value and not _is(value[key], type_):
            expected = _NAMES[type_]
            yield f"{where}{key}", f"is {_kind(value[key])}, not {expected}", f"write {expected}"


def _panels(panels: list[object]) -> Iterator[Violation]:
    placed = [*_placed(panels, "panels")]
    for where, panel in placed:
        if isinstance(panel, dict):
            yield from _panel(panel, where)
        else:
            yield where, f"is {_kind(panel)}, not a panel", "write an object"
    ids = [panel["id"] for _, panel in placed if isinstance(panel, dict) and "id" in panel]
    for id_, count in Counter(map(repr, ids)).items():
        if count > 1:
            yield "panels", f"{count} panels have the id {id_}", "give every panel an id of its own"


def _placed(panels: list[object], where: str) -> Iterator[tuple[str, object]]:
    """Yield panels with their places, those of collapsed rows included."""
    for index, panel in enumerate(panels):
        place = f"{where}[{index}]"
        yield place, panel
        inner = panel.get("panels") if isinstance(panel, dict) else None
        if isinstance(inner, list):
            yield from _placed(inner, f"{place}.panels")


def _panel(panel: dict[str, object], where: str) -> Iterator[Violation]:
    yield from _typed(panel, f"{where}.", {"type": str, "id": int, "gridPos": dict}, _PANEL)
    type_ = panel.get("type")
    if isinstance(type_, str) and type_ not in _PANEL_TYPES and not _PLUGIN.fullmatch(type_):
        yield (
            f"{where}.type",
            f"{quoted(type_)} is no panel of Grafana",
            "write the id of a panel, such as timeseries, or of a plugin: vendor-name-panel",
        )
    grid = panel.get("gridPos")
    if isinstance(grid, dict):
        for key, (low, high) in _GRID.items():
            number = grid.get(key)
            if not _is(number, int) or not low <= number <= high:  # type: ignore[operator]
                yield (
                    f"{where}.gridPos.{key}",
                    f"is {number}, not an integer from {low} to {high}",
                    "write such a number",
                )
    targets = panel.get("targets")
    for index, target in enumerate(targets if isinstance(targets, list) else ()):
        yield from _target(target, f"{where}.targets[{index}]")


def _target(target: object, where: str) -> Iterator[Violation]:
    if not isinstance(target, dict):
        yield where, f"is {_kind(target)}, not a query", "write an object"
        return
    yield from _typed(target, f"{where}.", {"refId": str}, _TARGET)
    expr, source = target.get("expr"), target.get("datasource")
    if isinstance(expr, str) and isinstance(source, dict) and source.get("type") == "prometheus":
        try:
            parse(expr, variables=True)
        except InvalidPromQL as error:
            yield f"{where}.expr", f"is no PromQL: {error}", "correct the query"


def _tags(tags: object) -> Iterator[Violation]:
    for index, tag in enumerate(tags if isinstance(tags, list) else ()):
        if not isinstance(tag, str):
            yield f"tags[{index}]", f"is {_kind(tag)}, not text", "write text"


def _variables(variables: object) -> Iterator[Violation]:
    if not isinstance(variables, list):
        yield "templating.list", f"is {_kind(variables)}, not a list", "write a list"
        return
    for index, variable in enumerate(variables):
        where = f"templating.list[{index}]"
        if not isinstance(variable, dict):
            yield where, f"is {_kind(variable)}, not a variable", "write an object"
            continue
        yield from _typed(variable, f"{where}.", {"name": str, "type": str}, {})
        type_ = variable.get("type")
        if isinstance(type_, str) and type_ not in _VARIABLE_TYPES:
            yield (
                f"{where}.type",
                f"{quoted(type_)} is no type of variable",
                f"write one of {', '.join(sorted(_VARIABLE_TYPES))}",
            )


def _is(value: object, type_: type) -> bool:
    if type_ is int:
        return (
            isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
        )
    return isinstance(value, type_)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {**_NAMES, int: "a number", float: "a number"}  # a bool is an int, and comes first
    return next(name for type_, name in names.items() if isinstance(value, type_))
