"""Which page says what: impact and diagnosis for every kind of alert and every indicator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runbooks.causes import CAUSES, Cause
from runbooks.checks import CHECKS, Check
from slos.plan import PlannedAlert, PlannedObjective

IMPACT: Mapping[str, str] = {
    "ttft": (
        "Users look at an empty answer. Once the wait reaches the timeout of a client or gateway "
        "(10 to 60 s are common) requests are given up and sent again, which makes it worse: this "
        "alert is the time to act before that."
    ),
    "itl": (
        "Answers stutter: they stop in the middle and go on. Users read slower than a healthy "
        "server writes, so what they notice is the pauses."
    ),
    "max_gap": (
        "Answers freeze for a while in the middle. Each counted stream had at least one pause that "
        "its reader noticed; an idle timeout on the way may cut it there."
    ),
    "tpot": (
        "Answers come slowly from beginning to end, every stream holds its slot and its KV-cache "
        "blocks for longer, and the queue grows behind them."
    ),
    "e2e": (
        "Answers take too long as a whole. Callers without streaming wait for all of it, and give "
        "up at their timeout."
    ),
    "queue": (
        "Requests wait before the engine begins with them. Users see the same wait before the "
        "first token; it grows without limit while more comes in than goes out."
    ),
    "availability": (
        "Requests fail, are rejected, or time out in the server. Clients that retry at once add "
        "load to a server in trouble."
    ),
    "kv_headroom": (
        "Perhaps nobody is hurt yet, but there is no room for the next long prompt. Then requests "
        "wait (guaranteed_no_evict) or running streams are paused and computed again "
        "(max_utilization), and time to first token or token pace follow."
    ),
    "sequence_headroom": (
        "Perhaps nobody is hurt yet, but the batch is nearly full. The next burst waits inside the "
        "engine, and time to first token grows."
    ),
}

_FIRST = ("sources", "stuck")
BURN_CHECKS: Mapping[str, tuple[str, ...]] = {
    "ttft": (
        *_FIRST, "versions", "died", "waiting", "batch", "kv", "paused", "prompts", "arrivals",
        "reuse", "gateway", "estimate",
    ),
    "itl": (*_FIRST, "versions", "paused", "kv", "batch", "prompts", "output", "estimate"),
    "tpot": (*_FIRST, "versions", "paused", "kv", "batch", "prompts", "output", "estimate"),
    "max_gap": (*_FIRST, "versions", "paused", "kv", "batch", "prompts", "output", "estimate"),
    "e2e": (
        *_FIRST, "versions", "waiting", "paused", "kv", "answers", "prompts", "output", "estimate",
    ),
    "queue": (*_FIRST, "waiting", "batch", "kv", "arrivals", "prompts", "answers", "estimate"),
    "availability": (
        *_FIRST, "errors", "rejections", "versions", "memory", "arrivals", "estimate",
    ),
    "kv_headroom": (
        *_FIRST, "paused", "waiting", "prompts", "answers", "arrivals", "reuse", "estimate",
    ),
    "sequence_headroom": (*_FIRST, "waiting", "kv", "arrivals", "answers", "output", "estimate"),
}  # fmt: skip


def checks(planned: PlannedObjective, alert: PlannedAlert) -> Iterator[Check]:
    """Yield the diagnosis steps of an alert's page, in order."""
    for key in _CHECKS[alert.kind](planned):
        yield CHECKS[key]


def causes(steps: tuple[Check, ...], alert: PlannedAlert) -> tuple[Cause, ...]:
    """Return what the page is to remedy: what the steps point to and what may be behind it."""
    keys = (*_ALWAYS[alert.kind], *(step.points_to for step in steps))
    also = (more for key in keys for more in (key, *CAUSES[key].see))
    return tuple(CAUSES[key] for key in dict.fromkeys(also))


_ALWAYS: Mapping[str, tuple[str, ...]] = {
    "burn": (),
    "exhausted": ("budget_spent",),
    "absent": (),
}


def _absent_checks(planned: PlannedObjective) -> tuple[str, ...]:
    edge = ("edge",) if planned.indicator.threshold == "seconds" else ()
    return ("scraped", "sources", "source_errors", "unavailable", "selected", *edge)


_CHECKS = {
    "burn": lambda planned: BURN_CHECKS[planned.objective.indicator],
    "exhausted": lambda planned: (
        ("still_burning", "versions", "estimate")
        if planned.indicator.threshold != "ratio"
        else ("still_burning", "estimate")
    ),
    "absent": _absent_checks,
}
