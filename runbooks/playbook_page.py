"""The page of a playbook, for one service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import indent

from runbooks.check_queries import Subject
from runbooks.check_section import step_section
from runbooks.checks import CHECKS
from runbooks.diagnosis_check import DiagnosisCheck
from runbooks.markdown import (
    INDEX,
    anchor,
    bullets,
    dashboard,
    document,
    neighbour_link,
    owner_text,
    page_link,
    plain,
    promql,
)
from runbooks.playbook import Action, Effort, Playbook
from runbooks.triage import all_checks
from slos.plan import Plan

_RESTART: Effort = "Needs a restart of the sidecar"
_RESTART_TITLE = "Restarting the sidecar"
_RESTART_TABLE = """\
What a restart costs depends on the sidecar's tap, which its arguments name:

| argument | requests | metrics |
|---|---|---|
| `--tap proxy=…` | New connections are refused until it listens again. Streams under way have \
`--tap-drain` (30s by default) to end, then they are cut. Take the instance out of traffic first, \
or send clients to the server's own port. | Every series is missing for a scrape or two; streams \
under way are not counted. |
| `--tap capture=…` | Not affected. | Every series is missing for a scrape or two; streams under \
way are not counted. |
| no `--tap` | Not affected. | Every series is missing for a scrape or two. |"""


def playbook_page(plan: Plan, playbook: Playbook, others: Mapping[str, Playbook]) -> str:
    """Write the page of a playbook; ``others`` are all of the service, by key."""
    return document(
        [
            f"# {playbook.title}",
            _owner(plan, playbook),
            "## Meaning",
            playbook.meaning,
            "## Impact",
            playbook.impact,
            "## Diagnosis",
            *_diagnosis(plan, playbook, others),
            "## Mitigation",
            *_mitigation(playbook),
            "## Verify",
            *_verify(plan, playbook),
            "## Escalate",
            playbook.escalate,
            f"Owner of the service: {owner_text(owner)}." if (owner := plan.service.owner) else "",
            "## Follow-up",
            bullets(playbook.follow_up),
            "## See also",
            bullets(_related(plan, playbook, others)),
        ]
    )


def _owner(plan: Plan, playbook: Playbook) -> str:
    owner = f" Owner of the cause: {playbook.layer}." if playbook.layer else ""
    return f"Service: {plan.service.service}.{owner}"


def _subject(plan: Plan, check: DiagnosisCheck) -> Subject | None:
    """Return the first objective that a check applies to, with all servers of the service."""
    fitting = (
        each
        for each in plan.objectives
        if check.key in all_checks(each) or (check.of_service and each.indicator.signals)
    )
    if (planned := next(fitting, None)) is None:
        return None
    return Subject(plan, planned, plan.causes_of(planned), whole_service=True)


def _diagnosis(plan: Plan, playbook: Playbook, others: Mapping[str, Playbook]) -> Iterator[str]:
    if playbook.diagram:
        yield f"```mermaid\n{playbook.diagram.strip()}\n```"
    steps = [
        (step, check, subject)
        for step in playbook.steps
        for check in (CHECKS[step.check],)
        if (subject := _subject(plan, check))
    ]
    own = {s.planned.objective.name: None for _, check, s in steps if check.per_objective}
    if own and len(plan.objectives) > 1:
        named = " and ".join(f"`{plain(name)}`" for name in own)
        yield (
            f"Queries about one objective are those of {named}; an alert's page has those of its "
            "own."
        )
    for number, (step, check, subject) in enumerate(steps, 1):
        other = others.get(check.points_to) if check.points_to != playbook.key else None
        yield from step_section(number, step, check, subject, other)


def _mitigation(playbook: Playbook) -> Iterator[str]:
    """Yield the mitigations as a numbered list, in the order to try them."""
    # MkDocs does not end an item with a nested list before an empty line.
    yield "\n\n".join(_item(number, action) for number, action in enumerate(playbook.actions, 1))
    if any(action.effort == _RESTART for action in playbook.actions):
        yield f"### {_RESTART_TITLE}"
        yield _RESTART_TABLE


def _item(number: int, action: Action) -> str:
    lines = [action.do]
    if len(settings := [_full_stop(line) for line in action.setting.splitlines()]) > 1:
        lines += ["", bullets(settings), ""]
    else:
        lines += [f"Setting: {each}" for each in settings]
    text = indent("\n".join([*lines, f"*{_cost(action)}*"]), "    ")
    return f"{number}. {text.lstrip()}"


def _full_stop(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _cost(action: Action) -> str:
    if action.effort == _RESTART:
        also = f", and {action.risk}" if action.risk else ""
        return f"{action.effort}. Risk: see [{_RESTART_TITLE}](#{anchor(_RESTART_TITLE)}){also}."
    risk = f"Risk: {action.risk.removesuffix('.')}." if action.risk else "No risk."
    return f"{action.effort}. {risk}"


def _verify(plan: Plan, playbook: Playbook) -> Iterator[str]:
    check = CHECKS[playbook.verified_by]
    if (subject := _subject(plan, check)) is None:
        yield "The alert ends with its short window."
        return
    yield f"The mitigation has worked when the answer to “{check.question}” is healthy again:"
    yield promql(check.query(subject))
    yield f"Expect {check.healthy(subject)}. Then watch the burn rate fall on the dashboard."


def _related(plan: Plan, playbook: Playbook, others: Mapping[str, Playbook]) -> Iterator[str]:
    up = "../"
    linked = {CHECKS[step.check].points_to for step in playbook.steps}
    for key in playbook.see:
        if key in others and key not in linked:
            yield neighbour_link(others[key])
    for planned in plan.causes:
        if planned.cause.runbook == playbook.key:
            yield f"Alert {page_link(planned.alert, up)}"
    yield dashboard(plan)
    yield f"[All pages of {plan.service.service}]({up}{INDEX})"
