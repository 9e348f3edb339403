"""The runbooks of a service: a page for each alert, and a list of them."""

from __future__ import annotations

from collections.abc import Iterator

from runbooks.alert_page import alert_page, promise
from runbooks.cause_page import cause_page, explained
from runbooks.causes import CAUSES
from runbooks.markdown import (
    INDEX,
    MITIGATIONS,
    dashboard,
    document,
    mitigation,
    page_link,
    plain,
)
from runbooks.questions import Subject
from slos import names
from slos.plan import Plan, PlannedCause

_OWN_MITIGATIONS = 50
"""Up to how many objectives each page has its mitigations; of more they are one page."""
HEADER = "<!-- Made by tokenslo "
"""How every generated page begins; one that begins otherwise was written by somebody."""


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
    shared = MITIGATIONS if len(plan.objectives) > _OWN_MITIGATIONS else ""
    pages = {INDEX: _index(plan)}
    if shared:
        title = f"# Mitigations of {plan.service.service}"
        pages[shared] = document([title, *mitigation(CAUSES.values())])
    for planned in plan.objectives:
        subject = Subject(plan, planned, tuple(causes.get(planned.objective.name, ())), shared)
        for alert in planned.alerts:
            pages[names.runbook_file(alert.name)] = alert_page(subject, alert)
    pages |= {
        names.runbook_file(planned.alert.name): cause_page(plan, planned) for planned in plan.causes
    }
    home = folder(plan.service.service)
    return {f"{home}/{name}": f"{header}\n\n{text}" for name, text in pages.items()}


def _index(plan: Plan) -> str:
    service = plan.service
    rows = (
        f"| {planned.objective.name} | {promise(planned, service.window)} "
        f"| {'<br>'.join(page_link(alert) for alert in planned.alerts)} |"
        for planned in plan.objectives
    )
    return document(
        [
            f"# Runbooks of {service.service}",
            plain(service.description),
            f"Owner: {plain(service.owner)}." if service.owner else "",
            f"[Dashboard]({dashboard(plan)})",
            "\n".join(["| objective | promise | pages |", "|---|---|---|", *rows]),
            *_causes_table(plan),
        ]
    )


def _causes_table(plan: Plan) -> Iterator[str]:
    if not plan.causes:
        return
    yield "Alerts that say why; they are silent while a page of this service fires:"
    rows = (
        f"| {page_link(planned.alert)} | {planned.cause.summary} | {explained(planned)} |"
        for planned in plan.causes
    )
    yield "\n".join(["| alert | cause | explains |", "|---|---|---|", *rows])
