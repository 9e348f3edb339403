"""What the sidecar knows at one moment: the store makes it, exposition and status page show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from exporter.samples import Labels, Model, ModelInfo, Value


@dataclass(frozen=True, slots=True)
class SignalState:
    """One signal of one model now.

    ``samples`` is empty when ``quality`` is ``unavailable``; then ``note`` is the reason and
    ``fix`` what would bring it.  Otherwise ``note`` says what to keep in mind about the method.
    ``recent`` is a short text for people about the last minute ("p50 0.21 s, p95 0.74 s"), and
    ``last_minute`` the increase of counters and histograms in it; only the status page has both.
    """

    signal: str
    model: str
    version: str
    method: str
    quality: Literal["exact", "estimate", "unavailable"]
    samples: Mapping[Labels, Value]
    note: str = ""
    fix: str = ""
    recent: str = ""
    last_minute: Mapping[Labels, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceState:
    """The health of one source: ``age`` (seconds) is None before its first good reading.

    ``lost_records`` is None for sources that cannot tell.
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


@dataclass(frozen=True, slots=True)
class View:
    """Everything to be shown, in a stable order.

    ``waiting_streams`` has every model that a tap sees, also with none.
    ``slices`` are the judged time slices of objectives.
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

    def by_model(self) -> dict[Model, dict[str, SignalState]]:
        """Return the signals of every model by name, in the same order."""
        found: dict[Model, dict[str, SignalState]] = {}
        for state in self.signals:
            found.setdefault((state.model, state.version), {})[state.signal] = state
        return found
