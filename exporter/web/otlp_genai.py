"""Engine histograms under OpenTelemetry's GenAI conventions."""

from __future__ import annotations

from collections.abc import Sequence

from exporter.genai import GenAiProfile, GenAiSeries
from exporter.samples import Distribution
from exporter.store.view import View


def from_engines(view: View, profile: GenAiProfile) -> Sequence[GenAiSeries]:
    """Return the signals without a tap's measurement, with the engine's own buckets."""
    return [
        GenAiSeries(state.signal, state.model, state.version, value)
        for state in view.signals
        if state.signal in profile.metrics and not state.method.startswith("wire")
        for value in state.samples.values()
        if isinstance(value, Distribution)
    ]
