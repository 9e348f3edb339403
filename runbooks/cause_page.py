"""The runbook page of a cause alert: its condition, what it explains, and its playbook."""

from __future__ import annotations

from collections.abc import Iterator

from runbooks.markdown import (
    INDEX,
    bullets,
    dashboard,
    document,
    page_link,
    playbook_link,
    promql,
)
from runbooks.playbooks import PLAYBOOKS
from slos import names
from slos.causes import conditions
from slos.plan import Plan, PlannedCause
from slos.queries import burn_rate

_NAMED = 50
"""At most as many objectives are named."""


def cause_page(plan: Plan, planned: PlannedCause) -> str:
    """Write the page of a cause alert."""
    service, cause = plan.service, planned.cause
    return document(
        [
            f"# {planned.alert.name}",
            "## Meaning",
            f"At `{service.service}`, {cause.summary}. {cause.why}",
            f"The alert fires when this has had a result for {cause.lasting}:",
            *_conditions(planned, plan),
            "## Impact",
            "A cause alert alone does not mean that users notice it. It explains "
            f"{explained(planned)}.",
            "## Playbook",
            f"Open {playbook_link(PLAYBOOKS[cause.runbook])}.",
            "## Verify",
            "The alert ends when its condition does. Then these burn rates fall to 1 or less:",
            promql(burn_rate(names.BASE_WINDOW, service.service)),
            "## Related",
            bullets(_related(plan, planned)),
        ]
    )


def _conditions(planned: PlannedCause, plan: Plan) -> Iterator[str]:
    """Show the first condition; the others differ in labels only."""
    first, *others = conditions(planned.cause, plan.scope)
    yield promql(first.expr)
    if others:
        values = (value for other in others for value in other.labels.values())
        yield (
            f"This is the one for {', '.join(first.labels.values())}; the same exists for "
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
