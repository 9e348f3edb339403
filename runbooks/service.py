"""The runbooks of a service: a page for each alert, and a list of them."""

from __future__ import annotations

from collections.abc import Iterator

from runbooks.alert_page import alert_page, objective_text
from runbooks.cause_page import cause_page, explained
from runbooks.check_queries import Subject
from runbooks.markdown import CAUSE_ALERTS, INDEX, dashboard, document, page_link, plain
from runbooks.shared_pages import SharedPages
from slos import names
from slos.model import Service
from slos.plan import Plan, PlannedCause, PlannedObjective

_OWN_PAGES = 50
"""Services with more objectives share the steps and mitigations of their pages."""
HEADER = "<!-- Made by tokenslo "
"""The first characters of every generated page; other files are never removed."""


def folder(service: str) -> str:
    """Return where a service's pages are below the output folder."""
    return f"runbooks/{service}"


def files(plan: Plan, *, source: str, version: str) -> dict[str, str]:
    """Return every page of a service under its path below the output folder."""
    header = f"{HEADER}{version} from {source}. Do not edit. -->"
    causes: dict[str, list[PlannedCause]] = {}
    for cause in plan.causes:
        for planned in cause.explains:
            causes.setdefault(planned.objective.name, []).append(cause)
    shared = SharedPages(plan.service.service) if len(plan.objectives) > _OWN_PAGES else None
    pages = {INDEX: _index(plan)}
    for planned in plan.objectives:
        subject = Subject(plan, planned, tuple(causes.get(planned.objective.name, ())))
        for alert in planned.alerts:
            pages[names.runbook_file(alert.name)] = alert_page(subject, alert, shared)
    pages |= {
        names.runbook_file(planned.alert.name): cause_page(plan, planned) for planned in plan.causes
    }
    pages |= shared.files if shared else {}
    home = folder(plan.service.service)
    return {f"{home}/{name}": f"{header}\n\n{text}" for name, text in pages.items()}


def _index(plan: Plan) -> str:
    service = plan.service
    rows = (
        f"| {planned.objective.name} | {objective_text(planned)} | {_links(planned, service)} |"
        for planned in plan.objectives
    )
    return document(
        [
            f"# Runbooks of {service.service}",
            plain(service.description),
            f"Owner: {plain(service.owner) or 'none in the SLO file'}.",
            f"[Dashboard]({dashboard(plan)})",
            "\n".join(["| name | objective | alerts |", "|---|---|---|", *rows]),
            *_causes_table(plan),
        ]
    )


def _links(planned: PlannedObjective, service: Service) -> str:
    """Link to the pages of an objective's alerts; the row names service and objective."""
    prefix = names.camel(service.service) + names.camel(planned.objective.name)
    return ", ".join(
        f"[{alert.name.removeprefix(prefix)}]({names.runbook_file(alert.name)})"
        for alert in planned.alerts
    )


def _causes_table(plan: Plan) -> Iterator[str]:
    if not plan.causes:
        return
    yield f"## {CAUSE_ALERTS}"
    yield "They name the cause of an incident, and fire together with the alerts above."
    rows = (
        f"| {page_link(planned.alert)} | {planned.cause.summary} | {explained(planned)} |"
        for planned in plan.causes
    )
    yield "\n".join(["| alert | cause | explains |", "|---|---|---|", *rows])
