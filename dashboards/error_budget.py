"""The error budget of one service: its remainder, and the models that spend it."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from grafanalib import core

from dashboards import panels
from dashboards.budget_panels import RecordedSeries, budget_tiles, incidents, objectives_table
from dashboards.grafana import PanelRow
from dashboards.objective import objective_row
from dashboards.panels import PanelQuery, levels
from dashboards.selected_objective import MOST_ROWS, selected_row, selected_variable
from promql.expr import Matcher, aggregate, equal, number
from slos import names
from slos.durations import format_duration
from slos.events import MINUTE
from slos.indicators import among, bad_results
from slos.plan import Plan
from slos.queries import Scope
from slos.signals import SIGNALS


def variables(plan: Plan) -> list[core.Template]:
    """Return the variable of a service with many objectives."""
    return [selected_variable(plan)] if _many(plan) else []


def rows(plan: Plan, scope: Scope) -> Iterator[PanelRow]:
    """Yield the rows of a service: all objectives, then one row for each.

    With more than :data:`MOST_ROWS` objectives, one row shows the one that the reader selects.
    """
    recorded = RecordedSeries(equal({"service": plan.service.service}), {"slo": "Objective"})
    height = 3 + min(len(plan.objectives), 9)
    yield PanelRow("All objectives", [objectives_table(recorded)], height=height)
    yield PanelRow("", [_burn_down(plan, recorded), incidents(recorded, "slo")])
    yield PanelRow("", [*_bad_events(plan, recorded, scope), budget_tiles(recorded)[1]], height=7)
    if _many(plan):
        yield selected_row(plan)
    else:
        for planned in plan.objectives:
            yield objective_row(planned, plan, scope)


def _many(plan: Plan) -> bool:
    return len(plan.objectives) > MOST_ROWS


def _burn_down(plan: Plan, recorded: RecordedSeries) -> core.Panel:
    window = format_duration(plan.service.window)
    return panels.time_series(
        f"Burn-down over {window}",
        f"Budget left of each objective over the last {window}, whatever time range is selected. "
        "A steep fall is an incident, a steady one a target that is too high.",
        [PanelQuery(recorded.budget_left, recorded.legend)],
        unit=panels.RATIO,
        lines=levels((0, panels.RED)),
        bottom=None,
        top=1,
        period=_period(plan.service.window),
    )


def _period(seconds: Decimal) -> str:
    """Write a duration with one unit, as Grafana's relative time ranges need it."""
    sizes = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
    unit, size = next(each for each in sizes.items() if seconds % each[1] == 0)
    return f"{int(seconds) // size}{unit}"


def _bad_events(plan: Plan, recorded: RecordedSeries, scope: Scope) -> Iterator[core.Panel]:
    bad = aggregate("sum", recorded.series(names.BAD), ("slo",)) / number(MINUTE)
    yield panels.time_series(
        "Bad events by objective",
        "Bad events per second that spend the budgets. Objectives that rise together have one "
        "cause.",
        [PanelQuery(bad, recorded.legend)],
        unit=panels.PER_SECOND,
    )
    goodput = [each for each in plan.objectives if each.objective.indicator == "goodput"]
    if goodput:
        own = names.goodput_objective(plan.service.service, "")
        spent = dict.fromkeys(
            result for each in goodput for result in bad_results(each.objective, plan.service)
        )
        of = (Matcher("objective", "=~", f"{own}.+"), among("result", [*spent]))
        clauses = scope.rate(SIGNALS["goodput"].metric, *of, by=("objective", "clause"))
        legend = "{{objective}}: {{clause}}" if len(goodput) > 1 else "{{clause}}"
        yield panels.time_series(
            "Bad requests by goodput clause",
            "The first clause that each bad request fails; outcome is a request that the server "
            "failed or refused. Work on the largest one.",
            [PanelQuery(clauses, legend)],
            unit=panels.REQUESTS_PER_SECOND,
            stacked=True,
        )
