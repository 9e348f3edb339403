"""Data model between sources and the store: a snapshot of measurements per scrape.

Sources parse bytes and return a :class:`Snapshot`.  The store chooses between methods, keeps
counters monotone and drops stale series.  This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Quality = Literal["exact", "estimate"]
Labels = tuple[tuple[str, str], ...]
"""Label pairs besides ``model``, ``version`` and the signal's fixed labels, sorted by name."""

UNLABELLED: Labels = ()
Model = tuple[str, str]
"""Name and version."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A cumulative histogram as a server reports it.

    ``boundaries`` are ascending upper bounds in seconds and end with ``inf``; ``counts[i]``
    observations were at most ``boundaries[i]``.  A source with only count and sum has the single
    boundary ``inf``.
    """

    boundaries: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    @property
    def count(self) -> float:
        """The number of observations."""
        return self.counts[-1]


Value = float | Distribution


def zero_of(value: Value) -> Value:
    """Return the zero value of a counter or histogram."""
    if isinstance(value, Distribution):
        return Distribution(value.boundaries, (0.0,) * len(value.boundaries), 0.0)
    return 0.0


def count_of(value: Value) -> float:
    """Return the value of a counter, or the number of observations of a histogram."""
    return value.count if isinstance(value, Distribution) else value


@dataclass(frozen=True, slots=True)
class Measurement:
    """The samples of one signal of one model by one method.

    ``method`` is a key of :data:`exporter.methods.METHODS`.  Counters and distributions are
    totals; gauges are current values.  ``note`` adds errors of this measurement to the method's own
    note.

    ``start_time`` (monotonic seconds) is when the totals were zero, the created timestamp of
    OpenMetrics.  Only totals that the sidecar keeps have one, because a server's may be older than
    the sidecar.  It changes when totals begin anew, and stays when their ``method`` changes.
    """

    signal: str
    model: str
    version: str
    method: str
    samples: Mapping[Labels, Value]
    note: str = ""
    start_time: float | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """A signal that is unavailable from a source for a model, with reason and fix.

    ``unread`` means unknown in this scrape, because a part of the source did not respond: previous
    samples stay until they are stale.
    """

    signal: str
    model: str
    version: str
    reason: str
    fix: str
    unread: bool = False


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model as a server reports it.

    ``backend`` is Triton's backend name, or ``ensemble``; empty if the server reports none.
    ``excluded`` is the reason if the model has no series, otherwise empty.
    """

    model: str
    version: str
    backend: str = ""
    decoupled: bool = False
    ready: bool = True
    reason: str = ""
    excluded: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Result of one scrape of one source.

    ``parts`` has the error or None of each separately read part, such as an endpoint, by name.
    ``lost_records`` counts records known to be missing since the source was made; None where losses
    cannot occur or cannot be detected.  ``waiting_streams`` counts, by model, streams that wait for
    a token.
    """

    source: str
    measurements: tuple[Measurement, ...] = ()
    missing: tuple[Missing, ...] = ()
    models: tuple[ModelInfo, ...] = ()
    engine_stats_age: Mapping[tuple[str, str], float] = field(default_factory=dict)
    ready: bool | None = None
    parts: Mapping[str, SourceError | None] = field(default_factory=dict)
    lost_records: int | None = None
    waiting_streams: Mapping[Model, int] = field(default_factory=dict)


class SourceError(Exception):
    """A scrape failed; ``kind`` is its label value, the message has the fix."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)
