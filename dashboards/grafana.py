"""Assemble Grafana dashboards: variables, annotations, links and rows of panels."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import attr
from grafanalib import core

from dashboards.panels import DATASOURCE, Json
from promql.expr import Expr

SCHEMA = 42
WIDTH = 24
"""Columns of Grafana's grid."""


@dataclass(frozen=True, slots=True)
class PanelRow:
    """A titled row of panels of one height; without ``widths`` they share the grid equally.

    A row without a title continues the one before.
    """

    title: str
    panels: Sequence[core.Panel]
    height: int = 8
    widths: tuple[int, ...] = ()


def variable(
    name: str,
    label: str,
    values_of: Expr,
    *,
    several: bool = True,
    everything: str = ".*",
) -> core.Template:
    """Return a variable for the values of the label ``name`` on ``values_of``.

    ``everything`` is the regular expression of All; the default includes series without the label:
    trtllm-serve and vLLM have no versions.
    """
    return core.Template(
        name=name,
        label=label,
        query=f"label_values({values_of}, {name})",
        dataSource=DATASOURCE,
        includeAll=several,
        allValue=everything if several else None,
        multi=several,
        regex="",
        refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
        sort=core.SORT_ASC,
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


def runbook_link(title: str, url: str) -> core.DashboardLink:
    """Link to a page outside of Grafana."""
    return core.DashboardLink(title=title, uri=url, type="link", icon="doc", targetBlank=True)


def dashboards_link(title: str, tags: Iterable[str]) -> core.DashboardLink:
    """List the dashboards with all of ``tags``; time range and variables are kept.

    A list by tags has no dead links: it holds for every folder, uid prefix and selection.
    """
    return core.DashboardLink(
        title=title,
        tags=list(tags),
        type="dashboards",
        icon="external link",
        asDropdown=True,
        keepTime=True,
        includeVars=True,
    )


def dashboard(
    *,
    uid: str,
    title: str,
    description: str,
    tags: Iterable[str],
    variables: Iterable[core.Template],
    annotations: Iterable[Json],
    rows: Iterable[PanelRow],
    links: Iterable[core.DashboardLink] = (),
) -> core.Dashboard:
    """Assemble a dashboard from rows, top to bottom."""
    return core.Dashboard(
        uid=uid,
        title=title,
        description=description,
        tags=list(tags),
        editable=False,
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        timezone="browser",
        refresh="1m",
        time=core.Time("now-6h", "now"),
        schemaVersion=SCHEMA,
        templating=core.Templating(list(variables)),
        annotations=core.Annotations([_built_in_annotations(), *annotations]),
        links=list(links),
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
    y, title = 0, ""
    for row in rows:
        if row.title:
            title = row.title
            placed.append(_at(core.RowPanel(title=title), title, 0, y, WIDTH, 1))
            y += 1
        x = 0
        equal = (WIDTH // len(row.panels),) * len(row.panels)
        for panel, width in zip(row.panels, row.widths or equal, strict=True):
            placed.append(_at(panel, f"{title}/{panel.title}", x, y, width, row.height))
            x += width
        y += row.height
    return placed


def _at(panel: core.Panel, key: str, x: int, y: int, width: int, height: int) -> core.Panel:
    """Place a panel; its id follows from ``key``, so links to it outlive panels added before it."""
    position = core.GridPos(h=height, w=width, x=x, y=y)
    return attr.evolve(panel, id=zlib.crc32(key.encode()) >> 1, gridPos=position)
