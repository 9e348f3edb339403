"""The runbooks of a service: a page for each alert and each playbook, and a list of them."""

from __future__ import annotations

from runbooks.alert_page import alert_page
from runbooks.cause_page import cause_page
from runbooks.check_queries import Subject
from runbooks.index_page import index_page
from runbooks.markdown import INDEX, playbook_file
from runbooks.playbook_page import playbook_page
from runbooks.quota_page import quota_page
from runbooks.triage import playbooks_of
from slos import names
from slos.plan import Plan, PlannedCause
from slos.quotas import planned_alerts

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
    playbooks = {each.key: each for each in playbooks_of(plan)}
    pages = {INDEX: index_page(plan, playbooks.values())}
    for planned in plan.objectives:
        subject = Subject(plan, planned, tuple(causes.get(planned.objective.name, ())))
        for alert in planned.alerts:
            pages[names.runbook_file(alert.name)] = alert_page(subject, alert)
    pages |= {
        names.runbook_file(planned.alert.name): cause_page(plan, planned) for planned in plan.causes
    }
    pages |= {
        playbook_file(key): playbook_page(plan, each, playbooks) for key, each in playbooks.items()
    }
    pages |= {
        names.runbook_file(planned.name): quota_page(plan, alert, planned)
        for alert, planned in planned_alerts(plan.service)
    }
    home = folder(plan.service.service)
    return {f"{home}/{name}": f"{header}\n\n{text}" for name, text in pages.items()}
