"""What GET /metrics does with the iteration records, in the three forms it has had.

Every one of them is destructive: a record goes to one reader, once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

Json = dict[str, Any]
Show = Callable[[Json], None]

_DISPATCH_SECONDS = 0.2
_IDLE_SECONDS = 2.0


class BodyReader(Protocol):
    """How the records get to whoever asks; `run` is its work in the background."""

    async def read(self) -> list[Json]:
        """Answer a GET."""

    async def run(self) -> None:
        """Work until cancelled."""

    def submitted(self) -> None:
        """Take note of a new request."""

    def completed(self) -> None:
        """Take note of a request that has ended and been recorded."""


class Buffer:
    """Records of the engine that are not fetched yet; drops the oldest ones when full.

    Records come from the engine's thread.
    """

    def __init__(self, kept: int) -> None:
        self._records: deque[Json] = deque(maxlen=kept or None)

    def add(self, record: Json) -> None:
        """Add the newest."""
        self._records.append(record)

    def drain(self) -> list[Json]:
        """Take all there are."""
        return [self._records.popleft() for _ in range(len(self._records))]


class UntilIdle:
    """Up to 1.1: a GET goes on until no record has come for two seconds.

    Under steady traffic it never returns, and what it has taken is lost if its client gives up.
    Without a request since the last one that did return it is empty at once.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._queue: asyncio.Queue[Json] = asyncio.Queue()
        self._done = True

    async def run(self) -> None:
        """Move the records to where a GET waits for them."""
        while True:
            await asyncio.sleep(_DISPATCH_SECONDS)
            for record in self._buffer.drain():
                self._queue.put_nowait(record)

    def submitted(self) -> None:
        """Expect records again."""
        self._done = False

    def completed(self) -> None:
        """Do nothing."""

    async def read(self) -> list[Json]:
        """Take records until they cease."""
        found: list[Json] = []
        while not self._done:
            try:
                found.append(await asyncio.wait_for(self._queue.get(), _IDLE_SECONDS))
            except TimeoutError:
                self._done = True
        return found


class OneFetch:
    """From 1.2: a GET fetches once, and then waits two seconds for more that it never fetches.

    With a `show` a collector fetches as well, for the gauges, and what it gets no GET ever sees.
    """

    def __init__(self, buffer: Buffer, show: Show | None) -> None:
        self._buffer = buffer
        self._show = show

    async def run(self) -> None:
        """Do nothing."""

    def submitted(self) -> None:
        """Do nothing."""

    def completed(self) -> None:
        """Wake the collector."""
        if self._show:
            for record in self._buffer.drain():
                self._show(record)

    async def read(self) -> list[Json]:
        """Take what is there."""
        found = self._buffer.drain()
        await asyncio.sleep(_IDLE_SECONDS)
        return found


class Tee:
    """From 1.3rc: a collector alone fetches, and keeps for the next GET what it has shown.

    It wakes up when a request completes, and only then.
    """

    def __init__(self, buffer: Buffer, show: Show, kept: int) -> None:
        self._buffer = buffer
        self._show = show
        self._kept = Buffer(kept)

    async def run(self) -> None:
        """Do nothing."""

    def submitted(self) -> None:
        """Do nothing."""

    def completed(self) -> None:
        """Wake the collector."""
        for record in self._buffer.drain():
            self._show(record)
            self._kept.add(record)

    async def read(self) -> list[Json]:
        """Take what has been kept."""
        return self._kept.drain()
