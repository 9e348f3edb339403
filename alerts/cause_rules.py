"""Alerts that name causes: for whoever already looks, never to wake somebody."""

from __future__ import annotations

from collections.abc import Iterator

from promql.expr import pretty
from slos import names
from slos.causes import Condition, conditions
from slos.plan import Plan, PlannedCause

Rule = dict[str, object]

INTERVAL = "1m"
_NAMED = 20
"""How many of the objectives that it explains an alert names."""


def groups(plan: Plan) -> Iterator[Rule]:
    """Yield the groups of a service's cause alerts, if it has any.

    A cause with several conditions has a group of its own: Mimir takes 20 rules in a group, unless
    it is told otherwise.
    """
    name = f"{plan.service.service}/causes"
    rules = {
        planned.cause.name: [
            _rule(plan, planned, condition)
            for condition in conditions(planned.cause, plan.service.selector)
        ]
        for planned in plan.causes
    }
    by_group = {
        name: [its[0] for its in rules.values() if len(its) == 1],
        **{f"{name}/{cause}": its for cause, its in rules.items() if len(its) > 1},
    }
    for group, members in by_group.items():
        if members:
            yield {"name": group, "interval": INTERVAL, "rules": members}


def _rule(plan: Plan, planned: PlannedCause, condition: Condition) -> Rule:
    service, cause, tier = plan.service, planned.cause, plan.service.alerting.cause
    links = {"runbook_url": planned.alert.runbook_url, "dashboard_url": plan.dashboard_url}
    return {
        "alert": planned.alert.name,
        "expr": pretty(condition.expr),
        "for": cause.lasting,
        "labels": {
            "service": service.service,
            names.CAUSE_LABEL: cause.name,
            **service.labels,
            **tier.labels,
            **condition.labels,
        },
        "annotations": {
            "summary": f"{service.service}: {cause.summary}",
            "description": cause.why,
            "explains": _explained(planned),
            **{key: url for key, url in links.items() if url},
            **tier.annotations,
        },
    }


def _explained(planned: PlannedCause) -> str:
    names_ = [each.objective.name for each in planned.explains]
    more = len(names_) - _NAMED
    return ", ".join(names_[:_NAMED]) + f" and {more} more" * (more > 0)
