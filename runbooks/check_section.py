"""A check on a page: its query, and what a healthy and another result mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from runbooks.check_queries import Subject
from runbooks.diagnosis_check import DiagnosisCheck
from runbooks.markdown import (
    CAUSE_ALERTS,
    INDEX,
    anchor,
    bullets,
    neighbour_link,
    playbook_link,
    promql,
    screen_lines,
    sentence,
)
from runbooks.playbook import Playbook, Step
from runbooks.playbooks import PLAYBOOKS

TRIAGE_CHECKS = 5
"""At most as many checks are in the triage of a page."""
_TRIAGE_LINES = 62
"""Their height on a screen, so that a page fits on two of them before its details."""


def triage(subject: Subject, checks: Iterable[DiagnosisCheck]) -> tuple[DiagnosisCheck, ...]:
    """Choose the first checks that fit; a long query is left to its playbook."""
    chosen: list[DiagnosisCheck] = []
    lines = 0
    for check in checks:
        height = screen_lines(triage_section(TRIAGE_CHECKS, check, subject))
        if lines + height <= _TRIAGE_LINES:
            chosen.append(check)
            lines += height
        if len(chosen) == TRIAGE_CHECKS:
            break
    return tuple(chosen)


def triage_section(number: int, check: DiagnosisCheck, subject: Subject) -> Iterator[str]:
    """Yield a check of a triage: the query, the value that decides, the playbook to open."""
    yield f"### {number}. {check.question}"
    yield promql(check.query(subject))
    healthy = f"Expect {check.healthy(subject)}."
    if check.points_to:
        yield f"{healthy} Otherwise open {playbook_link(PLAYBOOKS[check.points_to])}."
    elif check.key == "cause_alerts":
        index = f"{INDEX}#{anchor(CAUSE_ALERTS)}"
        yield f"{healthy} Otherwise open the page of that alert, from the [list]({index})."
    else:
        yield f"{healthy} Otherwise: {check.note}"


def step_section(
    number: int, step: Step, check: DiagnosisCheck, subject: Subject, other: Playbook | None
) -> Iterator[str]:
    """Yield a step of a playbook's diagnosis; ``other`` is the playbook that it points to."""
    healthy = f"{check.healthy(subject)}"
    opens = f" Playbook: {neighbour_link(other)}." if other else ""
    yield f"### {number}. {check.question}"
    yield promql(check.query(subject))
    yield bullets(
        [
            f"Healthy: {healthy}. Then {check.rules_out}.",
            f"Otherwise: {sentence(step.sick)} Owner: {step.layer}.{opens}",
        ]
    )
    yield check.note
