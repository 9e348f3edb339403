"""Panels of one objective: burn rate, budget and signal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from operator import attrgetter

from grafanalib import core

from dashboards import panels, scopes
from dashboards.generic import own_panels
from dashboards.grafana import PanelRow
from dashboards.panels import Level, PanelQuery
from promql.expr import Expr, aggregate, decimal_text, number
from slos import names
from slos.burn import Pair
from slos.indicators import INDICATORS, threshold_text
from slos.model import Objective, Service
from slos.plan import Plan, PlannedObjective
from slos.queries import Scope, burn_rate, native_signals, recorded

_GROUPS = 20
"""How many groups of an objective a panel shows."""
_TIER_COLORS = {"page": "red", "ticket": "orange"}


def objective_row(planned: PlannedObjective, plan: Plan, scope: Scope) -> PanelRow:
    """Return the panels of an objective; ``scope`` has the signals of its service."""
    objective = planned.objective
    its_own = replace(
        scope,
        selector=plan.service.selects(objective),
        native=native_signals(plan.service, objective),
    )
    shown = [_burn(planned, plan), *_groups(planned, plan), *_signal(planned, plan, its_own)]
    return PanelRow(objective_title(planned), shown)


def objective_title(planned: PlannedObjective) -> str:
    """Return the title of an objective: ``first-token: 95% of requests (800ms)``."""
    objective = planned.objective
    target = f"{decimal_text(objective.target * 100)}% of {planned.indicator.events}"
    limit = threshold_text(objective)
    return f"{objective.name}: {target}{f' ({limit})' if limit else ''}"


def _groups(planned: PlannedObjective, plan: Plan) -> Iterator[core.Panel]:
    """Yield the panel of the budget by group; only the worst groups are drawn."""
    objective = planned.objective
    if not objective.group_by:
        return
    left = recorded(names.BUDGET_REMAINING, plan.service.service, objective)
    least = aggregate("bottomk", left, parameter=number(_GROUPS))
    yield panels.time_series(
        f"Budget left by {' and '.join(objective.group_by)}",
        f"The {_GROUPS} groups with the least budget left. Below the dashed line the objective is "
        "missed.",
        [PanelQuery(least, panels.legend(objective.group_by))],
        unit=panels.RATIO,
        lines=[Level(Decimal(0), panels.RED)],
        bottom=None,
        top=1,
    )


def _burn(planned: PlannedObjective, plan: Plan) -> core.Panel:
    objective, service = planned.objective, plan.service.service
    needed: dict[str, list[str]] = {window: [] for window in planned.windows}
    for pair in planned.alerting_pairs:
        for window in (pair.long, pair.short):
            needed[window].append(decimal_text(pair.burn_rate))
    links = [(f"Runbook: {a.name}", a.runbook_url) for a in planned.alerts if a.runbook_url]
    by = objective.group_by
    of = f"the budget of the {' and '.join(by)} that burns the fastest" if by else "the budget"

    def burning(window: str) -> Expr:
        rate = burn_rate(window, service, objective)
        return aggregate("max", rate) if by else rate

    return panels.time_series(
        "Burn rate by window",
        f"How many times faster than allowed {of} burns; the legend has the alert thresholds. "
        "Both windows of a threshold above it fire: red pages, orange opens a ticket.",
        [
            PanelQuery(burning(window), f"{window} ({', '.join(rates)})" if rates else window)
            for window, rates in needed.items()
        ],
        unit=panels.NUMBER,
        lines=_burn_lines(planned.alerting_pairs),
        links=links,
    )


def _burn_lines(pairs: Iterable[Pair]) -> list[Level]:
    slowest_first = sorted(pairs, key=attrgetter("burn_rate"))
    return [Level(pair.burn_rate, _TIER_COLORS[pair.tier]) for pair in slowest_first]


def _signal(planned: PlannedObjective, plan: Plan, scope: Scope) -> list[core.Panel]:
    """Return the panels of an objective's signal."""
    objective = planned.objective
    if objective.queries:
        is_native = plan.service.native(objective)
        return own_panels(planned, plan.service.service, is_native=is_native)
    if planned.indicator.threshold == "seconds":
        return _latency(planned, scope)
    if planned.indicator.threshold == "ratio":
        return [_headroom(objective, scope)]
    return _verdicts(planned, plan.service, scope)


def _latency(planned: PlannedObjective, scope: Scope) -> list[core.Panel]:
    objective = planned.objective
    key, threshold = objective.indicator, objective.threshold
    assert threshold is not None  # noqa: S101  (load.py requires it)
    limit = threshold_text(objective)
    noun = INDICATORS[key].events
    without = (
        ", without the ones that failed before their first token"
        if objective.indicator == "ttft"
        else ""
    )
    target = target_share(objective)
    return [
        panels.time_series(
            f"Share within {limit} by version",
            f"Share of {noun} within the threshold{without}. One version below the others is a "
            "rollout to undo.",
            [PanelQuery(scope.share_within(key, threshold, ("version",)), scopes.BY_VERSION)],
            unit=panels.RATIO,
            lines=[Level(target, panels.RED)],
            top=1,
        ),
        panels.time_series(
            f"Quantiles against {limit}",
            f"The objective is met while p{decimal_text(target * 100)} stays below the dashed "
            "line. Quantiles are interpolated within buckets.",
            scopes.quantiles(scope, key, target),
            unit=panels.SECONDS,
            lines=[Level(threshold, panels.RED)],
        ),
    ]


def target_share(objective: Objective) -> Decimal:
    """Return the target share of good events: of all, or of those in a time slice."""
    return objective.slices.target if objective.slices else objective.target


_GOOD_SHARES = {
    "availability": "Requests served, of all that were served or spend the error budget.",
    "stream_completion": "Streams that ran to their end, of all that had begun without a client "
    "disconnect.",
    "disconnects": "Streams that ran to their end, of these and those with a client disconnect.",
    "goodput": "Requests that met every clause, of all that could be judged.",
}


def _verdicts(planned: PlannedObjective, service: Service, scope: Scope) -> list[core.Panel]:
    objective = planned.objective
    share = panels.time_series(
        "Good share by version",
        f"{_GOOD_SHARES[objective.indicator]} One version below the others is a rollout to undo.",
        [PanelQuery(scope.share_good(objective, service, ("version",)), scopes.BY_VERSION)],
        unit=panels.RATIO,
        lines=[Level(target_share(objective), panels.RED)],
        top=1,
    )
    if objective.indicator != "goodput":
        return [share]
    results = ("bad", *service.spending(objective), "unknown")
    clauses = scope.goodput(objective, service.service, *results, by=("result", "clause"))
    return [
        share,
        panels.time_series(
            "Failing clause",
            "The first clause that each bad request fails; outcome is a request that the server "
            "failed or refused. Unknown requests lack what a clause needs, and do not count.",
            [PanelQuery(clauses, "{{result}} {{clause}}")],
            unit=panels.REQUESTS_PER_SECOND,
            stacked=True,
        ),
    ]


def _headroom(objective: Objective, scope: Scope) -> core.Panel:
    assert objective.threshold is not None  # noqa: S101  (load.py requires it)
    return panels.time_series(
        f"Used by instance, against {threshold_text(objective)}",
        "The fullest model of each instance, never an average; the dashed line is the threshold. "
        "One instance above it alone is a routing problem.",
        [PanelQuery(scope.fullest(objective.indicator), scopes.BY_INSTANCE)],
        unit=panels.RATIO,
        lines=[Level(objective.threshold, panels.RED)],
        top=1,
    )
