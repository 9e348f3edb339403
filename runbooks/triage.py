"""Triage by alert and indicator: impact, checks in order, and the playbooks that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from runbooks.check_queries import Subject
from runbooks.checks import CHECKS
from runbooks.diagnosis_check import DiagnosisCheck
from runbooks.playbook import Playbook
from runbooks.playbooks import PLAYBOOKS
from runbooks.playbooks.generic import GENERIC as GENERIC_PLAYBOOKS
from slos.generic_events import bad_share
from slos.indicators import GENERIC
from slos.plan import Plan, PlannedAlert, PlannedObjective

IMPACT: Mapping[str, str] = {
    **dict.fromkeys(
        GENERIC,
        "Users of this service get less than its objective; its own documentation says what they "
        "notice.",
    ),
    "ttft": (
        "Users wait for the first words of an answer. At the timeout of a client or gateway (10 "
        "to 60 s) they give up and retry, which adds load."
    ),
    "itl": (
        "Answers stutter. Users read slower than a healthy server writes, so they notice the "
        "pauses only."
    ),
    "max_gap": (
        "Answers freeze in the middle, long enough to notice. An idle timeout of a gateway may "
        "cut them there."
    ),
    "tpot": (
        "Answers come slowly. Each stream holds its slot and its KV-cache blocks for longer, so "
        "the queue grows."
    ),
    "e2e": (
        "Whole answers take too long. Clients without streaming wait for all of it and give up at "
        "their timeout."
    ),
    "queue": (
        "Requests wait before the engine starts them, and users wait as long for the first token. "
        "The queue grows while the load exceeds the capacity."
    ),
    "availability": (
        "Requests fail, are shed or time out in the server. Clients that retry at once add load."
    ),
    "stream_completion": (
        "Answers break off in the middle. Programs that parse them get nothing of use, and "
        "retries repeat the whole work."
    ),
    "disconnects": (
        "Clients give up on answers. The work for them is wasted, and retries repeat it."
    ),
    "goodput": (
        "Requests fail, or are answered too late, too slowly or with stalls. Each counts once, "
        "however many clauses it fails."
    ),
    "kv_headroom": (
        "No user may notice yet, but the next long prompt has no room: requests wait "
        "(guaranteed_no_evict), or running streams are paused and computed again (max_utilization)."
    ),
    "sequence_headroom": (
        "No user may notice yet, but the next burst waits inside the engine, and time to first "
        "token grows."
    ),
}
"""By indicator: what users notice."""

_LAST = ("stuck", "sources", "estimate")
"""These come last: cause alerts of their own detect what the first two find."""
_PACE = ("paused", "versions", "output", "reading", "batch", "prompts", *_LAST)
BURN_CHECKS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(GENERIC, ("goes_on", "more_events")),
    "ttft": (
        "no_evict_waiting", "waiting", "versions", "not_ready", "prompts", "recent_start",
        "prefill_slow", "died", "retries", "gateway", *_LAST,
    ),
    "itl": _PACE,
    "tpot": _PACE,
    "max_gap": _PACE,
    "e2e": (
        "waiting", "versions", "output", "paused", "answers", "reading", *_LAST,
    ),
    "queue": ("no_evict_waiting", "arrivals", "retries", "rejections", "prompts", *_LAST),
    "availability": (
        "errors", "versions", "not_ready", "rejections", "server_timeouts", "memory", *_LAST,
    ),
    "stream_completion": (
        "broken", "errors", "not_ready", "server_timeouts", "versions", "memory", *_LAST,
    ),
    "disconnects": (
        "ages", "early", "reading", "waiting", "versions", "answers", "wasted", "retries", *_LAST,
    ),
    "goodput": (
        "clause", "errors", "waiting", "paused", "versions", "prompts", "output", "reading",
        *_LAST,
    ),
    "kv_headroom": (
        "paused", "no_evict_waiting", "arrivals", "wasted", "prompts", *_LAST,
    ),
    "sequence_headroom": (
        "waiting", "no_evict_waiting", "arrivals", "retries", "wasted", "prompts", "output", *_LAST,
    ),
}  # fmt: skip
"""By indicator: the checks of a burn-rate alert.

Those that separate most playbooks come first.  The others are on the pages of their playbooks.
"""


def checks(subject: Subject, alert: PlannedAlert) -> tuple[DiagnosisCheck, ...]:
    """Return the checks of an alert, in order.

    Errors at low traffic have none: the page of the burn-rate alert has them.
    """
    keys = _CHECKS[alert.kind](subject.planned)
    if alert.kind == "burn" and subject.causes:
        keys = ("cause_alerts", *keys)
    return tuple(CHECKS[key] for key in keys)


def all_checks(planned: PlannedObjective) -> frozenset[str]:
    """Return the keys of the checks that apply to an objective."""
    return frozenset(key for of_kind in _CHECKS.values() for key in of_kind(planned))


def playbooks(found: Iterable[DiagnosisCheck], alert: PlannedAlert) -> tuple[Playbook, ...]:
    """Return the playbooks that an alert's checks lead to, in their order."""
    keys = (*_ALWAYS.get(alert.kind, ()), *(check.points_to for check in found))
    return tuple(PLAYBOOKS[key] for key in dict.fromkeys(keys) if key)


def playbooks_of(plan: Plan) -> tuple[Playbook, ...]:
    """Return the playbooks of a service: all but those of other metrics, and those it leads to."""
    keys = {planned.cause.runbook for planned in plan.causes}
    for planned, alert in plan.alerts():
        keys |= {each.key for each in playbooks(checks(Subject(plan, planned), alert), alert)}
    if any(planned.indicator.signals for planned in plan.objectives):
        keys |= PLAYBOOKS.keys() - {each.key for each in GENERIC_PLAYBOOKS}
    return tuple(each for each in PLAYBOOKS.values() if each.key in keys)


_ALWAYS: Mapping[str, tuple[str, ...]] = {
    "exhausted": ("budget_spent",),
    "policy": ("budget_spent",),
}


def _absent_checks(planned: PlannedObjective) -> tuple[str, ...]:
    if planned.objective.queries:
        return ("queries",)
    threshold = ("threshold",) if planned.measures_latency else ()
    return ("sources", "unavailable", "selected", *threshold)


def _burn_checks(planned: PlannedObjective) -> tuple[str, ...]:
    instances = ("instances",) if bad_share(planned.objective, ()) is not None else ()
    return (*BURN_CHECKS[planned.objective.indicator], *instances)


def _spent_checks(_: PlannedObjective) -> tuple[str, ...]:
    return ("still_burning",)


def _inconsistent_checks(planned: PlannedObjective) -> tuple[str, ...]:
    if planned.events.inconsistent is None:
        return ()
    return ("contradiction", *(("sources", "estimate") if planned.indicator.signals else ()))


_CHECKS: Mapping[str, Callable[[PlannedObjective], tuple[str, ...]]] = {
    "burn": _burn_checks,
    "low_traffic": lambda _: (),
    "exhausted": _spent_checks,
    "policy": _spent_checks,
    "absent": _absent_checks,
    "inconsistent": _inconsistent_checks,
}
