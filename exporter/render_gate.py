"""Priority of rendering: readings pause while a scrape is rendered.

Threads of one interpreter run in turn, so a scrape that meets a reading would take twice as long.
A reading has no client that waits for it.
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
"""How long a rendering holds readings up at most."""
OPEN_SECONDS = 0.2
"""How long no rendering holds readings up after that, however many scrapes there are."""
LOOP_SECONDS = 0.002
"""How often the event loop checks whether the gate is open again."""


class RenderGate:
    """Closed to readings while something is rendered, for a bounded share of the time.

    Renderings start and end on the event loop.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._idle = Event()
        self._idle.set()
        self._running = 0
        self._closed_until = self._open_until = 0.0

    def rendering_started(self) -> None:
        """Close the gate; also put garbage collection off, which stops all threads."""
        self._running += 1
        gc.disable()
        now = self._clock()
        if now >= self._open_until:
            self._closed_until = now + CLOSED_SECONDS
            self._open_until = self._closed_until + OPEN_SECONDS
            self._idle.clear()

    def rendering_ended(self) -> None:
        """Open the gate if no other rendering is under way."""
        self._running -= 1
        if not self._running:
            self._closed_until = 0.0
            self._idle.set()
            gc.enable()

    @contextmanager
    def rendering(self) -> Iterator[None]:
        """Keep the gate closed while something is rendered."""
        self.rendering_started()
        try:
            yield
        finally:
            self.rendering_ended()

    def closed_for(self) -> float:
        """Return for how many seconds the gate stays closed at most, 0 if it is open."""
        return max(0.0, self._closed_until - self._clock())

    def paced(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items, each while the gate is open; blocks, so it is not for the event loop."""
        for item in items:
            seconds = self.closed_for()
            if seconds:
                self._idle.wait(seconds)
            yield item

    async def opened(self) -> None:
        """Let other tasks run until the gate is open, at least once."""
        await asyncio.sleep(0)
        while self.closed_for():  # noqa: ASYNC110 - an asyncio event is not for threads
            await asyncio.sleep(LOOP_SECONDS)


RENDER_GATE = RenderGate()
"""The one gate of this process, as there is one interpreter."""
