"""Write dashboards in the v2 schema of Grafana 12, ``dashboard.grafana.app/v2beta1``.

A row becomes a row of the layout with a grid of its own; each panel is an element that the grid
places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from dashboards.dashboard_json import text
from dashboards.dashboard_set import GeneratedDashboard
from dashboards.options import DashboardOptions

Json = Any

_HIDE = ("dontHide", "hideLabel", "hideVariable")
_REFRESH = ("never", "onDashboardLoad", "onTimeRangeChanged")
_SORT = (
    "disabled",
    "alphabeticalAsc",
    "alphabeticalDesc",
    "numericalAsc",
    "numericalDesc",
    "alphabeticalCaseInsensitiveAsc",
    "alphabeticalCaseInsensitiveDesc",
    "naturalAsc",
    "naturalDesc",
)
_CURSOR_SYNC = ("Off", "Crosshair", "Tooltip")
_STRING_QUERY = "__legacyStringValue"
"""The key of a variable's query that is a text."""
_REFRESH_INTERVALS = ["5s", "10s", "30s", "1m", "5m", "15m", "30m", "1h", "2h", "1d"]


def files(
    dashboards: Sequence[GeneratedDashboard], _: DashboardOptions, __: str
) -> Iterator[tuple[str, str]]:
    """Yield path and text of a resource for each dashboard; its name is the uid.

    The folder is a uid in this schema, not a title, and is not written.  Grafana's file provider
    reads all JSON below its folder: these files have a folder of their own.
    """
    for each in dashboards:
        resource = {
            "apiVersion": "dashboard.grafana.app/v2beta1",
            "kind": "Dashboard",
            "metadata": {"name": each.content["uid"]},
            "spec": spec(each.content),
        }
        yield f"dashboards-v2/{PurePosixPath(each.path).name}", text(resource)


def spec(content: Mapping[str, Json]) -> dict[str, Json]:
    """Convert the content of a dashboard to the v2 schema."""
    time = content["time"]
    return {
        "title": content["title"],
        "description": content.get("description", ""),
        "tags": content["tags"],
        "editable": content.get("editable", True),
        "cursorSync": _CURSOR_SYNC[content.get("graphTooltip", 0)],
        "preload": False,
        "annotations": [_annotation(each) for each in content["annotations"]["list"]],
        "variables": [_variable(each) for each in content["templating"]["list"]],
        "links": [_dashboard_link(each) for each in content["links"]],
        "timeSettings": {
            "timezone": content.get("timezone", "browser"),
            "from": time["from"],
            "to": time["to"],
            "autoRefresh": content.get("refresh", ""),
            "autoRefreshIntervals": _REFRESH_INTERVALS,
            "hideTimepicker": False,
            "fiscalYearStartMonth": 0,
        },
        "elements": {_element_name(each): _panel(each) for each in _panels(content["panels"])},
        "layout": _rows(content["panels"]),
    }


def _panels(panels: Iterable[Json]) -> Iterator[Json]:
    for panel in panels:
        if panel["type"] == "row":
            yield from panel.get("panels", ())
        else:
            yield panel


def _element_name(panel: Json) -> str:
    return f"panel-{panel['id']}"


def _panel(panel: Json) -> Json:
    config = panel.get("fieldConfig", {"defaults": {}, "overrides": []})
    return {
        "kind": "Panel",
        "spec": {
            "id": panel["id"],
            "title": panel.get("title", ""),
            "description": panel.get("description", ""),
            "links": [
                {key: each[key] for key in ("title", "url", "targetBlank") if key in each}
                for each in panel.get("links", ())
            ],
            "data": {
                "kind": "QueryGroup",
                "spec": {
                    "queries": [_panel_query(each) for each in panel.get("targets", ())],
                    "transformations": [
                        _transformation(each) for each in panel.get("transformations", ())
                    ],
                    "queryOptions": {},
                },
            },
            "vizConfig": {
                "kind": "VizConfig",
                "group": panel["type"],
                "version": panel.get("pluginVersion", ""),
                "spec": {"options": panel.get("options", {}), "fieldConfig": config},
            },
        },
    }


def _panel_query(target: Json) -> Json:
    query = {
        key: value for key, value in target.items() if key not in ("datasource", "refId", "hide")
    }
    return {
        "kind": "PanelQuery",
        "spec": {
            "query": _query(target["datasource"], query),
            "refId": target["refId"],
            "hidden": target.get("hide", False),
        },
    }


def _query(datasource: Mapping[str, str], query: Json) -> Json:
    return {
        "kind": "DataQuery",
        "group": datasource["type"],
        "version": "v0",
        "datasource": {"name": datasource["uid"]},
        "spec": query,
    }


def _transformation(transformation: Json) -> Json:
    id_, options = transformation["id"], transformation.get("options", {})
    return {"kind": id_, "spec": {"id": id_, "options": options}}


