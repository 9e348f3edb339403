"""Read iteration records at GET /metrics, in the way of each release.

Reads are destructive in all of them: a record goes to one reader, once.  Only for the lab, ``Tee``
can keep several copies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

Json = dict[str, Any]
Update = Callable[[Json], None]

_DISPATCH_SECONDS = 0.2
_IDLE_SECONDS = 2.0


class BodyReader(Protocol):
    """Read the records for GET /metrics; `run` is a background task."""

    async def read(self, copy: int) -> list[Json]:
        """Return the records for one GET; ``copy`` counts from 0."""

    async def run(self) -> None:
        """Run until cancelled."""

    def submitted(self) -> None:
        """Handle the start of a request."""

    def completed(self) -> None:
        """Handle the end of a request, after it is recorded."""


class Buffer:
    """Records that are not fetched yet; a full buffer drops the oldest.

    The engine's thread adds them.
    """

    def __init__(self, kept: int) -> None:
        self._records: deque[Json] = deque(maxlen=kept or None)

    def add(self, record: Json) -> None:
        """Add the latest record."""
        self._records.append(record)

    def drain(self) -> list[Json]:
        """Remove and return all records."""
        return [self._records.popleft() for _ in range(len(self._records))]


class UntilIdle:
    """Up to 1.1: a GET returns after two seconds without a new record.

    Under steady traffic it never returns, and its records are lost if the client times out.  It
    returns nothing immediately if no request has come since the previous GET returned.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._queue: asyncio.Queue[Json] = asyncio.Queue()
        self._done = True

    async def run(self) -> None:
        """Move the records to the queue that a GET reads."""
        while True:
            await asyncio.sleep(_DISPATCH_SECONDS)
            for record in self._buffer.drain():
                self._queue.put_nowait(record)

    def submitted(self) -> None:
        """Expect records from now on."""
        self._done = False

    def completed(self) -> None:
        """Do nothing."""

    async def read(self, _: int) -> list[Json]:
        """Return records until none has come for two seconds."""
        found: list[Json] = []
        while not self._done:
            try:
                found.append(await asyncio.wait_for(self._queue.get(), _IDLE_SECONDS))
                await asyncio.sleep(0)  # from 3.12 on, a full queue does not yield
            except TimeoutError:
                self._done = True
        return found


class OneFetch:
    """From 1.2: a GET fetches once, then waits two seconds without fetching again.

    With `update` a collector fetches records for the gauges, which no GET returns then.
    """

    def __init__(self, buffer: Buffer, update: Update | None) -> None:
        self._buffer = buffer
        self._update = update

    async def run(self) -> None:
        """Do nothing."""

    def submitted(self) -> None:
        """Do nothing."""

    def completed(self) -> None:
        """Run the collector."""
        if self._update:
            for record in self._buffer.drain():
                self._update(record)

    async def read(self, _: int) -> list[Json]:
        """Return the buffered records after two seconds."""
        found = self._buffer.drain()
        await asyncio.sleep(_IDLE_SECONDS)
        return found


class Tee:
    """From 1.3rc: only a collector fetches, and keeps the records for the next GET.

    It runs when a request completes, and only then.
    """

    def __init__(self, buffer: Buffer, update: Update, kept: int, copies: int) -> None:
        self._buffer = buffer
        self._update = update
        self._copies = [Buffer(kept) for _ in range(copies)]

    async def run(self) -> None:
        """Do nothing."""

    def submitted(self) -> None:
        """Do nothing."""

    def completed(self) -> None:
        """Run the collector."""
        for record in self._buffer.drain():
            self._update(record)
            for kept in self._copies:
                kept.add(record)

    async def read(self, copy: int) -> list[Json]:
        """Return the kept records."""
        return self._copies[copy].drain()
