"""The recent scrapes of one sidecar, from which rates and quantiles are taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from exporter.samples import Distribution
from top.rows import QUANTILES, RATES, Scrape

_COUNTED = {*RATES.values(), *(signal for signal, _ in QUANTILES.values())}


class ScrapeHistory:
    """Keeps the scrapes of the last ``window`` seconds, and begins anew after a restart."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._scrapes: deque[Scrape] = deque()

    def add(self, scrape: Scrape) -> Scrape | None:
        """Add a scrape; return the oldest one to compare it with, None without any."""
        if self._scrapes and restarted(self._scrapes[-1], scrape):
            self._scrapes.clear()
        self._scrapes.append(scrape)
        while len(self._scrapes) > 2 and scrape.at - self._scrapes[0].at > self._window:
            self._scrapes.popleft()
        return self._scrapes[0] if len(self._scrapes) > 1 else None


def restarted(then: Scrape, now: Scrape) -> bool:
    """Return whether a counter or histogram fell between two scrapes."""
    return any(value < earlier for earlier, value in _counts(then, now))


def _counts(then: Scrape, now: Scrape) -> Iterator[tuple[float, float]]:
    states = now.report.view.by_model
    for model, signals in then.report.view.by_model.items():
        for signal in _COUNTED & signals.keys():
            later = states.get(model, {}).get(signal)
            for labels, before in signals[signal].samples.items():
                value = later.samples.get(labels) if later else None
                if isinstance(before, Distribution) and isinstance(value, Distribution):
                    yield before.count, value.count
                elif isinstance(before, float) and isinstance(value, float):
                    yield before, value
