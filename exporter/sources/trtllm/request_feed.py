"""Measure request timings from an endpoint or files that deliver each record once.

Records of the first scrape are older than the sidecar and do not count.  While records are missing
the feed is refused: the engine's own histograms have all requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf

from exporter.samples import Measurement, Missing
from exporter.sources.loss_counter import LossCounter
from exporter.sources.trtllm.request_timing import METHODS, RequestTimings
from exporter.sources.unavailable import refuse

ORCHESTRATOR = "with disaggregated serving, read the orchestrator"
LOSSY_FOR = 60.0
"""Seconds without loss until a feed is used again."""


class RequestFeed:
    """The request timings of one model.

    ``place`` is the address or file in messages, ``grace_scrapes`` the number of scrapes that a
    record may be late.  ``if_empty`` and ``if_lost`` are the fixes when requests end and none, or
    only some, of their records arrive.
    """

    def __init__(
        self,
        model: str,
        thresholds: Mapping[str, Iterable[float]],
        *,
        place: str,
        grace_scrapes: int,
        if_empty: str,
        if_lost: str,
    ) -> None:
        self._model = model
        self._timings = RequestTimings(model, thresholds)
        self._losses = LossCounter(grace_scrapes)
        self._place, self._if_empty, self._if_lost = place, if_empty, if_lost
        self._read = 0
        self._received = 0
        self._lost_at = -inf
        self._withheld = False

    @property
    def lost(self) -> float:
        """The number of lost records."""
        return self._losses.lost

    def add(self, items: Iterable[Mapping[str, object]]) -> None:
        """Add records of the current scrape."""
        count = self._timings.add(items, past=not self._read)
        self._received += count
        self._losses.add_received(count)

    def end_scrape(self, finished: float | None, now: float, *, failed: bool = False) -> None:
        """End a scrape; ``finished`` requests were counted before it, None if unknown."""
        self._read += not failed
        if finished is not None and self._losses.compare(finished):
            self._lost_at = now

    def report(self, now: float) -> Iterator[Measurement | Missing]:
        """Yield every signal of single requests, or why it is unavailable."""
        measurements = self._timings.measurements()
        if now - self._lost_at >= LOSSY_FOR and measurements:
            if self._withheld:
                # Meanwhile the engine's histograms counted the same requests.
                measurements = tuple(replace(one, start_time=None) for one in measurements)
            yield from measurements
        elif why := self._problem():
            self._withheld |= bool(measurements)
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
