"""A diagnosis as text for a terminal, and as Markdown for an incident channel."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.check_results import CheckResult
from diagnosis.diagnosis import Diagnosis, RankedCause
from diagnosis.verdict import title

_RANKED = 3
_MARKS = {"healthy": "ok", "sick": "SICK", "no_data": "no data", "failed": "FAILED"}


def as_text(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as plain text: the checks in order, then the verdict."""
    lines = [*_headline(diagnosis), "", "Checks:"]
    for check in diagnosis.checks:
        lines += _check_lines(check)
    lines += ["", *_summary(diagnosis)]
    return "\n".join(lines) + "\n"


def as_markdown(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as Markdown that GitHub and Slack render: the verdict first, no tables."""
    lines = [f"**{line}**" if n == 0 else line for n, line in enumerate(_headline(diagnosis))]
    lines += ["", *_bullets(_summary(diagnosis)), "", "Sick and failed checks:", ""]
    lines += [_bullet(each) for each in diagnosis.checks if each.verdict in ("sick", "failed")] or [
        "- none"
    ]
    lines += [
        "",
        f"Healthy: {_keys(diagnosis, 'healthy')}.",
        "",
        f"No data: {_keys(diagnosis, 'no_data')}.",
    ]
    return "\n".join(lines) + "\n"


def _keys(diagnosis: Diagnosis, verdict: str) -> str:
    found = (each.key for each in diagnosis.checks if each.verdict == verdict)
    return ", ".join(dict.fromkeys(found)) or "none"


def _headline(diagnosis: Diagnosis) -> Iterator[str]:
    about = f"{diagnosis.service}: {verdict_text(diagnosis)}"
    yield about
    if diagnosis.alert:
        yield f"{diagnosis.alert} is {diagnosis.alert_state}."
    yield f"Firing: {', '.join(diagnosis.firing) or 'no alert'}."
    rates = [
        f"{each.name} {each.burn_rate:.3g}x"
        for each in diagnosis.objectives
        if each.burn_rate is not None
    ]
    yield f"Burn rates: {', '.join(rates) or 'no data'}."


def verdict_text(diagnosis: Diagnosis) -> str:
    """Return the verdict as a phrase."""
    first, second = diagnosis.decision.between
    match diagnosis.verdict:
        case "likely":
            cause = diagnosis.causes[0]
            return f"{cause.title} is likely ({cause.probability:.0%})"
        case "no_incident":
            return "no incident"
        case "no_data":
            return "no diagnosis: no check has data"
        case _:
            return f"cannot tell between {title(first)} and {title(second)}"


def _summary(diagnosis: Diagnosis) -> Iterator[str]:
    decision = diagnosis.decision
    yield f"Verdict: {verdict_text(diagnosis)}, because {decision.because}."
    named = _named(diagnosis)
    for cause in named:
        yield from _cause_lines(cause)
    ranked = ", ".join(
        f"{each.title} {each.probability:.0%}" for each in diagnosis.causes[:_RANKED]
    )
    yield f"Ranked: {ranked}."
    if decision.decide and diagnosis.verdict != "no_incident":
        yield f"What would decide: {decision.decide}"
    for cause in named[:1]:
        yield from _mitigation(cause)
    if diagnosis.sidecar and diagnosis.sidecar.error:
        yield f"Sidecar: {diagnosis.sidecar.url} cannot be read: {diagnosis.sidecar.error}."


def _named(diagnosis: Diagnosis) -> list[RankedCause]:
    """Return the causes that the verdict names and that have a playbook."""
    count = {"likely": 1, "cannot_tell": 2}.get(diagnosis.verdict, 0)
    return [each for each in diagnosis.causes[:count] if each.playbook]


def _cause_lines(cause: RankedCause) -> Iterator[str]:
    assert cause.playbook is not None  # noqa: S101  (of named causes)
    yield f"{cause.title} (layer: {cause.playbook.layer})"
    yield f"  For: {', '.join(cause.supports) or 'nothing'}."
    yield f"  Against: {', '.join(cause.contradicts) or 'nothing'}."
    yield f"  Playbook: {cause.page}"


def _mitigation(cause: RankedCause) -> Iterator[str]:
    assert cause.playbook is not None  # noqa: S101  (of named causes)
    action = cause.playbook.actions[0]
    yield f"First mitigation: {action.do}"
    if action.setting:
        yield f"  Setting: {action.setting}"
    if action.risk:
        yield f"  Risk: {action.risk}."
    yield f"  {action.effort}. Verified by the check {cause.playbook.verified_by}."


def _check_lines(check: CheckResult) -> Iterator[str]:
    of = f" [{check.objective}]" if check.objective else ""
    yield f"  {_MARKS[check.verdict]:8}{check.key}{of}: {check.question}"
    yield f"          {_finding(check)}"


def _finding(check: CheckResult) -> str:
    parts = [check.value or "no result", f"healthy: {check.healthy}", check.reason]
    return "; ".join(filter(None, parts))


def _bullet(check: CheckResult) -> str:
    of = f" ({check.objective})" if check.objective else ""
    return f"- **{_MARKS[check.verdict]}** `{check.key}`{of} {check.question} {_finding(check)}"


def _bullets(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield f"  - {line.strip()}" if line.startswith(" ") else f"- {line}"
