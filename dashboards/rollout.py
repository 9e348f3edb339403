"""Rollout of one service: version beside version on every SLI, with sample sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

from grafanalib import core

from dashboards import panels, prompt_classes, scopes
from dashboards.grafana import PanelRow
from dashboards.objective import objective_title, target_share
from dashboards.panels import Column, Level, PanelQuery
from promql.expr import Expr, Vector, aggregate, call, equal, number
from promql.tree import String
from slos.indicator_events import counters, usage_ratio
from slos.plan import Plan, PlannedObjective
from slos.queries import Scope

MOST_OBJECTIVES = 20
"""How many objectives are compared: the first ones of the SLO file."""
MOST_HEADROOMS = 4
"""How many headroom objectives are compared."""
_VERSION = ("version",)


def rows(plan: Plan, scope: Scope) -> Iterator[PanelRow]:
    """Yield the rows of a service."""
    compared = [each for each in plan.objectives if _by_version(each)][:MOST_OBJECTIVES]
    if compared:
        yield PanelRow(
            "Version beside version",
            [_comparison(compared, plan, scope)],
            height=min(4 + len(compared), 12),
        )
    yield PanelRow("Traffic", list(_traffic(scope)), height=7)
    yield from prompt_classes.rollout_rows(plan, scope)
    for each in compared:
        yield PanelRow(objective_title(each), list(_sli(each, plan, scope)), widths=(14, 10))
    full = [each for each in plan.objectives if each.indicator.threshold == "ratio"]
    if full:
        yield PanelRow("Headroom", [_usage(each, plan, scope) for each in full[:MOST_HEADROOMS]])


def _by_version(planned: PlannedObjective) -> bool:
    """Whether the events of an objective have versions: no user-defined query, no gauge."""
    objective = planned.objective
    counted = planned.indicator.slice is None or objective.slices is not None
    return counted and not objective.queries


def _usage(planned: PlannedObjective, plan: Plan, scope: Scope) -> core.Panel:
    """Compare the usage that a headroom objective limits."""
    objective = planned.objective
    assert objective.threshold is not None  # noqa: S101  (load.py requires it)
    own = [each for each in scope.also if each.label not in objective.selector]
    chosen = (*equal(plan.service.selects(objective)), *own)
    return panels.time_series(
        f"{objective.name}: used by version",
        "The fullest instance of each version; the dashed line is the threshold. Compare versions "
        "at equal traffic per instance.",
        [
            PanelQuery(
                aggregate("max", usage_ratio(objective.indicator, chosen), _VERSION),
                scopes.BY_VERSION,
            )
        ],
        unit=panels.RATIO,
        lines=[Level(objective.threshold, panels.RED)],
        top=1,
    )


def _counters(planned: PlannedObjective, plan: Plan, scope: Scope) -> tuple[Vector, Vector]:
    """Return the counters of bad and of all events of the selected servers."""
    bad, total = counters(planned.objective, plan.service, _VERSION)
    own = [each for each in scope.also if each.label not in planned.objective.selector]
    return (
        replace(bad, matchers=(*bad.matchers, *own)),
        replace(total, matchers=(*total.matchers, *own)),
    )


def _comparison(compared: list[PlannedObjective], plan: Plan, scope: Scope) -> core.Panel:
    def of_each(share: bool) -> Expr:
        found = []
        for planned in compared:
            bad, total = (scopes.increase(c, _VERSION) for c in _counters(planned, plan, scope))
            value = number(1) - bad / total.compare(">", number(0)) if share else total
            found.append(_named(value, planned.objective.name))
        return reduce(lambda one, other: one.or_(other), found)

    return panels.table(
        "Every SLI by version",
        "Share of good events in the selected time range, and how many events it is of. Do not "
        "judge a version by fewer than a few hundred events.",
        {"slo": "Objective", "version": "Version"},
        [
            Column("Good", of_each(share=True), panels.RATIO),
            Column("Events", of_each(share=False), panels.COUNT),
        ],
        sort="Objective",
    )


def _named(value: Expr, objective: str) -> Expr:
    """Add the name of an objective as the label ``slo``."""
    return call("label_replace", value, String("slo"), String(objective), String(""), String(""))


def _traffic(scope: Scope) -> Iterator[core.Panel]:
    yield panels.time_series(
        "Requests by version",
        "Where the traffic goes. A version without requests has no SLI.",
        [PanelQuery(scope.requests(by=_VERSION), scopes.BY_VERSION)],
        unit=panels.REQUESTS_PER_SECOND,
        stacked=True,
    )
    yield panels.time_series(
        "Instances by version",
        "Sidecars that report each version: the progress of the rollout.",
        [
            PanelQuery(
                aggregate("count", scope.series("tokenslo_model_info"), _VERSION),
                scopes.BY_VERSION,
            )
        ],
        unit=panels.COUNT,
        stacked=True,
    )
    yield panels.time_series(
        "Output tokens by version",
        "Tokens generated per second by each version. Less at the same requests: shorter answers "
        "or a slower engine.",
        [PanelQuery(scopes.rate(scope, "output_tokens", "version"), scopes.BY_VERSION)],
        unit=panels.PER_SECOND,
        stacked=True,
    )


def _sli(planned: PlannedObjective, plan: Plan, scope: Scope) -> Iterator[core.Panel]:
    objective = planned.objective
    bad, total = (
        aggregate("sum", call("rate", replace(each, window=scope.window)), _VERSION)
        for each in _counters(planned, plan, scope)
    )
    yield panels.time_series(
        f"{objective.name}: good by version",
        "Share of good events; the dashed line is the target. A new version below the old one is "
        "a rollout to undo.",
        [PanelQuery(number(1) - bad / total.compare(">", number(0)), scopes.BY_VERSION)],
        unit=panels.RATIO,
        lines=[Level(target_share(objective), panels.RED)],
        top=1,
    )
    yield panels.time_series(
        f"{objective.name}: events by version",
        "Events per second that the share is of: its sample size.",
        [PanelQuery(total, scopes.BY_VERSION)],
        unit=panels.PER_SECOND,
    )
