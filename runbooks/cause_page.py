"""The runbook page of a cause alert."""

from __future__ import annotations

from collections.abc import Iterator

from runbooks.check_queries import Subject
from runbooks.checks import CHECKS
from runbooks.markdown import (
    INDEX,
    dashboard,
    diagnosis,
    document,
    escalation,
    link,
    mitigation,
    page_link,
    promql,
)
from runbooks.triage import CAUSE_CHECKS, with_root_causes
from slos import names
from slos.causes import conditions
from slos.plan import Plan, PlannedCause
from slos.queries import burn_rate

_NAMED = 50
"""At most as many objectives are named."""


def cause_page(plan: Plan, planned: PlannedCause) -> str:
    """Write the page of a cause alert."""
    subject = Subject(plan, planned.explains[0])
    service, cause = plan.service, planned.cause
    steps = tuple(CHECKS[key] for key in CAUSE_CHECKS[cause.name])
    remedies = with_root_causes((cause.runbook, *(step.points_to for step in steps)))
    return document(
        [
            f"# {planned.alert.name}",
            f"At `{service.service}`, {cause.summary}.",
            "## Meaning",
            cause.why,
            f"The alert fires when this has had a result for {cause.lasting}:",
            *_conditions(planned, plan),
            "## Impact",
            "A cause alert alone does not mean that users notice it. It explains "
            f"{explained(planned)}. Their burn rates now:",
            promql(burn_rate(names.BASE_WINDOW, service.service)),
            *diagnosis(steps, subject, link),
            *mitigation(remedies),
            "## Verify",
            "The alert ends when its condition does; the burn rates above fall to 1 or less.",
            "## Escalate",
            escalation(service.owner),
            "## Related",
            _cause_related(plan, planned),
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


def _cause_related(plan: Plan, planned: PlannedCause) -> str:
    burns = [each.burn for each in planned.explains if each.burn in each.alerts]
    return "\n".join(
        [
            f"- [Dashboard of {plan.service.service}]({dashboard(plan)})",
            *(f"- {page_link(alert)}" for alert in burns if len(burns) <= _NAMED),
            f"- [All pages of {plan.service.service}]({INDEX})",
        ]
    )


def explained(planned: PlannedCause) -> str:
    """Name the objectives that a cause explains; of many, their number and indicators."""
    explains = planned.explains
    if len(explains) <= _NAMED:
        return ", ".join(each.objective.name for each in explains)
    indicators = ", ".join(dict.fromkeys(each.objective.indicator for each in explains))
    return f"{len(explains)} objectives ({indicators})"
