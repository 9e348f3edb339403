"""Build Grafana panels with grafanalib and this project's defaults.

:mod:`dashboards.dashboard_json` writes them as Grafana stores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from grafanalib import core, formatunits

from dashboards.heatmap_panel import HeatmapPanel
from promql.expr import Expr

DATASOURCE = {"type": core.PLUGIN_ID_PROMETHEUS, "uid": "${datasource}"}
RATE_INTERVAL = "$__rate_interval"
"""Grafana's choice of window: wide enough for the scrape interval and for the zoom."""
NOT_MEASURED = "Not measured here"
"""Title of the panel that lists unavailable signals with the reason."""

SECONDS = formatunits.SECONDS
BYTES = formatunits.BYTES_IEC
RATIO = formatunits.PERCENT_UNIT
COUNT = formatunits.SHORT
REQUESTS_PER_SECOND = formatunits.REQUESTS_PER_SEC
PER_SECOND = formatunits.COUNTS_PER_SEC
NUMBER = formatunits.NUMBER_FORMAT
AGO = formatunits.DATE_TIME_FROM_NOW

GREEN, YELLOW, ORANGE, RED, BLUE, PURPLE = "green", "yellow", "orange", "red", "blue", "purple"
NEUTRAL = "text"

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
class Column:
    """A column of a table: the values of ``query``; ``links`` are titles and URLs."""

    title: str
    query: Expr
    unit: str = NUMBER
    levels: tuple[Level, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


def levels(*steps: tuple[Decimal | int | str | None, str]) -> tuple[Level, ...]:
    """Return threshold steps from pairs of value and color."""
    return tuple(Level(None if value is None else Decimal(value), color) for value, color in steps)


def legend(labels: Iterable[str]) -> str:
    """Return the legend that distinguishes series by their labels."""
    return " ".join(f"{{{{{label}}}}}" for label in labels)


def time_series(
    title: str,
    description: str,
    queries: Iterable[PanelQuery],
    *,
    unit: str,
    lines: Iterable[Level] = (),
    stacked: bool = False,
    top: int | None = None,
    bottom: int | None = 0,
    links: Iterable[tuple[str, str]] = (),
    period: str | None = None,
    colors: Mapping[str, str] | None = None,
    empty: str = "",
) -> core.Panel:
    """Draw series over time, with a dashed line at each of ``lines``.

    ``period`` replaces the time range of the dashboard, ending now; ``colors`` are by legend, of
    series whose color means something; ``empty`` is the text without data.
    """
    steps = tuple(lines)
    every = tuple(queries)
    return core.TimeSeries(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=_targets(every),
        unit=unit,
        valueMin=bottom,
        valueMax=top,
        lineWidth=2,
        fillOpacity=40 if stacked else 0,
        stacking={"group": "A", "mode": "normal" if stacked else "none"},
        showPoints="never",
        tooltipMode="multi",
        tooltipSort="desc",
        thresholds=_steps((Level(None, "transparent"), *steps)),
        thresholdsStyleMode="dashed" if steps else "off",
        links=_links(links),
        timeFrom=period,
        overrides=[_color_override(name, color) for name, color in (colors or {}).items()],
        extraJson={
            "fieldConfig": {"defaults": {"noValue": empty or _no_value(every)}},
            "options": {"legend": {"showLegend": True}},
        },
    )


def heatmap(
    title: str, description: str, histogram: Expr, *, unit: str, is_native: bool
) -> core.Panel:
    """Draw a histogram over time: by ``le``, whose buckets Grafana subtracts, or a native one."""
    # In the format of a heatmap Grafana before 10.3 looks for `le` in native histograms too.
    query = PanelQuery(histogram, "" if is_native else "{{le}}")
    targets = _targets([query]) if is_native else _targets([query], format="heatmap")
    return HeatmapPanel(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=targets,
        thresholds=_steps(levels((None, GREEN))),
        extraJson={
            "fieldConfig": {"defaults": {"noValue": _no_value([query])}},
            "options": {"yAxis": {"unit": unit}},
        },
    )


def tiles(
    title: str,
    description: str,
    queries: Iterable[PanelQuery],
    *,
    unit: str,
    steps: Iterable[Level] = (Level(None, NEUTRAL),),
    empty: str = "",
    background: bool = False,
    links: Iterable[tuple[str, str]] = (),
) -> core.Panel:
    """Show the latest value of each series as a tile, ``empty`` if there is none."""
    every = tuple(queries)
    named = any(each.legend for each in every)
    return core.Stat(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=_targets(every, instant=True),
        format=unit,
        color={"mode": "thresholds"},
        colorMode="background_solid" if background else "value",
        graphMode="none",
        reduceCalc="lastNotNull",
        textMode="value_and_name" if named else "value",
        noValue=empty or _no_value(every),
        thresholds=_steps(steps),
        links=_links(links),
        extraJson={
            "options": {
                "percentChangeColorMode": "standard",
                "showPercentChange": False,
                **({"text": {"titleSize": 13, "valueSize": 26}} if named else {}),
                "wideLayout": False,
            }
        },
    )


def states(
    title: str,
    description: str,
    queries: Iterable[PanelQuery],
    names: Mapping[str, tuple[str, str]],
    *,
    empty: str = "",
    links: Iterable[tuple[str, str]] = (),
) -> core.Panel:
    """Draw when each series had which value; ``names`` maps values to text and color."""
    every = tuple(queries)
    options = {
        value: {"color": color, "index": index, "text": text}
        for index, (value, (text, color)) in enumerate(names.items())
    }
    return core.StateTimeline(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=_targets(every),
        thresholds=_steps(levels((None, GREEN))),
        mappings=[{"options": options, "type": "value"}],
        lineWidth=0,
        fillOpacity=80,
        showValue="never",
        links=_links(links),
        extraJson={
            "fieldConfig": {"defaults": {"noValue": empty or _no_value(every)}},
            "options": {"legend": {"showLegend": True}},
        },
    )


def table(
    title: str,
    description: str,
    labels: Mapping[str, str],
    columns: Sequence[Column],
    *,
    hidden: Iterable[str] = (),
    sort: str = "",
) -> core.Panel:
    """Show one row per combination of ``labels`` (with their titles), and the columns' values.

    There are at least two columns: Grafana names the values of a single query otherwise.
    ``hidden`` labels have no column; ``sort`` is the title of the column to sort by.
    """
    queries = [PanelQuery(column.query) for column in columns]
    values = {f"Value #{_letter(i)}": each.title for i, each in enumerate(columns)}
    return _table(
        title,
        description,
        queries,
        transformations=[
            {"id": "merge", "options": {}},
            _organize({**labels, **values}, hide=("Time", *hidden)),
        ],
        overrides=[_column_override(column) for column in columns],
        sort=sort,
        empty="-",  # in every cell without a value
    )


def label_table(
    title: str,
    description: str,
    query: PanelQuery,
    labels: Mapping[str, str],
    *,
    colors: Mapping[str, str] | None = None,
    widths: Mapping[str, int] | None = None,
    empty: str = "No data",
) -> core.Panel:
    """Show the labels of an info series: ``labels`` maps each to its title, in order.

    ``colors`` maps values to colors, in every column; ``widths`` (pixels) are by title.
    """
    return _table(
        title,
        description,
        [query],
        transformations=[_organize(labels, hide=("Time", "Value", "Value #A"))],
        overrides=[
            {
                "matcher": {"id": "byName", "options": title},
                "properties": [{"id": "custom.width", "value": width}],
            }
            for title, width in (widths or {}).items()
        ],
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
        empty=empty,
    )


def _table(
    title: str,
    description: str,
    queries: Iterable[PanelQuery],
    *,
    transformations: Json,
    overrides: Json,
    sort: str,
    empty: str,
    mappings: Json = (),
) -> core.Panel:
    return core.Table(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=_targets(queries, format=core.TABLE_TARGET_FORMAT, instant=True),
        transformations=transformations,
        overrides=overrides,
        unit=NUMBER,
        sortBy=[core.TableSortByField(displayName=sort)] if sort else [],
        thresholds=_steps(levels((None, NEUTRAL))),
        extraJson={
            "fieldConfig": {
                "defaults": {
                    "color": {"mode": "thresholds"},
                    "custom": {"cellOptions": {"type": "color-text"}},
                    "mappings": list(mappings),
                    "noValue": empty,
                }
            }
        },
    )


def _color_override(name: str, color: str) -> Json:
    fixed = {"mode": "fixed", "fixedColor": color}
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": "color", "value": fixed}],
    }


