"""Build Grafana panels, variables and dashboards with grafanalib and this project's defaults.

:mod:`dashboards.dashboard_json` writes them as Grafana stores them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import attr
from grafanalib import core, formatunits

from dashboards.heatmap_panel import HeatmapPanel
from promql.expr import Expr

SCHEMA = 42
WIDTH = 24
"""Columns of Grafana's grid."""
DATASOURCE = {"type": core.PLUGIN_ID_PROMETHEUS, "uid": "${datasource}"}
RATE_INTERVAL = "$__rate_interval"
"""Grafana's choice of window: wide enough for the scrape interval and for the zoom."""

SECONDS = formatunits.SECONDS
BYTES = formatunits.BYTES_IEC
RATIO = formatunits.PERCENT_UNIT
COUNT = formatunits.SHORT
REQUESTS_PER_SECOND = formatunits.REQUESTS_PER_SEC
PER_SECOND = formatunits.COUNTS_PER_SEC
NUMBER = formatunits.NUMBER_FORMAT

Json = Any
"""What :mod:`json` can write."""


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """One PromQL query of a panel, and the legend of its series (a ``{{label}}`` template)."""

    expr: Expr
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Level:
    """A threshold step: ``color`` applies from ``value`` upwards, from the bottom if None."""

    value: Decimal | None
    color: str


