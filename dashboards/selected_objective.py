"""The dashboard row of the selected objective, for services with many."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from grafanalib import core

from dashboards import grafana, panels
from dashboards.grafana import PanelRow
from dashboards.panels import Level, PanelQuery
from promql.expr import aggregate
from slos import names
from slos.durations import parse_duration
from slos.plan import Plan
from slos.queries import burn_rate, recorded

MOST_ROWS = 50
"""With more objectives, one row shows the selected one: thousands of panels are slow in Grafana."""
VARIABLE = "slo"


def selected_variable(plan: Plan) -> core.Template:
    """Return the variable that selects one objective of a service."""
    every = recorded(names.BUDGET_REMAINING, plan.service.service)
    return grafana.variable(VARIABLE, "Objective", every, several=False)


def selected_row(plan: Plan) -> PanelRow:
    """Return the panels of the selected objective, from recorded series alone."""
    service = plan.service.service
    selected = replace(plan.objectives[0].objective, name=f"${VARIABLE}")
    windows = {window for planned in plan.objectives for window in planned.windows}
    burning = panels.time_series(
        "Burn rate by window",
        "How many times faster than allowed the budget of the selected objective burns, in its "
        "worst group. Above 1 it is spent early.",
        [
            PanelQuery(aggregate("max", burn_rate(window, service, selected)), window)
            for window in sorted(windows, key=parse_duration)
        ],
        unit=panels.NUMBER,
        lines=[Level(Decimal(1), "orange")],
    )
    left = panels.time_series(
        "Budget left",
        "Share of the budget that is left, in the worst group. Below the dashed line the objective "
        "is missed.",
        [PanelQuery(aggregate("min", recorded(names.BUDGET_REMAINING, service, selected)), "left")],
        unit=panels.RATIO,
        lines=[Level(Decimal(0), panels.RED)],
        bottom=None,
        top=1,
    )
    return PanelRow("Objective $slo", [burning, left])