def _column_override(column: Column) -> Json:
    properties: list[Json] = [{"id": "unit", "value": column.unit}]
    if column.levels:
        steps = {"mode": "absolute", "steps": _steps(column.levels)}
        properties.append({"id": "thresholds", "value": steps})
    if column.links:
        properties.append({"id": "links", "value": _links(column.links)})
    return {"matcher": {"id": "byName", "options": column.title}, "properties": properties}


def _organize(titles: Mapping[str, str], hide: Iterable[str]) -> Json:
    options = {
        "excludeByName": dict.fromkeys(hide, True),
        "indexByName": {name: i for i, name in enumerate(titles)},
        "renameByName": dict(titles),
    }
    return {"id": "organize", "options": options}


def _no_value(queries: Iterable[PanelQuery]) -> str:
    """Return the text of a panel without data."""
    if any("llm_" in str(query.expr) for query in queries):
        return f'No data: no requests, or not measured here (see "{NOT_MEASURED}" below)'
    return "No data"


def _letter(index: int) -> str:
    return chr(ord("A") + index)


def _targets(
    queries: Iterable[PanelQuery],
    format: str = core.TIME_SERIES_TARGET_FORMAT,  # noqa: A002
    *,
    instant: bool = False,
) -> list[core.Target]:
    """Name the queries A, B, …."""
    return [
        core.Target(
            expr=str(query.expr),
            legendFormat=query.legend or "__auto",
            refId=_letter(i),
            format=format,
            instant=instant,
            datasource=DATASOURCE,
        )
        for i, query in enumerate(queries)
    ]


def _steps(steps: Iterable[Level]) -> Json:
    return [
        {"color": step.color, "value": None if step.value is None else float(step.value)}
        for step in steps
    ]


def _links(links: Iterable[tuple[str, str]]) -> Json:
    return [{"targetBlank": True, "title": title, "url": url} for title, url in links]
