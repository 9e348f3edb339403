"""What one look at one source found: the only currency between sources and the store.

Sources interpret bytes and return a :class:`Snapshot`; the store chooses between methods, keeps
counters monotone and forgets what is stale.  Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Quality = Literal["exact", "estimate"]
Labels = tuple[tuple[str, str], ...]
"""Label pairs beside ``model``, ``version`` and the signal's fixed labels, sorted by name."""

UNLABELLED: Labels = ()
Model = tuple[str, str]
"""Name and version."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A cumulative histogram as a server reports it.

    ``edges`` are ascending upper bounds in seconds and end with ``inf``; ``counts[i]`` observations
    were at most ``edges[i]``.  A source that knows only count and sum has the single edge ``inf``.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    @property
    def count(self) -> float:
        """How many observations there were."""
        return self.counts[-1]


Value = float | Distribution


def nothing_of(value: Value) -> Value:
    """Return what a counter or histogram was before it counted anything."""
    if isinstance(value, Distribution):
        return Distribution(value.edges, (0.0,) * len(value.edges), 0.0)
    return 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One signal of one model, as one method gives it.

    ``method`` is a key of :data:`exporter.methods.METHODS`.  Counters and distributions are as the
    server counts them (since it loaded the model); gauges are current values.  ``note`` is what to
    keep in mind this time, beside the method's own note.
    """

    signal: str
    model: str
    version: str
    method: str
    samples: Mapping[Labels, Value]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Missing:
    """A signal that this source cannot give for a model, and what would bring it.

    ``unread`` means that nobody knows this time, because a part of the source did not answer: what
    was read before stays until it is stale.
    """

    signal: str
    model: str
    version: str
    reason: str
    fix: str
    unread: bool = False


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a server says about a model it has.

    ``backend`` is Triton's backend name, or ``ensemble``; empty where the server did not say.
    ``excluded`` is why the model is not reported on, empty if it is.
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
    """Everything one reading of one source brought.

    ``parts`` are the things read one by one (endpoints, say) by name, each with its error or None.
    ``lost_records`` counts what is known to be missing since the source was made; None where
    nothing can be missing unnoticed or nothing shows it.  ``waiting_streams`` counts, by model, the
    streams that wait for a token.
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
    """A source could not be read; ``kind`` is one word for counting, the text says what to do."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)
