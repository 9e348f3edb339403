"""Join the root span of a request, which has the times, and its child, which has the model.

The child of an asynchronous model ends long before its stream and comes in an earlier export; other
children come in the same one or, when exports overtake each other, later.  An export that is sent
again is not counted again.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.sources.traces.spans import Span
from exporter.sources.traces.timing import Timing, timing

Key = bytes
"""The id of the trace and that of the root, together."""


@dataclass(frozen=True, slots=True)
class SpanJoinLimits:
    """How long one half waits for the other (seconds), and how much may wait.

    A model waits as long as its stream may last; a root only for an export that was overtaken.
    ``remembered`` requests are recognised when they are sent again.
    """

    model_wait: float = 3600.0
    root_wait: float = 60.0
    models: int = 16_384
    roots: int = 4_096
    gaps: int = 1_000_000
    remembered: int = 16_384


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """A traced request: its model and its times."""

    model: str
    version: str
    timing: Timing


class SpanJoiner:
    """Returns each request once, when both of its halves have arrived; probes are skipped.

    ``lost`` counts traced requests without complete measurements: a half is missing, times
    contradict each other, or events were dropped.
    """

    def __init__(self, limits: SpanJoinLimits | None = None) -> None:
        self._limits = limits or SpanJoinLimits()
        # In the order of arrival, which is also that of age.
        self._models: dict[Key, tuple[float, str, str]] = {}
        self._roots: dict[Key, tuple[float, Timing]] = {}
        self._done: dict[Key, None] = {}
        self._gaps = 0
        self.lost = 0

    def add(self, span: Span, now: float) -> TracedRequest | None:
        """Add a span that arrived at ``now`` (monotonic, seconds)."""
        found = (
            None if span.step else self._model(span, now) if span.model else self._root(span, now)
        )
        self.expire(now)
        return found

    def expire(self, now: float) -> None:
        """Drop halves beyond the limits of time and number, the oldest first."""
        limits = self._limits
        while self._models and (
            len(self._models) > limits.models
            or now - next(iter(self._models.values()))[0] > limits.model_wait
        ):
            self._give_up(next(iter(self._models)))
        while self._roots and (
            len(self._roots) > limits.roots
            or self._gaps > limits.gaps
            or now - next(iter(self._roots.values()))[0] > limits.root_wait
        ):
            self._give_up(next(iter(self._roots)))

    def _model(self, span: Span, now: float) -> TracedRequest | None:
        key = span.trace + span.parent
        if key in self._done:
            return None
        if span.probe:
            self._forget(key)
            return None
        if key not in self._roots:
            self._models.setdefault(key, (now, span.model, span.version))
            return None
        _, timed = self._roots[key]
        return self._finish(key, span.model, span.version, timed)

    def _root(self, span: Span, now: float) -> TracedRequest | None:
        key = span.trace + span.id
        if key in self._done or key in self._roots:
            return None
        timed = timing(span)
        if timed is None:
            self._give_up(key)
            return None
        if key in self._models:
            _, model, version = self._models[key]
            return self._finish(key, model, version, timed)
        self._roots[key] = (now, timed)
        self._gaps += len(timed.gaps)
        return None

    def _finish(self, key: Key, model: str, version: str, timed: Timing) -> TracedRequest:
        self._forget(key)
        self.lost += timed.incomplete
        return TracedRequest(model, version, timed)

    def _give_up(self, key: Key) -> None:
        self._forget(key)
        self.lost += 1

    def _forget(self, key: Key) -> None:
        """Drop both halves and remember the request as done."""
        self._models.pop(key, None)
        if root := self._roots.pop(key, None):
            self._gaps -= len(root[1].gaps)
        self._done[key] = None
        while len(self._done) > self._limits.remembered:
            del self._done[next(iter(self._done))]
