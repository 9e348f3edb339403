"""Record requests by endpoint and error, per OpenTelemetry's conventions for generative AI.

The conventions require the operation of every request and other bucket boundaries, so these
histograms are separate from those of :mod:`exporter.recording.model_metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Any

from exporter.protocol.events import Stream
from exporter.recording.metric_recorder import Histogram
from exporter.recording.model_metrics import ModelMetrics
from slos.outcomes import Outcome

MAX_GENAI_SERIES = 1_000


class GenAiRecorder:
    """Count ended requests; ``bounds`` are bucket boundaries in seconds by signal."""

    def __init__(self, bounds: Mapping[str, Sequence[float]]) -> None:
        self._boundaries = {signal: (*boundaries, inf) for signal, boundaries in bounds.items()}
        self._histograms: dict[tuple[ModelMetrics, str, str, str], Histogram] = {}

    def ended(
        self, model: ModelMetrics, stream: Stream, end: float, outcome: Outcome, tpot: float | None
    ) -> None:
        """Record a request: its latencies if it succeeded, its duration always."""
        if not model.confirmed:
            return
        ok = outcome == "ok"
        self._observe(model, stream, "e2e", end - stream.arrived, "" if ok else outcome)
        if ok and stream.streaming and stream.chunks:
            self._observe(model, stream, "ttft", stream.first - stream.arrived)
            if tpot is not None and stream.chunks > 1:
                self._observe(model, stream, "tpot", tpot)

    def series(self) -> Iterator[list[Any]]:
        """Yield every histogram as read by :func:`exporter.taps.process.messages.read_genai`."""
        for (model, endpoint, signal, error), histogram in self._histograms.items():
            labels = (signal, model.name, model.version, endpoint, error)
            yield [*labels, histogram.boundaries, list(accumulate(histogram.counts)), histogram.sum]

    def _observe(
        self, model: ModelMetrics, stream: Stream, signal: str, seconds: float, error: str = ""
    ) -> None:
        key = (model, stream.endpoint, signal, error)
        histogram = self._histograms.get(key)
        if histogram is None:
            if signal not in self._boundaries or len(self._histograms) >= MAX_GENAI_SERIES:
                return
            histogram = self._histograms[key] = Histogram(self._boundaries[signal])
        histogram.observe(max(0.0, seconds))
