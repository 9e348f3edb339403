"""A diagnosis as text for a terminal, and as Markdown for an incident channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from diagnosis.check_results import CheckResult, CheckVerdict
from diagnosis.diagnosis import Diagnosis, RankedCause
from diagnosis.verdict import title

_RANKED = 3
_EVIDENCE = 5
"""The most checks that are listed for or against a cause."""
MARKS: dict[CheckVerdict, str] = {
    "healthy": "ok",
    "sick": "SICK",
    "no_data": "no data",
    "failed": "FAILED",
}


def as_text(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as plain text: the checks in order, then the conclusion."""
    width = max(len(_name(check)) for check in diagnosis.checks)
    lines = [
        headline(diagnosis),
        *_states(diagnosis),
        "",
        "Checks:",
        *(line for check in diagnosis.checks for line in _check_lines(check, width)),
        "",
        *_conclusion(diagnosis),
    ]
    return "\n".join(lines) + "\n"


def as_markdown(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as Markdown that GitHub and Slack render: the conclusion first."""
    checks = diagnosis.checks
    urgent = [check for check in checks if check.verdict in ("sick", "failed")]
    lines = [
        f"**{headline(diagnosis)}**",
        "",
        *_bullets(_states(diagnosis)),
        *_bullets(_conclusion(diagnosis)),
        "",
        "Sick and failed checks:",
        "",
        *(f"- **{MARKS[each.verdict]}** `{each.key}`: {_finding(each)}" for each in urgent),
        *(["- none"] if not urgent else []),
        "",
        f"Healthy: {_keys(checks, 'healthy')}.",
        "",
        f"No data: {_keys(checks, 'no_data')}.",
    ]
    return "\n".join(lines) + "\n"


def headline(diagnosis: Diagnosis) -> str:
    """Return service and verdict in one line."""
    return f"{diagnosis.service}: {verdict_text(diagnosis)}"


def verdict_text(diagnosis: Diagnosis) -> str:
    """Return the verdict as a phrase."""
    first, second, *_ = diagnosis.causes
    match diagnosis.verdict:
        case "likely":
            return f"{first.title}, likely ({first.probability:.0%})"
        case "no_incident":
            return "no incident"
        case "no_data":
            return "no diagnosis, because no check has data"
        case _:
            return (
                f"cannot tell between {first.title} ({first.probability:.0%}) and {second.title} "
                f"({second.probability:.0%})"
            )


def _states(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.alert:
        yield f"{diagnosis.alert} is {diagnosis.alert_state}."
    yield f"Firing: {', '.join(diagnosis.firing) or 'no alert'}."
    rates = [
        f"{each.name} {each.burn_rate:.3g}x"
        for each in diagnosis.objectives
        if each.burn_rate is not None
    ]
    yield f"Burn rates: {', '.join(rates) or 'no data'}."
    if diagnosis.sidecar and diagnosis.sidecar.error:
        yield f"The sidecar at {diagnosis.sidecar.url} cannot be read: {diagnosis.sidecar.error}."


def _check_lines(check: CheckResult, width: int) -> Iterator[str]:
    start = f"  {MARKS[check.verdict]:8}{_name(check):{width}}"
    if check.has_data and check.verdict == "healthy":
        yield f"{start}  {_finding(check)}"
        return
    yield f"{start}  {check.question}"
    yield f"{'':{width + 12}}{_finding(check)}"


def _name(check: CheckResult) -> str:
    return f"{check.key} ({check.objective})" if check.objective else check.key


def _finding(check: CheckResult) -> str:
    """State the result and the healthy one, or the reason why there is none."""
    if not check.has_data:
        return f"{check.reason}; healthy: {check.healthy}"
    found = f"{check.value or 'no result'}; healthy: {check.healthy}"
    return f"{found}; {check.reason}" if check.reason else found


def _keys(checks: Iterable[CheckResult], verdict: CheckVerdict) -> str:
    found = (each.key for each in checks if each.verdict == verdict)
    return ", ".join(dict.fromkeys(found)) or "none"


def _conclusion(diagnosis: Diagnosis) -> Iterator[str]:
    decision = diagnosis.decision
    yield f"Verdict: {verdict_text(diagnosis)}."
    yield f"Because {decision.because}."
    named = _named(diagnosis)
    for cause in named:
        yield from _evidence(diagnosis, cause)
    ranked = diagnosis.causes[:_RANKED]
    yield f"Ranked: {', '.join(f'{each.title} {each.probability:.0%}' for each in ranked)}."
    if decision.decided_by or (decision.decide and diagnosis.verdict == "cannot_tell"):
        first, second = decision.between
        yield f"Decides between {title(first)} and {title(second)}: {decision.decide}"
    if named:
        yield from _mitigation(named[0])


def _named(diagnosis: Diagnosis) -> list[RankedCause]:
    """Return the causes that the verdict names and that have a playbook."""
    count = {"likely": 1, "cannot_tell": 2}.get(diagnosis.verdict, 0)
    return [each for each in diagnosis.causes[:count] if each.playbook]


def _evidence(diagnosis: Diagnosis, cause: RankedCause) -> Iterator[str]:
    assert cause.playbook is not None  # noqa: S101  (of named causes)
    yield f"{cause.title} (layer: {cause.playbook.layer})"
    for word, keys in (("for", cause.supports), ("against", cause.contradicts)):
        yield f"  {word}: {'; '.join(_results(diagnosis, keys)) or 'nothing'}"


def _results(diagnosis: Diagnosis, keys: Sequence[str]) -> Iterator[str]:
    for key in keys[:_EVIDENCE]:
        if check := diagnosis.check(key):
            value = f" ({check.value})" if check.value else ""
            yield f"{key} is {check.verdict}{value}"
    if len(keys) > _EVIDENCE:
        yield f"{len(keys) - _EVIDENCE} more"


def _mitigation(cause: RankedCause) -> Iterator[str]:
    assert cause.playbook is not None  # noqa: S101  (of named causes)
    action = cause.playbook.actions[0]
    yield f"First mitigation: {action.do}"
    for setting in action.setting.splitlines():
        yield f"  setting: {setting}"
    if action.risk:
        yield f"  risk: {action.risk}"
    yield f"  effort: {action.effort.lower()}"
    yield f"  verified by: the check {cause.playbook.verified_by} is healthy"
    yield f"Playbook: {cause.page}"


def _bullets(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield f"  - {line.strip()}" if line.startswith(" ") else f"- {line}"
