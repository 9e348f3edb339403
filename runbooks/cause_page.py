"""The page on a cause alert: what makes it fire, what it explains, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runbooks.checks import CHECKS
from runbooks.markdown import (
    INDEX,
    call_owner,
    dashboard,
    diagnosis,
    document,
    mitigation,
    page_link,
    promql,
)
from runbooks.pages import CAUSE_CHECKS, with_what_is_behind
from runbooks.questions import Subject
from slos import names
from slos.causes import conditions
from slos.plan import Plan, PlannedCause
from slos.queries import burn_rate


def cause_page(plan: Plan, planned: PlannedCause) -> str:
    """Write the page on a cause alert."""
    subject = Subject(plan, planned.explains[0])
    service, cause = plan.service, planned.cause
    steps = tuple(CHECKS[key] for key in CAUSE_CHECKS[cause.name])
    remedies = with_what_is_behind((cause.runbook, *(step.points_to for step in steps)))
    return document(
        [
            f"# {planned.alert.name}",
            f"At `{service.service}`, {cause.summary}.",
            "## Meaning",
            cause.why,
            f"The alert fires when this has had a result for {cause.lasting}:",
            *_conditions(planned, service.selector),
            "## Impact",
            "This alert says why something may hurt, not that it does; it is not sent while a page "
            f"of this service fires. It explains {explained(planned)}. What their budgets lose to "
            "it now, as burn rates (1 is what is allowed):",
            promql(burn_rate(names.BASE_WINDOW, service.service)),
            *diagnosis(steps, subject),
            *mitigation(remedies),
            "## Verify",
            "The alert ends when its condition does; the burn rates above fall to 1 or less.",
            "## Escalate",
            call_owner(service.owner),
            "## Related",
            _cause_related(plan, planned),
        ]
    )


def _conditions(planned: PlannedCause, selector: Mapping[str, str]) -> Iterator[str]:
    """Show the first condition; others have the same form, and differ in what their labels say."""
    first, *others = conditions(planned.cause, selector)
    yield promql(first.expr)
    if others:
        told = (value for other in others for value in other.labels.values())
        yield (
            f"That is for {', '.join(first.labels.values())}; there is one of the same form for "
            f"{', '.join(told)}."
        )


def _cause_related(plan: Plan, planned: PlannedCause) -> str:
    burns = [each.burn for each in planned.explains if each.burn in each.alerts]
    return "\n".join(
        [
            f"- [Dashboard of {plan.service.service}]({dashboard(plan)})",
            *(f"- {page_link(alert)}" for alert in burns),
            f"- [All pages of {plan.service.service}]({INDEX})",
        ]
    )


def explained(planned: PlannedCause) -> str:
    """Name the objectives that a cause explains."""
    return ", ".join(each.objective.name for each in planned.explains)
