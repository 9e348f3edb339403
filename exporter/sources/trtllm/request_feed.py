"""Timing of single requests from a place that tells each of them once, and whether all came.

What is there at the first reading belongs to the time before.  While requests are missing the feed
is refused: the engine's own histograms have all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from exporter.samples import Measurement, Missing
from exporter.sources.loss_counter import LossCounter
from exporter.sources.trtllm.request_timing import METHODS, RequestTimings
from exporter.sources.unavailable import refuse

ORCHESTRATOR = "with disaggregated serving, read the orchestrator"
LOSSY_FOR = 60.0
"""Seconds without loss until a feed is believed again."""


class RequestFeed:
    """The requests of one model, as they come.

    ``place`` is where they are read, for people, and ``patience`` how many readings a request may
    be late; ``if_empty`` and ``if_lost`` say what to do when
    requests end and none, or not all, come from there.
    """

    def __init__(
        self,
        model: str,
        thresholds: Mapping[str, Iterable[float]],
        *,
        place: str,
        patience: int,
        if_empty: str,
        if_lost: str,
    ) -> None:
        self._model = model
        self._timings = RequestTimings(model, thresholds)
        self._losses = LossCounter(patience)
        self._place, self._if_empty, self._if_lost = place, if_empty, if_lost
        self._read = 0
        self._received = 0
        self._lost_at = -inf

    @property
    def lost(self) -> float:
        """How many requests never came."""
        return self._losses.lost

    def take(self, items: Iterable[Mapping[str, object]]) -> None:
        """Take in what a reading brings, piece by piece."""
        count = self._timings.take(items, past=not self._read)
        self._received += count
        self._losses.arrive(count)

    def settle(self, finished: float | None, now: float, *, failed: bool = False) -> None:
        """End a reading; ``finished`` requests had been counted before it, None if nobody knows."""
        self._read += not failed
        if finished is not None and self._losses.settle(finished):
            self._lost_at = now

    def report(self, now: float) -> Iterator[Measurement | Missing]:
        """Tell every signal that single requests have, or why not if something is wrong."""
        measurements = self._timings.measurements()
        if now - self._lost_at >= LOSSY_FOR and measurements:
            yield from measurements
        elif why := self._problem():
            yield from refuse(METHODS, (self._model, ""), *why)

    def _problem(self) -> tuple[str, str] | None:
        """Return reason and fix."""
        if self.lost and self._received:
            share = f"{self.lost:.0f} of {self.lost + self._received:.0f} requests"
            return (
                f"{self._place} lacks {share}: they went elsewhere, or were dropped",
                self._if_lost,
            )
        if self.lost:
            return f"requests end and {self._place} stays empty", self._if_empty
        if self._received:
            refused = " and ".join(self._timings.refused)
            return f"what comes from {self._place} is {refused}", ORCHESTRATOR
        return None
