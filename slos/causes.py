"""Cause alerts: conditions on signals that explain why objectives burn.

A cause alert explains a symptom, which is a burning objective.  Pages name the causes that fire
with them.  Most causes notify with low urgency by themselves; a hang pages.

Without events or data a condition has no element, instead of a NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slos.cause_conditions import (
    AGES,
    BATCH,
    FAILURES,
    MEANS,
    PAUSED,
    WASTED,
    WINDOW,
    Condition,
    Conditions,
    Recording,
    age_spikes,
    bad_version,
    kv_pressure,
    memory,
    not_ready,
    one,
    preempting,
    queue_growing,
    records_lost,
    retry_storm,
    signal_unavailable,
    slow_clients,
    slow_version,
    source_down,
    stuck,
    wasted_work,
)
from slos.indicators import INDICATORS
from slos.names import UNAVAILABLE_CAUSE
from slos.queries import Scope
from slos.signals import PROMPT_CLASS, TENANT

_PERCENT = "{{ $value | humanizePercentage }}"
_DURATION = "{{ $value | humanizeDuration }}"
_NUMBER = "{{ $value | humanize }}"


@dataclass(frozen=True, slots=True)
class CauseAlert:
    """A cause and its conditions.

    ``runbook`` is its key in the runbooks; ``symptoms`` are the indicators whose objectives it
    explains.  ``why`` links the condition to the cause in one sentence; ``details`` follow below
    the triage.  ``value`` describes the alert's value, with a template for it.  ``tier`` is its
    urgency; ``reads`` are the recorded series of its conditions.  ``by_instance`` is false where no
    series of the alert has an instance.
    """

    name: str
    runbook: str
    summary: str
    why: str
    symptoms: tuple[str, ...]
    lasting: str
    conditions: Conditions
    value: str = ""
    details: str = ""
    tier: str = "cause"
    reads: tuple[Recording, ...] = ()
    by_instance: bool = True


def conditions(alert: CauseAlert, scope: Scope) -> tuple[Condition, ...]:
    """Return the conditions of a cause on the servers of :func:`scope_of`."""
    return alert.conditions(scope)


def scope_of(selector: Mapping[str, str], service: str = "", needed: tuple[str, ...] = ()) -> Scope:
    """Return the scope of cause alerts: servers, without the tenant or prompt class of an SLO.

    Few signals are counted by these, and a ratio must not mix those with others.
    """
    servers = {
        name: value for name, value in selector.items() if name not in (TENANT, PROMPT_CLASS)
    }
    return Scope(servers, WINDOW, service=service, needed=needed)


def cause_labels(selector: Mapping[str, str]) -> Mapping[str, str]:
    """Return the labels of cause alerts for the servers that ``selector`` selects."""
    return scope_of(selector).selector


CAUSE_ALERTS: tuple[CauseAlert, ...] = (
    CauseAlert(
        "KvCachePressure",
        "kv_pressure",
        "sequences are queued because the KV cache is full",
        "The batch has free slots, and the KV cache is nearly full.",
        ("ttft", "e2e", "queue", "goodput", "kv_headroom"),
        "10m",
        one(kv_pressure),
        value=f"KV cache in use: {_PERCENT}",
        reads=(BATCH, PAUSED),
        details="TensorRT-LLM's default policy (GUARANTEED_NO_EVICT) schedules a sequence only "
        "when its whole response fits: so others are queued, and no sequence is paused.",
    ),
    CauseAlert(
        "SequencesPaused",
        "kv_pressure",
        "sequences are paused to make room in the KV cache",
        "With the policy MAX_UTILIZATION, and in vLLM, a full KV cache pauses running sequences: "
        "their streams stall, and their KV cache is computed again.",
        ("itl", "tpot", "e2e", "max_gap", "goodput", "kv_headroom"),
        "10m",
        one(preempting),
        value=f"Paused, at once or in a minute: {_NUMBER}",
        reads=(PAUSED,),
    ),
    CauseAlert(
        "QueueGrowing",
        "overload",
        "requests arrive faster than the engine serves them",
        "The queue is longer than a quarter of the maximum batch, and grows by more than one "
        "sequence per minute: the time to first token grows without limit.",
        ("ttft", "e2e", "queue", "goodput", "sequence_headroom"),
        "10m",
        one(queue_growing),
        value=f"Requests waiting: {_NUMBER}",
    ),
    CauseAlert(
        "DecodeStuck",
        "stuck_decode",
        "sequences are active, but no token is generated",
        "An engine with work iterates many times a second, but the sidecar has observed no "
        "token, iteration or finished request.",
        ("ttft", "itl", "e2e", "max_gap", "availability", "stream_completion", "goodput"),
        "1m",
        one(stuck),
        tier="page",
        details="Health endpoints still return 200.",
    ),
    CauseAlert(
        "ClientDisconnectsAtTimeout",
        "gateway_timeout",
        "clients disconnect at the same age: a time-out",
        "Users disconnect at any age; a time-out of a gateway or a client library disconnects at "
        "one.",
        ("ttft", "disconnects", "goodput"),
        "5m",
        one(age_spikes),
        value=f"Time-out: {_DURATION}",
        reads=(AGES,),
        details="At least half of all disconnects, and the latest, are within 5% of this age.",
    ),
    CauseAlert(
        "RetryStorm",
        "timeout_storm",
        "clients repeat requests that failed or timed out shortly before",
        "More than a tenth of all requests are retries, which add to the load that made the first "
        "attempt fail.",
        ("ttft", "queue", "availability", "goodput", "sequence_headroom"),
        "5m",
        one(retry_storm),
        value=f"Retries: {_PERCENT} of requests",
        details="Retries sustain the load after the original cause is gone.",
    ),
    CauseAlert(
        "SlowClients",
        "slow_clients",
        "clients read slowly",
        "Streams are blocked by their clients for more than a tenth of the time: gaps between "
        "tokens come from clients and networks, not from the server.",
        ("itl", "tpot", "e2e", "max_gap", "goodput"),
        "10m",
        one(slow_clients),
        value=f"Streams wait {_PERCENT} of the time",
    ),
    CauseAlert(
        "WastedWork",
        "wasted_work",
        "the server works for clients that have disconnected",
        "More than a tenth of all tokens are sent after their client has disconnected, while other "
        "requests wait for the GPU.",
        ("ttft", "queue", "disconnects", "kv_headroom", "sequence_headroom"),
        "10m",
        one(wasted_work),
        value=f"Wasted: {_PERCENT} of output tokens",
        reads=(WASTED,),
    ),
    CauseAlert(
        "EngineStatsLost",
        "records_lost",
        "records of the engine are lost before they are read",
        "Another reader consumes them, or their queue is too short: counts and estimates from "
        "them are too low.",
        ("itl", "kv_headroom", "sequence_headroom"),
        "15m",
        one(records_lost),
        value=f"Records lost in 10m: {_NUMBER}",
    ),
    CauseAlert(
        "ExporterSourceDown",
        "source_down",
        "the sidecar cannot scrape a source",
        "Signals of this source are withdrawn rather than served stale; objectives that need them "
        "cannot be measured.",
        tuple(INDICATORS),
        "5m",
        one(source_down),
    ),
    CauseAlert(
        UNAVAILABLE_CAUSE,
        "signal_unavailable",
        "the sidecar reports a signal as unavailable that objectives need",
        "The server does not provide the signal, or no tap observes its streams: its requests "
        "count as neither good nor bad.",
        tuple(INDICATORS),
        "30m",
        signal_unavailable,
        value="Servers without {{ $labels.signal }}: {{ $value }}",
        tier="ticket",
        by_instance=False,
        details="`tokenslo doctor` and the sidecar's status page give the reason and the fix.",
    ),
    CauseAlert(
        "ModelNotReady",
        "load_failure",
        "a model is not ready to serve",
        "The server runs and reports that this model or version is not loaded.",
        ("ttft", "availability", "goodput"),
        "5m",
        one(not_ready),
    ),
    CauseAlert(
        "GpuMemoryNearFull",
        "engine_death",
        "the memory of a GPU is nearly full",
        "Engines take most of it when they start, and without the last 2%, for activations and "
        "other processes, an engine dies in the middle of its streams.",
        ("availability", "stream_completion", "goodput"),
        "15m",
        one(memory),
        value=f"Memory in use: {_PERCENT}",
    ),
    CauseAlert(
        "BadVersion",
        "bad_rollout",
        "one version fails more often than the best one",
        "Its failure ratio is over three times that of the best version plus one percentage point.",
        ("availability", "stream_completion", "goodput"),
        "5m",
        bad_version,
        value=f"Failing: {_PERCENT} of requests of version {{{{ $labels.version }}}}",
        reads=(FAILURES,),
        details="The versions share one kind of traffic, so the version makes the difference.",
    ),
    CauseAlert(
        "SlowVersion",
        "bad_rollout",
        "one version is slower than the best one",
        "Its mean time to the first token, or between tokens (label signal), is more than twice "
        "that of the best version.",
        ("ttft", "itl", "tpot", "e2e", "max_gap", "goodput"),
        "5m",
        slow_version,
        value=f"Mean {{{{ $labels.signal }}}} of version {{{{ $labels.version }}}}: {_DURATION}",
        reads=tuple(MEANS.values()),
        details="The versions share one kind of traffic, so the version makes the difference; "
        "often no request fails.",
    ),
)
"""In the order of the generated file."""
