"""The runbook page of a cause alert: what it explains, two checks, and its playbook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runbooks.markdown import (
    DETAILS,
    INDEX,
    TRIAGE,
    bullets,
    dashboard,
    document,
    escalation,
    page_link,
    playbook_link,
    promql,
)
from runbooks.playbooks import PLAYBOOKS
from slos import names
from slos.cause_conditions import Condition
from slos.causes import conditions
from slos.plan import Plan, PlannedCause
from slos.queries import burn_rate

_NAMED = 50
"""At most as many objectives are named."""


def cause_page(plan: Plan, planned: PlannedCause) -> str:
    """Write the page of a cause alert."""
    service, cause = plan.service, planned.cause
    first, *others = conditions(cause, plan.scope)
    details = [cause.details, _others(first, others)]
    return document(
        [
            f"# {planned.alert.name}",
            "## Meaning",
            f"At `{service.service}`, {cause.summary}. {cause.why}",
            "## Impact",
            "A cause alert alone does not mean that users notice it. It explains "
            f"{explained(planned)}.",
            f"## {TRIAGE}",
            "### 1. Does an objective burn its error budget?",
            promql(burn_rate(names.BASE_WINDOW, service.service)),
            "Expect at most 1. Otherwise users notice it: mitigate before you look for the origin.",
            "### 2. Does the cause last?",
            promql(first.expr),
            f"Expect no result; the alert fires when there was one for {cause.lasting}. Otherwise "
            f"open {playbook_link(PLAYBOOKS[cause.runbook])}.",
            *([f"## {DETAILS}", *details] if any(details) else ()),
            "## Verify",
            "The second query has no result, and the first is 1 or less.",
            "## Escalate",
            escalation(service.owner),
            "## Related",
            bullets(_related(plan, planned)),
        ]
    )


def _others(first: Condition, others: Sequence[Condition]) -> str:
    """Name the conditions that are not shown; they differ in labels only."""
    if not others:
        return ""
    values = (value for other in others for value in other.labels.values())
    return (
        f"The second query is the one for {', '.join(first.labels.values())}; the same exists for "
        f"{', '.join(values)}."
    )


def _related(plan: Plan, planned: PlannedCause) -> Iterator[str]:
    burns = [each.burn for each in planned.explains if each.burn in each.alerts]
    yield dashboard(plan)
    yield from (page_link(alert) for alert in burns if len(burns) <= _NAMED)
    yield f"[All pages of {plan.service.service}]({INDEX})"


def explained(planned: PlannedCause) -> str:
    """Name the objectives that a cause explains; of many, their number and indicators."""
    explains = planned.explains
    if len(explains) <= _NAMED:
        return ", ".join(each.objective.name for each in explains)
    indicators = ", ".join(dict.fromkeys(each.objective.indicator for each in explains))
    return f"{len(explains)} objectives ({indicators})"
