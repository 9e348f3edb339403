"""Panels of objectives with queries of their own in the SLO file."""

from __future__ import annotations

from dataclasses import replace

from grafanalib import core

from dashboards import panels, scopes
from dashboards.panels import Level, PanelQuery
from promql.expr import call, number
from slos import names
from slos.durations import parse_duration
from slos.generic_events import bad_share
from slos.plan import PlannedObjective
from slos.queries import INSTANCE, recorded


def own_panels(planned: PlannedObjective, service: str, *, is_native: bool) -> list[core.Panel]:
    """Return panels of the recorded series, and by instance where the query has that label."""
    objective, noun = planned.objective, planned.indicator.events
    bad, total = (
        call(
            "sum_over_time", replace(recorded(series, service, objective), window=names.BASE_WINDOW)
        )
        / number(parse_duration(names.BASE_WINDOW))
        for series in (names.BAD, names.TOTAL)
    )

    def legend(what: str) -> str:
        return f"{what} {panels.legend(objective.group_by)}".strip()

    recorded_panels = [
        panels.time_series(
            "Share good",
            f"Share of good {noun} in {names.BASE_WINDOW}, as recorded; the dashed line is the "
            "target.",
            [PanelQuery(number(1) - bad / total.compare(">", number(0)), legend("good"))],
            unit=panels.RATIO,
            lines=[Level(objective.target, "red")],
            top=1,
        ),
        panels.time_series(
            "Bad and all",
            f"{noun.capitalize()} per second, as recorded: the size of the sample.",
            [PanelQuery(total, legend("all")), PanelQuery(bad, legend("bad"))],
            unit=panels.PER_SECOND,
        ),
    ]
    share = bad_share(objective, (INSTANCE,), is_native=is_native)
    if share is None:
        return recorded_panels
    by_instance = panels.time_series(
        "Bad share by instance",
        "One instance above the others is broken; all of them are the service or a dependency.",
        [PanelQuery(share, scopes.BY_INSTANCE)],
        unit=panels.RATIO,
        lines=[Level(1 - objective.target, "red")],
    )
    return [*recorded_panels, by_instance]
