"""Write a dashboard as the JSON that Grafana stores.

grafanalib 0.7 writes Grafana's schema 12 and fills in much that later schemas dropped.  What is
written here keeps only what schema 42 defines, so nothing has to be migrated, and adds what
grafanalib has no field for.
"""

from __future__ import annotations

import json

from grafanalib import core

from dashboards.panels import Json

# What Grafana's schema 42 has; the rest of grafanalib's output is older than that.
_DASHBOARD_KEYS = frozenset({
    "annotations", "description", "editable", "graphTooltip", "links", "panels", "refresh",
    "schemaVersion", "tags", "templating", "time", "timepicker", "timezone", "title", "uid",
})  # fmt: skip
_PANEL_KEYS = frozenset({
    "collapsed", "datasource", "description", "fieldConfig", "gridPos", "id", "links", "options",
    "panels", "targets", "timeFrom", "title", "transformations", "type",
})  # fmt: skip
_TARGET_KEYS = frozenset({
    "datasource", "expr", "format", "instant", "legendFormat", "range", "refId",
})  # fmt: skip
_DATASOURCE_VARIABLE_KEYS = frozenset({
    "current", "hide", "includeAll", "label", "multi", "name", "options", "query", "refresh",
    "regex", "type",
})  # fmt: skip
_VARIABLE_KEYS = {
    "datasource": _DATASOURCE_VARIABLE_KEYS,
    "query": _DATASOURCE_VARIABLE_KEYS | {"allValue", "datasource", "definition", "sort"},
}


def content(dashboard: core.Dashboard) -> dict[str, Json]:
    """Convert a dashboard to the content that Grafana stores."""
    data = _kept(_plain(dashboard), _DASHBOARD_KEYS)
    data["timepicker"] = {}
    data["panels"] = [_modern_panel(panel) for panel in data["panels"]]
    templating = data["templating"]
    templating["list"] = [_modern_variable(variable) for variable in templating["list"]]
    return data


def text(content: dict[str, Json]) -> str:
    """Write the content of a dashboard; the same plan gives the same bytes."""
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _plain(value: Json) -> Json:
    """Convert grafanalib's objects to what :mod:`json` can write."""
    if hasattr(value, "to_json_data"):
        return _plain(value.to_json_data())
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _kept(data: Json, keys: frozenset[str]) -> dict[str, Json]:
    return {key: value for key, value in data.items() if key in keys and value is not None}


def _modern_panel(panel: Json) -> Json:
    kept = _kept(panel, _PANEL_KEYS)
    if kept["type"] == core.ROW_TYPE:
        return {key: kept[key] for key in ("collapsed", "gridPos", "id", "panels", "title", "type")}
    kept["targets"] = [_modern_target(target) for target in kept["targets"]]
    defaults = kept["fieldConfig"]["defaults"]
    kept["fieldConfig"]["defaults"] = {k: v for k, v in defaults.items() if v is not None}
    custom = defaults.get("custom", {})
    custom.pop("displayMode", None)  # of a table's cells; `cellOptions` since schema 38
    for key in [key for key, value in custom.items() if value is None]:
        del custom[key]
    return kept


def _modern_target(target: Json) -> Json:
    return _kept({**target, "range": not target["instant"]}, _TARGET_KEYS)


def _modern_variable(variable: Json) -> Json:
    everything = {"selected": True, "text": ["All"], "value": ["$__all"]}
    current = everything if variable["includeAll"] else {}
    full = {**variable, "current": current, "definition": variable["query"]}
    return _kept(full, _VARIABLE_KEYS[variable["type"]])
