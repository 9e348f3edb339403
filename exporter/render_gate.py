"""Give rendering priority: scrapes of sources pause while a response is rendered.

Threads of one interpreter take turns, so a response rendered during a scrape of a source would take
twice as long.  A scrape of a source has no waiting client.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Event
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

CLOSED_SECONDS = 0.1
"""Longest pause by a rendering."""
OPEN_SECONDS = 0.2
"""Time without a pause after that, at any number of renderings."""
LOOP_SECONDS = 0.002
"""Interval at which the event loop checks the gate."""


class RenderGate:
    """Closed during renderings, for a bounded share of the time.

    Renderings start and end on the event loop.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._idle = Event()
        self._idle.set()
        self._running = 0
        self._closed_until = self._open_until = 0.0

    @contextmanager
    def rendering(self) -> Iterator[None]:
        """Close the gate, and collect no garbage: a collection takes up to 5 ms of a rendering."""
        gc.disable()
        self._running += 1
        now = self._clock()
        if now >= self._open_until:
            self._closed_until = now + CLOSED_SECONDS
            self._open_until = self._closed_until + OPEN_SECONDS
            self._idle.clear()
        try:
            yield
        finally:
            gc.enable()  # also while others run, so that there are collections at any load
            self._running -= 1
            if not self._running:
                self._closed_until = 0.0
                self._idle.set()

    def closed_for(self) -> float:
        """Return the longest time in seconds until the gate opens, 0 if it is open."""
        return max(0.0, self._closed_until - self._clock())

    def paced(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items, each while the gate is open; blocks, so do not use it on the event loop."""
        for item in items:
            # Read without the clock first: the gate is open between renderings.
            if self._closed_until and (seconds := self.closed_for()):
                self._idle.wait(seconds)
            yield item

    async def opened(self) -> None:
        """Yield to other tasks, at least once, until the gate is open."""
        await asyncio.sleep(0)
        while self.closed_for():  # noqa: ASYNC110 - an asyncio event is not for threads
            await asyncio.sleep(LOOP_SECONDS)


RENDER_GATE = RenderGate()
"""The gate of this process: one, because there is one interpreter."""
