"""The latency quantiles of the last ten minutes, for the charts of the status page.

Memory is bounded: ``MAX_MODELS`` models, whose signals have at most 60 numbers per quantile.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, isnan, nan
from typing import cast

from exporter.samples import Distribution, Model
from exporter.store.increase import increase_since, summed
from exporter.store.view import View
from promql.histogram import histogram_quantile

SPAN = 600.0
"""Seconds that a history covers."""
STEP = 10.0
"""Least time between two points, in seconds."""
SIGNALS = frozenset({"ttft", "itl", "tpot"})
QUANTILES = (0.5, 0.95)
MAX_MODELS = 64
"""Maximum models with a history; others get one when a model has had no traffic for ``SPAN``."""

Lines = tuple["array[float]", ...]
"""One array per quantile, oldest point first; NaN where nothing was observed."""
_Key = tuple[Model, str]
"""Model and signal."""


@dataclass(frozen=True, slots=True)
class LatencyHistory:
    """Quantiles by model and signal, ``step`` seconds apart.

    ``skipped`` is the number of models that have traffic but no history.
    """

    step: float = STEP
    lines: Mapping[Model, Mapping[str, Lines]] = field(default_factory=dict)
    skipped: int = 0


class LatencyRecorder:
    """Compute the quantiles of each step from the increase of histograms.

    ``interval`` is the time between scrapes; each step contains at least one, because a step
    without new data would be a gap.  ``history`` is replaced at each step and never changed, so
    that a thread may read it.
    """

    def __init__(self, interval: float, *, max_models: int = MAX_MODELS) -> None:
        self._step = max(STEP, 2 * interval)
        self._points = ceil(SPAN / self._step)
        self._max_models = max_models
        self._at: int | None = None
        self._baselines: dict[_Key, Distribution] = {}
        self.history = LatencyHistory(self._step)

    def update(self, view: View, now: float) -> None:
        """Add a point per signal when a step has ended; ``now`` is in monotonic seconds."""
        step = int(now // self._step)
        last, self._at = self._at, step
        if last == step:
            return
        skipped_steps = 0 if last is None else min(step - last, self._points) - 1
        self._append(self._increases(view), gap=array("f", [nan] * skipped_steps))

    def _increases(self, view: View) -> dict[_Key, Distribution]:
        """Return the observations since the previous call, of signals with a value at that time."""
        found = {}
        baselines = {}
        for state in view.signals:
            if state.signal not in SIGNALS:
                continue
            value = summed(state.samples)
            if isinstance(value, Distribution) and len(value.boundaries) > 1:
                key = (state.model, state.version), state.signal
                baselines[key] = value
                before = self._baselines.get(key)
                if before and before.count != value.count:
                    found[key] = cast(Distribution, increase_since(before, value))
        self._baselines = baselines
        return found

    def _append(self, increases: Mapping[_Key, Distribution], gap: array[float]) -> None:
        """Move all lines by one point, after a ``gap``, and drop those that became empty."""
        blank = (array("f", [nan] * self._points),) * len(QUANTILES)
        lines: dict[Model, dict[str, Lines]] = {}
        skipped = set()
        # Models with a history come first, and so keep it.
        for model, signal in {**dict.fromkeys(self._keys()), **increases}:
            if model not in lines and len(lines) == self._max_models:
                skipped.add(model)
                continue
            latest = increases.get((model, signal))
            moved = tuple(
                (line + gap + array("f", [_quantile(q, latest)]))[-self._points :]
                for q, line in zip(
                    QUANTILES, self.history.lines.get(model, {}).get(signal, blank), strict=True
                )
            )
            if not all(map(isnan, moved[0])):
                lines.setdefault(model, {})[signal] = moved
        self.history = LatencyHistory(self._step, lines, len(skipped))

    def _keys(self) -> Iterator[_Key]:
        for model, signals in self.history.lines.items():
            for signal in signals:
                yield model, signal


def _quantile(q: float, increase: Distribution | None) -> float:
    if increase is None:
        return nan
    return histogram_quantile(q, increase.boundaries, increase.counts)
