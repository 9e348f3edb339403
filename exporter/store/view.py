"""The view: the current state of all signals, sources and models, made by the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Literal, NamedTuple

from exporter.samples import UNLABELLED, Distribution, Labels, Model, ModelInfo, Value

_NO_SAMPLES: Mapping[Labels, Value] = MappingProxyType({})


class SignalState(NamedTuple):
    """The current state of one signal of one model.

    ``samples`` is empty when ``quality`` is ``unavailable``; then ``note`` is the reason and
    ``fix`` how to get it; ``reason`` is the reason without what changes from scrape to scrape, for
    a label.  Otherwise ``note`` states a limitation of the method.
    ``recent`` summarizes the last minute as text ("p50 0.21 s, p95 0.74 s"), and ``last_minute``
    is the increase of counters and histograms in it; only the status page uses both.
    ``stale`` is true if the signal is unavailable because its source stopped responding.
    """

    signal: str
    model: str
    version: str
    method: str
    quality: Literal["exact", "estimate", "unavailable"]
    samples: Mapping[Labels, Value]
    note: str = ""
    fix: str = ""
    reason: str = ""
    recent: str = ""
    last_minute: Mapping[Labels, Value] = _NO_SAMPLES
    stale: bool = False


def gauge(states: Mapping[str, SignalState], signal: str) -> float | None:
    """Return the value of a gauge without labels, None if it is unavailable."""
    value = states[signal].samples.get(UNLABELLED) if signal in states else None
    return None if isinstance(value, Distribution) else value


@dataclass(frozen=True, slots=True)
class SourceState:
    """The health of one source: ``age`` (seconds) is None before its first successful snapshot.

    ``lost_records`` is None for sources that cannot detect losses.
    """

    source: str
    up: bool
    age: float | None
    read_seconds: float | None
    error: str
    errors: Mapping[str, int]
    ready: bool | None
    lost_records: int | None = None


@dataclass(frozen=True, slots=True)
class WaitingStreams:
    """The streams of a model that waited for a token at ``at`` (monotonic seconds)."""

    at: float
    count: int


@dataclass(frozen=True)
class View:
    """The state of all signals, sources and models, in a stable order.

    ``by_model`` has the states of every model by signal.
    ``waiting_streams`` contains every model that a tap sees, also with a count of 0.
    ``slices`` are the evaluated time slices of objectives.
    ``unseen`` are counters, at zero, of models that no source has seen
    (:mod:`exporter.objectives.unseen_models`).
    """

    by_model: Mapping[Model, Mapping[str, SignalState]]
    sources: tuple[SourceState, ...]
    models: tuple[ModelInfo, ...]
    engine_stats_age: Mapping[Model, float]
    waiting_streams: Mapping[Model, WaitingStreams] = field(default_factory=dict)
    unseen: tuple[SignalState, ...] = ()
    slices: tuple[SignalState, ...] = ()

    @cached_property
    def signals(self) -> tuple[SignalState, ...]:
        """The states of all models."""
        return tuple(chain.from_iterable(states.values() for states in self.by_model.values()))


def grouped_by_model(signals: Iterable[SignalState]) -> dict[Model, dict[str, SignalState]]:
    """Return the states of every model by signal, in the same order."""
    found: dict[Model, dict[str, SignalState]] = {}
    for state in signals:
        found.setdefault((state.model, state.version), {})[state.signal] = state
    return found
