"""The load of one model: sequences, KV cache, and the current bottleneck."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from exporter.samples import count_of
from exporter.store.view import SignalState, gauge

# The same shares as in the conditions of cause alerts.
FULL_BATCH = 0.9
FULL_CACHE = 0.8
NEARLY_FULL = 0.95
"""Share of the KV cache or of the maximum sequences that is a limit even if no sequence waits."""

Signals = Mapping[str, SignalState]
Resource = Literal["kv_cache", "sequences", "queue"]

_TRAFFIC = ("requests", "ttft", "itl", "e2e", "output_tokens")
_IN_FLIGHT = ("sequences_active", "live_streams")


@dataclass(frozen=True, slots=True)
class Limit:
    """The current bottleneck of a model, and the evidence."""

    resource: Resource
    text: str


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """Gauges of one model, and preemptions in the last minute; None if unavailable."""

    active: float | None
    waiting: float | None
    paused: float | None
    maximum: float | None
    kv_utilization: float | None
    preemptions: float | None

    @property
    def busy_share(self) -> float | None:
        """The share of the maximum sequences that is active."""
        if self.active is None or not self.maximum:
            return None
        return self.active / self.maximum

    def limit(self) -> Limit | None:
        """Return the current bottleneck, None without one."""
        waits = f", {self.waiting:,.0f} waiting" if self.waiting else ""
        if self.paused or self.preemptions:
            count = self.preemptions or self.paused
            when = " in the last minute" if self.preemptions else ""
            cache = "" if self.kv_utilization is None else f" at {self.kv_utilization:.0%}"
            return Limit("kv_cache", f"KV cache{cache}: {count:,.0f} preempted{when}{waits}")
        batch, cache_share = self.busy_share, self.kv_utilization
        if batch is not None and batch >= (FULL_BATCH if self.waiting else NEARLY_FULL):
            return Limit(
                "sequences", f"sequences: {self.active:,.0f} of {self.maximum:,.0f} active{waits}"
            )
        if cache_share is not None and cache_share >= (FULL_CACHE if self.waiting else NEARLY_FULL):
            return Limit("kv_cache", f"KV cache: {cache_share:.0%} used{waits}")
        if self.waiting and self.waiting >= 1:
            return Limit("queue", f"queue: {self.waiting:,.0f} waiting")
        return None


def model_load(signals: Signals) -> ModelLoad:
    """Return the load that the signals of one model show."""
    return ModelLoad(
        active=gauge(signals, "sequences_active"),
        waiting=gauge(signals, "sequences_waiting"),
        paused=gauge(signals, "sequences_paused"),
        maximum=gauge(signals, "sequences_max"),
        kv_utilization=gauge(signals, "kv_utilization"),
        preemptions=last_minute(signals.get("preemptions")),
    )


def last_minute(state: SignalState | None) -> float | None:
    """Return the events of the last minute, None if the signal is unavailable."""
    if state is None or not state.samples:
        return None
    return sum(map(count_of, state.last_minute.values()))


def has_traffic(signals: Signals) -> bool | None:
    """Return whether a model had requests in the last minute, None if that is not measured."""
    counts = [last_minute(signals.get(key)) for key in _TRAFFIC]
    values = [*counts, *(gauge(signals, key) for key in _IN_FLIGHT)]
    measured = [value for value in values if value is not None]
    return any(measured) if measured else None
