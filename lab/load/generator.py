"""Load on one server: arrivals, phases, and the clients' tasks."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from lab.load.client import open_session, plan_client, run_client
from lab.load.settings import LoadPhase, LoadSettings
from lab.load.summary import LoadResults, LoadSummary

_LOOPBACK_HOSTS = {"127.0.0.1", "localhost", "::1"}


class Load:
    """Load on one server; raises ValueError unless it is on this machine.

    It begins with ``settings`` and continues with those of each of the ``phases``.  ``seed``
    determines the pauses between requests, and the behaviour and prompt of each client.
    ``switch``, ``stop`` and ``summary`` are thread-safe.
    """

    def __init__(self, url: str, settings: LoadSettings, phases: Sequence[LoadPhase] = ()) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname not in _LOOPBACK_HOSTS:
            raise ValueError(
                f"{url}: load is allowed only on http://127.0.0.1 and http://localhost"
            )
        self._url = url.rstrip("/")
        self._first = self._settings = settings
        self._phases = sorted(phases, key=lambda phase: phase.start)
        self._random = random.Random(settings.seed)
        self._results = LoadResults()
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: asyncio.Future[None]

    async def run(self) -> LoadSummary:
        """Run until the end or :meth:`stop`, which cancels running requests uncounted."""
        first, clients = self._first, set[asyncio.Task[None]]()
        loop = asyncio.get_running_loop()
        self._changed = loop.create_future()
        self._loop = loop
        phases = [loop.call_later(each.start, self._apply, each.settings) for each in self._phases]
        end = time.monotonic() + first.seconds
        async with (
            open_session() as fast,
            open_session(slow=True) as slow,
            asyncio.TaskGroup() as group,
        ):
            for number in range(first.requests):
                await self._arrival(clients, end)
                if self._stopped or time.monotonic() >= end:
                    break
                plan = plan_client(self._settings, random.Random(f"{first.seed}/{number}"))
                http = slow if plan.bytes_per_second else fast
                client = group.create_task(run_client(http, self._url, plan, self._results))
                clients.add(client)
                client.add_done_callback(clients.discard)
            while clients and not self._stopped:
                await self._wait(clients)
            for phase in phases:
                phase.cancel()
            for task in clients:
                task.cancel()
        return self.summary()

    def switch(self, settings: LoadSettings) -> None:
        """Let new requests follow other settings from now on."""
        self._settings = settings
        self._notify()

    def stop(self) -> None:
        """Stop the load and cancel running requests."""
        self._stopped = True
        self._notify()

    def summary(self) -> LoadSummary:
        """Return the results of the requests that have ended so far."""
        return self._results.summary()

    async def _arrival(self, clients: Collection[asyncio.Task[None]], end: float) -> None:
        """Wait for the next request; a change of the settings draws a new pause."""
        while not self._stopped and (left := end - time.monotonic()) > 0:
            settings = self._settings
            pause = self._random.expovariate(settings.rate) if settings.rate else math.inf
            await self._wait((), min(pause, left))
            while len(clients) >= settings.concurrency and self._keeps(settings):
                await self._wait(clients)
            if self._keeps(settings):
                return

    def _keeps(self, settings: LoadSettings) -> bool:
        return settings is self._settings and not self._stopped

    async def _wait(
        self, clients: Collection[asyncio.Task[None]], seconds: float | None = None
    ) -> None:
        """Wait until a client ends, the load changes or stops, or `seconds` have passed."""
        events = {self._changed, *clients}
        await asyncio.wait(events, timeout=seconds, return_when=FIRST_COMPLETED)

    def _apply(self, settings: LoadSettings) -> None:
        self._settings = settings
        self._wake()

    def _notify(self) -> None:
        if self._loop:
            with suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()


@contextmanager
def running_load(load: Load) -> Iterator[Load]:
    """Run a load in a background thread, stopped when the scope exits."""
    thread = threading.Thread(target=lambda: asyncio.run(load.run()), name="load", daemon=True)
    thread.start()
    try:
        yield load
    finally:
        load.stop()
        thread.join()