@dataclass(frozen=True, slots=True)
class PanelRow:
    """A titled row of panels of one height; without ``widths`` they share the grid equally."""

    title: str
    panels: Sequence[core.Panel]
    height: int = 8
    widths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the value of ``query``, or the label ``name`` if there is none."""

    name: str
    title: str
    query: Expr | None = None
    unit: str = NUMBER
    levels: tuple[Level, ...] = ()


def time_series(
    title: str,
    description: str,
    queries: Iterable[PanelQuery],
    *,
    unit: str,
    lines: Iterable[Level] = (),
    stacked: bool = False,
    top: int | None = None,
    links: Iterable[tuple[str, str]] = (),
) -> core.Panel:
    """Draw series over time from 0 upwards, with a dashed line at each of ``lines``."""
    levels = tuple(lines)
    return core.TimeSeries(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=_targets(queries),
        unit=unit,
        valueMin=0,
        valueMax=top,
        fillOpacity=40 if stacked else 5,
        stacking={"group": "A", "mode": "normal" if stacked else "none"},
        showPoints="never",
        tooltipMode="multi",
        tooltipSort="desc",
        thresholds=_steps((Level(None, "transparent"), *levels)),
        thresholdsStyleMode="dashed" if levels else "off",
        links=_links(links),
        extraJson={"options": {"legend": {"showLegend": True}}},
    )


def heatmap(
    title: str, description: str, histogram: Expr, *, unit: str, is_native: bool
) -> core.Panel:
    """Draw a histogram over time: by ``le``, whose buckets Grafana subtracts, or a native one."""
    # In the format of a heatmap Grafana before 10.3 looks for `le` in native histograms too.
    targets = (
        _targets([PanelQuery(histogram)])
        if is_native
        else _targets([PanelQuery(histogram, "{{le}}")], format="heatmap")
    )
    return HeatmapPanel(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=targets,
        thresholds=_steps((Level(None, "green"),)),
        extraJson={"options": {"yAxis": {"unit": unit}}},
    )


def up_or_down(title: str, description: str, query: PanelQuery) -> core.Panel:
    """Draw when something was up (1) and when it was down (0)."""
    states = {
        "0": {"color": "red", "index": 1, "text": "down"},
        "1": {"color": "green", "index": 0, "text": "up"},
    }
    return core.StateTimeline(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=_targets([query]),
        thresholds=_steps((Level(None, "green"),)),
        mappings=[{"options": states, "type": "value"}],
        showValue="never",
        extraJson={"options": {"legend": {"showLegend": False}}},
    )


def table(title: str, description: str, columns: Sequence[Column], *, sort: str = "") -> core.Panel:
    """Show a table: one row per value of the first column, which names the label to join by.

    ``sort`` is the title of the column to sort by, smallest first.
    """
    key, *rest = columns
    queried = [column for column in rest if column.query is not None]
    fields = {chr(ord("A") + i): column for i, column in enumerate(queried)}
    named = {f"Value #{ref}": column.title for ref, column in fields.items()}
    return _table(
        title,
        description,
        [PanelQuery(column.query) for column in queried if column.query is not None],
        transformations=[
            {"id": "joinByField", "options": {"byField": key.name, "mode": "outer"}},
            _organize({key.name: key.title, **named}, hide=_times(len(queried))),
        ],
        overrides=[_column_override(column) for column in queried],
        sort=sort,
    )


def label_table(
    title: str,
    description: str,
    query: PanelQuery,
    labels: Mapping[str, str],
    *,
    colors: Json = None,
) -> core.Panel:
    """Show the labels of an info series: ``labels`` maps each to its title, in order.

    ``colors`` maps values to colors, wherever they stand.
    """
    return _table(
        title,
        description,
        [query],
        transformations=[_organize(labels, hide=("Time", "Value"))],
        overrides=[],
        sort=next(iter(labels.values())),
        mappings=[
            {
                "options": {
                    value: {"color": color, "index": i}
                    for i, (value, color) in enumerate((colors or {}).items())
                },
                "type": "value",
            }
        ],
    )


def _table(
    title: str,
    description: str,
    queries: Iterable[PanelQuery],
    *,
    transformations: Json,
    overrides: Json,
    sort: str,
    mappings: Json = (),
) -> core.Panel:
    return core.Table(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=_targets(queries, format=core.TABLE_TARGET_FORMAT),
        transformations=transformations,
        overrides=overrides,
        unit=NUMBER,
        sortBy=[core.TableSortByField(displayName=sort)] if sort else [],
        thresholds=_steps((Level(None, "text"),)),
        extraJson={
            "fieldConfig": {
                "defaults": {
                    "color": {"mode": "thresholds"},
                    "custom": {"cellOptions": {"type": "color-text"}},
                    "mappings": list(mappings),
                    "noValue": "no data",
                }
            }
        },
    )


def _column_override(column: Column) -> Json:
    properties: list[Json] = [{"id": "unit", "value": column.unit}]
    if column.levels:
        steps = {"mode": "absolute", "steps": _steps(column.levels)}
        properties.append({"id": "thresholds", "value": steps})
    return {"matcher": {"id": "byName", "options": column.title}, "properties": properties}


def _organize(titles: Mapping[str, str], hide: Iterable[str]) -> Json:
    options = {
        "excludeByName": dict.fromkeys(hide, True),
        "indexByName": {name: i for i, name in enumerate(titles)},
        "renameByName": dict(titles),
    }
    return {"id": "organize", "options": options}


def _times(queries: int) -> list[str]:
    """Return the names of the time columns after a join of ``queries`` queries."""
    return ["Time", *(f"Time {i}" for i in range(1, queries + 1))]


def legend(labels: Iterable[str]) -> str:
    """Return the legend that distinguishes series by their labels."""
    return " ".join(f"{{{{{label}}}}}" for label in labels)


def variable(name: str, label: str, values_of: Expr, *, several: bool = True) -> core.Template:
    """Let the reader choose among the values of the label ``name`` on ``values_of``.

    All includes series without the label: trtllm-serve and vLLM have no versions.
    """
    return core.Template(
        name=name,
        label=label,
        query=f"label_values({values_of}, {name})",
        dataSource=DATASOURCE,
        includeAll=several,
        allValue=".*" if several else None,
        multi=several,
        regex="",
        refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
    )


def datasource_variable() -> core.Template:
    """Return the variable that selects the Prometheus data source of every panel."""
    return core.Template(
        name="datasource",
        label="Data source",
        type="datasource",
        query=core.PLUGIN_ID_PROMETHEUS,
        regex="",
    )


def annotation(name: str, expr: Expr, *, title: str, text: str, color: str) -> Json:
    """Mark on every graph when ``expr`` had a value; ``{{label}}`` is filled in."""
    return {
        "datasource": DATASOURCE,
        "enable": True,
        "expr": str(expr),
        "hide": False,
        "iconColor": color,
        "name": name,
        # Before version 11 Grafana read `expr`, since then `target`.
        "target": {"expr": str(expr), "refId": "Anno"},
        "textFormat": text,
        "titleFormat": title,
    }


def dashboard(
    *,
    uid: str,
    title: str,
    description: str,
    tags: Iterable[str],
    variables: Iterable[core.Template],
    annotations: Iterable[Json],
    rows: Iterable[PanelRow],
    links: Iterable[tuple[str, str]] = (),
) -> core.Dashboard:
    """Put a dashboard together from rows, top to bottom."""
    return core.Dashboard(
        uid=uid,
        title=title,
        description=description,
        tags=list(tags),
        editable=False,
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        timezone="browser",
        refresh="30s",
        time=core.Time("now-6h", "now"),
        schemaVersion=SCHEMA,
        templating=core.Templating(list(variables)),
        annotations=core.Annotations([_built_in_annotations(), *annotations]),
        links=[
            core.DashboardLink(title=title, uri=url, type="link", icon="doc", targetBlank=True)
            for title, url in links
        ],
        panels=_placed(rows),
    )


def _built_in_annotations() -> Json:
    return {
        "builtIn": 1,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": True,
        "iconColor": "rgba(0, 211, 255, 1)",
        "name": "Annotations & Alerts",
        "type": "dashboard",
    }


def _placed(rows: Iterable[PanelRow]) -> list[core.Panel]:
    placed: list[core.Panel] = []
    y = 0
    for row in rows:
        head = core.RowPanel(title=row.title)
        placed.append(_at(head, row.title, 0, y, WIDTH, 1))
        x = 0
        equal = (WIDTH // len(row.panels),) * len(row.panels)
        for panel, width in zip(row.panels, row.widths or equal, strict=True):
            key = f"{row.title}/{panel.title}"
            placed.append(_at(panel, key, x, y + 1, width, row.height))
            x += width
        y += 1 + row.height
    return placed


def _at(panel: core.Panel, key: str, x: int, y: int, width: int, height: int) -> core.Panel:
    """Place a panel; its id follows from ``key``, so links to it outlive panels added before it."""
    position = core.GridPos(h=height, w=width, x=x, y=y)
    return attr.evolve(panel, id=zlib.crc32(key.encode()) >> 1, gridPos=position)


def _targets(
    queries: Iterable[PanelQuery],
    format: str = core.TIME_SERIES_TARGET_FORMAT,  # noqa: A002
) -> list[core.Target]:
    """Name the queries A, B, …; tables have instant queries, other panels range queries."""
    return [
        core.Target(
            expr=str(query.expr),
            legendFormat=query.legend or "__auto",
            refId=chr(ord("A") + i),
            format=format,
            instant=format == core.TABLE_TARGET_FORMAT,
            datasource=DATASOURCE,
        )
        for i, query in enumerate(queries)
    ]


def _steps(levels: Iterable[Level]) -> Json:
    return [
        {"color": level.color, "value": None if level.value is None else float(level.value)}
        for level in levels
    ]


def _links(links: Iterable[tuple[str, str]]) -> Json:
    return [{"targetBlank": True, "title": title, "url": url} for title, url in links]
