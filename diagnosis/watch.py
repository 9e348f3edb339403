"""Follow an incident: report changes until a mitigation has worked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from diagnosis.diagnosis import Diagnosis
from diagnosis.report_text import verdict_text
from runbooks.playbooks import PLAYBOOKS

INTERVAL = 15.0
"""Seconds between two evaluations."""


@dataclass(frozen=True, slots=True)
class Update:
    """One evaluation: the diagnosis, None if Prometheus did not answer, and lines of changes."""

    diagnosis: Diagnosis | None
    lines: tuple[str, ...]


def follow(
    read: Callable[[], Diagnosis],
    window: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Iterator[Update]:
    """Yield an update every :data:`INTERVAL` seconds, the last when the incident is over.

    It is over when, for ``window`` seconds, no objective burned faster than its budget allows and
    the check that verifies the mitigation was healthy.
    """
    before: Diagnosis | None = None
    verified_by = ""
    calm_since: float | None = None
    while True:
        now = read()
        if now.unanswered:
            calm_since = None
            yield Update(None, (now.unanswered,))
        else:
            verified_by = verified_by or _verified_by(now)
            lines = tuple(changes(before, now)) if before else ()
            before = now
            if not is_calm(now, verified_by):
                calm_since = None
            elif calm_since is None:
                calm_since = clock()
            if calm_since is not None and clock() - calm_since >= window:
                yield Update(now, (*lines, _over(verified_by, window)))
                return
            yield Update(now, lines)
        sleep(INTERVAL)


def is_calm(diagnosis: Diagnosis, verified_by: str) -> bool:
    """Whether every objective burns below 1, and the check of the mitigation is healthy."""
    rates = [each.burn_rate for each in diagnosis.objectives]
    if not all(rate is not None and rate < 1 for rate in rates):
        return False
    check = diagnosis.check(verified_by) if verified_by else None
    return not verified_by or (check is not None and check.verdict == "healthy")


def changes(before: Diagnosis, now: Diagnosis) -> Iterator[str]:
    """Yield what differs between two diagnoses, one line each."""
    for alert in now.firing:
        if alert not in before.firing:
            yield f"{alert} fires"
    for alert in before.firing:
        if alert not in now.firing:
            yield f"{alert} has ended"
    was = {(each.key, each.objective): each.verdict for each in before.checks}
    for check in now.checks:
        earlier = was.get((check.key, check.objective))
        if earlier not in (None, check.verdict):
            value = f" ({check.value or check.reason})" if check.value or check.reason else ""
            yield f"{check.key}: {earlier} -> {check.verdict}{value}"
    if verdict_text(before) != verdict_text(now):
        yield f"Verdict: {verdict_text(now)}"


def _verified_by(diagnosis: Diagnosis) -> str:
    """Return the check that verifies the mitigation of the cause, empty without one."""
    return PLAYBOOKS[diagnosis.cause.key].verified_by if diagnosis.cause else ""


def _over(verified_by: str, window: float) -> str:
    minutes = f"{window / 60:g} min"
    if not verified_by:
        return f"No objective has burned above 1 for {minutes}: there is no incident now."
    return (
        f"The mitigation has worked: for {minutes} the check {verified_by} is healthy and no "
        "objective burns above 1."
    )
