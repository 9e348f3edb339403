"""Triage: impact, diagnosis checks and causes by alert and indicator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from runbooks.check_queries import Subject
from runbooks.checks import CHECKS
from runbooks.diagnosis_check import DiagnosisCheck
from runbooks.playbook import Playbook
from runbooks.playbooks import PLAYBOOKS
from slos.generic_events import bad_share
from slos.indicators import GENERIC
from slos.plan import PlannedAlert, PlannedObjective

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
        "Requests fail, are rejected or time out in the server. Clients that retry at once add "
        "load."
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

_FIRST = ("sources", "stuck")
_PACE = (
    *_FIRST, "versions", "paused", "kv", "batch", "prompts", "output", "reading", "estimate",
)  # fmt: skip
BURN_CHECKS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(GENERIC, ("goes_on", "more_events")),
    "ttft": (
        *_FIRST, "versions", "died", "waiting", "batch", "kv", "paused", "prompts", "arrivals",
        "retries", "reuse", "gateway", "ages", "estimate",
    ),
    "itl": _PACE,
    "tpot": _PACE,
    "max_gap": _PACE,
    "e2e": (
        *_FIRST, "versions", "waiting", "paused", "kv", "answers", "prompts", "output", "reading",
        "estimate",
    ),
    "queue": (*_FIRST, "waiting", "batch", "kv", "arrivals", "prompts", "answers", "estimate"),
    "availability": (
        *_FIRST, "errors", "rejections", "versions", "memory", "arrivals", "retries", "estimate",
    ),
    "stream_completion": (*_FIRST, "broken", "errors", "versions", "memory", "output", "estimate"),
    "disconnects": (
        *_FIRST, "ages", "early", "versions", "waiting", "paused", "answers", "reading", "wasted",
        "retries", "estimate",
    ),
    "goodput": (
        *_FIRST, "clause", "versions", "errors", "waiting", "batch", "kv", "paused", "prompts",
        "answers", "output", "reading", "estimate",
    ),
    "kv_headroom": (
        *_FIRST, "paused", "waiting", "prompts", "answers", "arrivals", "retries", "wasted",
        "reuse", "estimate",
    ),
    "sequence_headroom": (
        *_FIRST, "waiting", "kv", "arrivals", "retries", "answers", "wasted", "output", "estimate",
    ),
}  # fmt: skip


CAUSE_CHECKS: Mapping[str, tuple[str, ...]] = {
    "KvCachePressure": ("kv", "waiting", "batch", "prompts", "answers", "arrivals"),
    "SequencesPaused": ("paused", "kv", "prompts", "answers", "arrivals"),
    "QueueGrowing": ("waiting", "batch", "kv", "arrivals", "retries"),
    "DecodeStuck": ("sources", "stuck", "output"),
    "ClientDisconnectsAtTimeout": ("ages", "early", "gateway"),
    "RetryStorm": ("retries", "arrivals", "errors", "rejections"),
    "SlowClients": ("reading",),
    "WastedWork": ("wasted",),
    "EngineStatsLost": ("lost", "sources"),
    "ExporterSourceDown": ("scraped", "sources", "source_errors"),
    "SignalUnavailable": ("unavailable", "sources"),
    "ModelNotReady": ("sources", "memory"),
    "GpuMemoryNearFull": ("memory", "errors"),
    "BadVersion": ("versions", "errors"),
    "SlowVersion": ("versions", "prompts"),
}
"""By cause alert: the checks that confirm it or find its own cause."""


def checks(subject: Subject, alert: PlannedAlert) -> Iterator[DiagnosisCheck]:
    """Yield the diagnosis steps of an alert's page, in order."""
    planned = subject.planned
    if alert.kind in ("burn", "low_traffic") and subject.causes:
        yield CHECKS["cause_alerts"]
    for key in _CHECKS[alert.kind](planned):
        yield CHECKS[key]
    if alert.kind in ("burn", "low_traffic") and bad_share(planned.objective, ()) is not None:
        yield CHECKS["instances"]


def causes(steps: Sequence[DiagnosisCheck], alert: PlannedAlert) -> tuple[Playbook, ...]:
    """Return the causes of a page: those of its steps, and their own causes."""
    return with_root_causes((*_ALWAYS[alert.kind], *(step.points_to for step in steps)))


def with_root_causes(keys: Iterable[str]) -> tuple[Playbook, ...]:
    """Return causes by key, each followed by its own causes, without repetition."""
    also = (more for key in keys if key for more in (key, *PLAYBOOKS[key].see))
    return tuple(PLAYBOOKS[key] for key in dict.fromkeys(also) if key)


_ALWAYS: Mapping[str, tuple[str, ...]] = {
    "burn": (),
    "low_traffic": (),
    "exhausted": ("budget_spent",),
    "policy": ("budget_spent",),
    "absent": (),
    "inconsistent": ("contradiction",),
}


def _absent_checks(planned: PlannedObjective) -> tuple[str, ...]:
    if planned.objective.queries:
        return ("queries",)
    threshold = ("threshold",) if planned.measures_latency else ()
    return ("scraped", "sources", "source_errors", "unavailable", "selected", *threshold)


def _burn_checks(planned: PlannedObjective) -> tuple[str, ...]:
    return BURN_CHECKS[planned.objective.indicator]


def _spent_checks(planned: PlannedObjective) -> tuple[str, ...]:
    return ("still_burning", *(("estimate",) if planned.indicator.signals else ()))


_CHECKS: Mapping[str, Callable[[PlannedObjective], tuple[str, ...]]] = {
    "burn": _burn_checks,
    "low_traffic": _burn_checks,
    "exhausted": _spent_checks,
    "policy": _spent_checks,
    "absent": _absent_checks,
    "inconsistent": lambda planned: (
        "contradiction",
        *(("sources", "estimate") if planned.indicator.signals else ()),
    ),
}
