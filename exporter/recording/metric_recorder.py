"""Record single events in cumulative counters and histograms.

Sources that see requests or tokens one by one (taps, iteration records, per-request timing, traces)
use it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf

from exporter.samples import Distribution, Labels, Measurement, Value
from slos.signals import SIGNALS, bucket_boundaries

MAX_REQUEST_SECONDS = 7 * 86400.0
"""Seconds; a longer time comes from two different clocks."""

Series = tuple[str, str, str, str]
"""Signal, model, version, method."""


class Histogram:
    """A histogram of seconds or tokens; an observation costs a binary search and two additions.

    ``boundaries`` are ascending upper bounds and end with ``inf``; ``counts`` are not cumulative.
    """

    __slots__ = ("boundaries", "counts", "sum")

    def __init__(self, boundaries: tuple[float, ...]) -> None:
        self.boundaries = boundaries
        self.counts = [0.0] * len(boundaries)
        self.sum = 0.0

    def observe(self, value: float, weight: float = 1.0) -> None:
        """Record ``weight`` observations of a value."""
        self.counts[bisect_left(self.boundaries, value)] += weight
        self.sum += value * weight

    def add(self, other: Histogram) -> None:
        """Add the observations of another histogram with the same boundaries."""
        for position, count in enumerate(other.counts):
            self.counts[position] += count
        self.sum += other.sum


@dataclass(slots=True)
class MetricRecorder:
    """Count events by signal, model, version and method.

    ``thresholds`` are SLO thresholds by signal: each becomes an exact bucket boundary.
    ``start_time`` is that of the measurements: None if the first events may be older than the
    sidecar.
    """

    thresholds: Mapping[str, Iterable[float]] = field(default_factory=dict)
    start_time: float | None = None
    _histograms: dict[Series, dict[Labels, Histogram]] = field(default_factory=dict)
    _counters: dict[Series, dict[Labels, float]] = field(default_factory=dict)

    def observe(
        self, series: Series, value: float, weight: float = 1.0, labels: Labels = ()
    ) -> None:
        """Record ``weight`` observations of a value."""
        self.histogram(series, labels).observe(value, weight)

    def histogram(self, series: Series, labels: Labels = ()) -> Histogram:
        """Return the histogram of a series; create it if needed."""
        histograms = self._histograms.setdefault(series, {})
        histogram = histograms.get(labels)
        if histogram is None:
            histogram = histograms[labels] = Histogram(self.boundaries(series[0]))
        return histogram

    def boundaries(self, signal: str) -> tuple[float, ...]:
        """Return the bucket boundaries of a histogram signal."""
        return *bucket_boundaries(SIGNALS[signal], self.thresholds.get(signal, ())), inf

    def count(self, series: Series, labels: Labels = (), amount: float = 1.0) -> None:
        """Add ``amount`` events; an amount of 0 creates the series."""
        counter = self._counters.setdefault(series, {})
        counter[labels] = counter.get(labels, 0.0) + amount

    def declare(self, series: Series, labels: Iterable[Labels]) -> None:
        """Create a series with these label sets before its first event, at zero."""
        is_histogram = SIGNALS[series[0]].kind == "histogram"
        for each in labels:
            if is_histogram:
                self.histogram(series, each)
            else:
                self.count(series, each, 0.0)

    def change_method(self, series: Series, method: str) -> None:
        """Continue the totals of a series under another method."""
        changed = (*series[:3], method)
        if series in self._histograms:
            self._histograms[changed] = self._histograms.pop(series)
        if series in self._counters:
            self._counters[changed] = self._counters.pop(series)

    def __contains__(self, series: Series) -> bool:
        return series in self._histograms or series in self._counters

    def measurements(self) -> tuple[Measurement, ...]:
        """Return all measurements so far."""
        values: dict[Series, Mapping[Labels, Value]] = {
            series: {
                labels: Distribution(one.boundaries, tuple(accumulate(one.counts)), one.sum)
                for labels, one in histograms.items()
            }
            for series, histograms in self._histograms.items()
        }
        values.update((series, dict(counter)) for series, counter in self._counters.items())
        return tuple(
            Measurement(signal, model, version, method, samples, start_time=self.start_time)
            for (signal, model, version, method), samples in values.items()
        )
