"""The list of a service's pages: playbooks by symptom, alerts by objective."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from runbooks.cause_page import explained
from runbooks.markdown import (
    BY_SYMPTOM,
    CAUSE_ALERTS,
    dashboard,
    document,
    page_link,
    plain,
    playbook_link,
)
from runbooks.playbook import Playbook
from runbooks.playbooks import PLAYBOOKS
from slos import names
from slos.model import Service
from slos.plan import Plan, PlannedObjective
from slos.quotas import planned_alerts


def objective_text(planned: PlannedObjective) -> str:
    """State an objective and its grouping."""
    by = " and ".join(planned.objective.group_by)
    groups = f" Each {by} has an objective of its own; an alert's labels name it." if by else ""
    return f"{planned.sentence}{groups}"


def index_page(plan: Plan, playbooks: Iterable[Playbook]) -> str:
    """Write the list of a service's pages."""
    service = plan.service
    return document(
        [
            f"# Runbooks of {service.service}",
            plain(service.description),
            f"Owner: {plain(service.owner) or 'none in the SLO file'}.",
            dashboard(plan),
            "## By alert",
            _table(
                ("objective", "definition", "alerts"),
                (
                    (planned.objective.name, objective_text(planned), _links(planned, service))
                    for planned in plan.objectives
                ),
            ),
            *_causes(plan),
            *_quotas(plan),
            f"## {BY_SYMPTOM}",
            _table(
                ("symptom", "playbook", "layer"),
                (
                    ("; ".join(each.symptoms), playbook_link(each), each.layer or "any")
                    for each in playbooks
                ),
            ),
        ]
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _links(planned: PlannedObjective, service: Service) -> str:
    """Link to the pages of an objective's alerts; the row names service and objective."""
    prefix = names.camel(service.service) + names.camel(planned.objective.name)
    return ", ".join(
        f"[{alert.name.removeprefix(prefix)}]({names.runbook_file(alert.name)})"
        for alert in planned.alerts
    )


def _causes(plan: Plan) -> Iterator[str]:
    if not plan.causes:
        return
    yield f"### {CAUSE_ALERTS}"
    yield "They name the cause of an incident, and fire together with the alerts above."
    yield _table(
        ("alert", "cause", "explains", "playbook"),
        (
            (
                page_link(planned.alert),
                planned.cause.summary,
                explained(planned),
                playbook_link(PLAYBOOKS[planned.cause.runbook]),
            )
            for planned in plan.causes
        ),
    )


def _quotas(plan: Plan) -> Iterator[str]:
    alerts = [*planned_alerts(plan.service)]
    if alerts:
        yield "### Token quotas"
        yield _table(
            ("alert", "meaning"), ((page_link(planned), alert.meaning) for alert, planned in alerts)
        )
