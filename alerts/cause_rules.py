"""Alerts that name causes: for whoever already looks, never to wake somebody."""

from __future__ import annotations

from collections.abc import Iterator

from promql.expr import pretty
from slos import names
from slos.causes import Condition, conditions
from slos.plan import Plan, PlannedCause

Rule = dict[str, object]

INTERVAL = "1m"


def groups(plan: Plan) -> Iterator[Rule]:
    """Yield the group of a service's cause alerts, if it has any."""
    rules = [
        _rule(plan, planned, condition)
        for planned in plan.causes
        for condition in conditions(planned.cause, plan.service.selector)
    ]
    if rules:
        name = f"{plan.service.service}/causes"
        yield {"name": name, "interval": INTERVAL, "rules": rules}


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
            "explains": ", ".join(each.objective.name for each in planned.explains),
            **{key: url for key, url in links.items() if url},
            **tier.annotations,
        },
    }