def _rows(panels: Sequence[Json]) -> Json:
    """Return the layout: panels before the first row are in one without a header."""
    rows: list[tuple[Json, list[Json]]] = []
    for panel in panels:
        if panel["type"] == "row":
            rows.append((panel, list(panel.get("panels", ()))))
        else:
            if not rows:
                rows.append(({}, []))
            rows[-1][1].append(panel)
    return {"kind": "RowsLayout", "spec": {"rows": [_row(*row) for row in rows]}}


def _row(row: Json, panels: Sequence[Json]) -> Json:
    top = min((panel["gridPos"]["y"] for panel in panels), default=0)
    repeat = {"mode": "variable", "value": row["repeat"]} if row.get("repeat") else None
    return {
        "kind": "RowsLayoutRow",
        "spec": {
            "title": row.get("title", ""),
            "collapse": row.get("collapsed", False),
            **({} if row else {"hideHeader": True}),
            **({"repeat": repeat} if repeat else {}),
            "layout": {
                "kind": "GridLayout",
                "spec": {"items": [_grid_item(panel, top) for panel in panels]},
            },
        },
    }


def _grid_item(panel: Json, top: int) -> Json:
    grid = panel["gridPos"]
    return {
        "kind": "GridLayoutItem",
        "spec": {
            "x": grid["x"],
            "y": grid["y"] - top,
            "width": grid["w"],
            "height": grid["h"],
            "element": {"kind": "ElementReference", "name": _element_name(panel)},
        },
    }


def _annotation(annotation: Json) -> Json:
    target = {k: v for k, v in annotation.get("target", {}).items() if k != "refId"}
    return {
        "kind": "AnnotationQuery",
        "spec": {
            "name": annotation["name"],
            "builtIn": bool(annotation.get("builtIn")),
            "enable": annotation["enable"],
            "hide": annotation.get("hide", False),
            "iconColor": annotation["iconColor"],
            "query": _query(annotation["datasource"], target),
            **_legacy_options(annotation),
        },
    }


# What the v2 schema has no field for: Grafana's own conversion keeps it here, and its data source
# for Prometheus reads it from here.
_LEGACY = ("expr", "step", "tagKeys", "textFormat", "titleFormat", "useValueForTime")


def _legacy_options(annotation: Json) -> Json:
    options = {key: annotation[key] for key in _LEGACY if key in annotation}
    return {"legacyOptions": options} if options else {}


def _dashboard_link(link: Json) -> Json:
    keys = ("title", "type", "icon", "tooltip", "url", "tags", "asDropdown", "targetBlank",
            "includeVars", "keepTime")  # fmt: skip
    return {key: link[key] for key in keys if key in link}


def _variable(variable: Json) -> Json:
    kind, only = _VARIABLES[variable["type"]]
    common = {
        "name": variable["name"],
        "label": variable.get("label", ""),
        "hide": _HIDE[variable.get("hide", 0)],
        "skipUrlSync": variable.get("skipUrlSync", False),
        "current": {"text": "", "value": "", **_current(variable)},
        **({"description": text} if (text := variable.get("description")) else {}),
    }
    return {"kind": kind, "spec": {**common, **only(variable)}}


def _current(variable: Json) -> Json:
    current = variable.get("current", {})
    return {key: current[key] for key in ("selected", "text", "value") if key in current}


def _choice(variable: Json) -> Json:
    return {
        "options": variable.get("options", []),
        "multi": variable.get("multi", False),
        "includeAll": variable.get("includeAll", False),
        "allowCustomValue": variable.get("allowCustomValue", True),
        **({"allValue": text} if (text := variable.get("allValue")) else {}),
    }


def _query_variable(variable: Json) -> Json:
    query = variable["query"]
    return {
        **_choice(variable),
        "query": _query(
            variable["datasource"],
            query if isinstance(query, dict) else {_STRING_QUERY: query},
        ),
        "definition": variable.get("definition", ""),
        "regex": variable.get("regex", ""),
        "refresh": _REFRESH[variable.get("refresh", 1)],
        "sort": _SORT[variable.get("sort", 0)],
    }


def _datasource_variable(variable: Json) -> Json:
    return {
        **_choice(variable),
        "pluginId": variable["query"],
        "regex": variable.get("regex", ""),
        "refresh": _REFRESH[variable.get("refresh", 1)],
    }


def _custom_variable(variable: Json) -> Json:
    return {**_choice(variable), "query": variable["query"]}


def _plain_variable(variable: Json) -> Json:
    return {"query": variable["query"]}


_VARIABLES = {
    "query": ("QueryVariable", _query_variable),
    "datasource": ("DatasourceVariable", _datasource_variable),
    "custom": ("CustomVariable", _custom_variable),
    "textbox": ("TextVariable", _plain_variable),
    "constant": ("ConstantVariable", _plain_variable),
}
