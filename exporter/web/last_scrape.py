"""Wait until a scrape has had all requests, before the sidecar exits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic

from exporter.samples import Model, count_of
from exporter.store.view import View

INTERVALS = 2.0
"""Scrape intervals to wait: the next scrape may be late."""
MIN_SECONDS = 1.0


class LastScrape:
    """The responses of ``/metrics``, and the requests that the last one counted."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=2)
        self._counted: Mapping[Model, float] = {}
        self._rendered = asyncio.Event()

    def rendered(self, view: View) -> None:
        """Note a response of ``/metrics`` with this view."""
        self._times.append(self._clock())
        self._counted = _requests(view)
        self._rendered.set()

    async def wait(self, current_view: Callable[[], View], seconds: float) -> None:
        """Wait for a response with all requests, two intervals of the scrapes or ``seconds``.

        Return at once if the last response had them, or if there were less than two.
        """
        if len(self._times) < 2:
            return
        interval = self._times[-1] - self._times[0]
        limit = min(seconds, max(MIN_SECONDS, INTERVALS * interval))
        try:
            async with asyncio.timeout(limit):
                while _requests(current_view()) != self._counted:
                    self._rendered.clear()
                    await self._rendered.wait()
        except TimeoutError:
            return


def _requests(view: View) -> dict[Model, float]:
    """Return the number of requests by model."""
    return {
        model: sum(map(count_of, states["requests"].samples.values()))
        for model, states in view.by_model.items()
        if "requests" in states
    }
