"""The view: the current state of all signals, sources and models, made by the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Literal

from exporter.samples import UNLABELLED, Distribution, Labels, Model, ModelInfo, Value


@dataclass(frozen=True, slots=True)
class SignalState:
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
    last_minute: Mapping[Labels, Value] = field(default_factory=dict)
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

    ``waiting_streams`` contains every model that a tap sees, also with a count of 0.
    ``slices`` are the evaluated time slices of objectives.
    ``unseen`` are counters, at zero, of models that no source has seen
    (:mod:`exporter.objectives.unseen_models`).
    """

    signals: tuple[SignalState, ...]
    sources: tuple[SourceState, ...]
    models: tuple[ModelInfo, ...]
    engine_stats_age: Mapping[Model, float]
    waiting_streams: Mapping[Model, WaitingStreams] = field(default_factory=dict)
    unseen: tuple[SignalState, ...] = ()
    slices: tuple[SignalState, ...] = ()

    def by_model(self) -> Mapping[Model, Mapping[str, SignalState]]:
        """Return the signals of every model by name, in the same order."""
        return self._by_model

    @cached_property
    def _by_model(self) -> dict[Model, dict[str, SignalState]]:
        found: dict[Model, dict[str, SignalState]] = {}
        for model, states in groupby(self.signals, _model_of):
            found.setdefault(model, {}).update({state.signal: state for state in states})
        return found


_model_of = attrgetter("model", "version")
