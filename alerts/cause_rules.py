"""Generate the rules of cause alerts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from alerts.messages import dashboard_link
from promql.expr import pretty
from slos import names
from slos.cause_conditions import Condition
from slos.causes import cause_labels, conditions
from slos.plan import Plan, PlannedCause
from slos.yaml_text import Commented, Inline

Rule = dict[str, object]

INTERVAL = "1m"
_WIDTH = 140
_NAMED = 20
"""The maximum number of explained objectives in an annotation."""


def groups(plan: Plan) -> list[Rule]:
    """Return the group of the cause alerts on the servers that a service selects, if any."""
    rules = [
        _rule(plan, planned, condition)
        for planned in plan.causes
        for condition in conditions(planned.cause, plan.scope)
    ]
    if not rules:
        return []
    about = (
        "Causes: conditions that explain why an objective burns, after the series that they read."
    )
    name = f"{plan.service.service}/causes"
    rules = [*_records(plan), *rules]
    return [Commented(about, {"name": name, "interval": INTERVAL, "rules": rules})]


def _records(plan: Plan) -> Iterator[Rule]:
    """Yield the recording rules of expressions that conditions read more than once."""
    scope = plan.scope
    read = chain.from_iterable(planned.cause.reads for planned in plan.causes)
    for recording in dict.fromkeys(read):
        yield {
            "record": recording.name,
            "expr": pretty(recording.expr(scope), _WIDTH),
            **({"labels": Inline(scope.selector)} if scope.selector else {}),
        }


def _rule(plan: Plan, planned: PlannedCause, condition: Condition) -> Rule:
    service, cause = plan.service, planned.cause
    tier = getattr(service.alerting, planned.tier)
    links = {"runbook_url": planned.alert.runbook_url, "dashboard_url": dashboard_link(plan)}
    where = {**cause_labels(service.selector)}
    on = "{{ with $labels.instance }} on {{ . }}{{ end }}" if cause.by_instance else ""
    return {
        "alert": planned.alert.name,
        "expr": pretty(condition.expr, _WIDTH),
        "for": cause.lasting,
        "labels": Inline(
            {
                names.CAUSE_LABEL: cause.name,
                **where,
                **service.labels,
                **tier.labels,
                **condition.labels,
            }
        ),
        "annotations": {
            "summary": f"{', '.join(where.values()) or service.service}{on}: {cause.summary}",
            "description": f"{cause.value}. {cause.why}" if cause.value else cause.why,
            "explains": _explained(planned),
            **{key: url for key, url in links.items() if url},
            **tier.annotations,
        },
    }


def _explained(planned: PlannedCause) -> str:
    names_ = [each.objective.name for each in planned.explains]
    more = len(names_) - _NAMED
    return ", ".join(names_[:_NAMED]) + f" and {more} more" * (more > 0)
