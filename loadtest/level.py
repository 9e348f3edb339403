"""Run one load level against one endpoint, as an open or a closed loop."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol, Self

from loadtest.arrivals import poisson_arrivals
from loadtest.records import RequestRecord
from loadtest.settings import LoadEndpoint, LoadLevel, RequestPlan, Workload, plan_request

_HEARTBEAT = 0.01
"""Seconds between two measurements of the event loop's lag."""


class LoadClient(Protocol):
    """Sends requests to one endpoint, inside its context."""

    async def __aenter__(self) -> Self:
        """Open the connections."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""

    async def send(self, plan: RequestPlan, record: RequestRecord) -> None:
        """Send a request and fill its record, whatever its outcome."""


@dataclass(slots=True)
class LevelRun:
    """The requests of one level that ended, in seconds of one monotonic clock.

    ``begin`` and ``end`` bound the measured window.  ``client_lag`` are delays of the load
    generator's own event loop.  ``unfinished`` requests were cut off by an interruption.
    """

    level: LoadLevel
    begin: float
    end: float
    records: list[RequestRecord] = field(default_factory=list)
    client_lag: array[float] = field(default_factory=lambda: array("d"))
    unfinished: int = 0

    @property
    def measured(self) -> list[RequestRecord]:
        """The requests of the measured window."""
        return [record for record in self.records if record.measured]


Progress = Callable[[LevelRun, float], None]
"""Called about once a second with the run so far and the time."""


def new_client(endpoint: LoadEndpoint, work: Workload, clock: Callable[[], float]) -> LoadClient:
    """Return the client of an endpoint's API; raises ModuleNotFoundError without its library."""
    if endpoint.api == "grpc":
        from loadtest.grpc_client import GrpcRequests

        return GrpcRequests(endpoint, work, clock)
    from loadtest.http_client import HttpRequests

    return HttpRequests(endpoint, work, clock)


async def run_level(
    client: LoadClient,
    level: LoadLevel,
    work: Workload,
    numbers: Iterator[int] | None = None,
    stop: asyncio.Event | None = None,
    progress: Progress | None = None,
) -> LevelRun:
    """Run a level and return its requests, also if ``stop`` is set before its end.

    ``numbers`` are those of the requests.  Requests in flight at the level's end are completed.
    """
    clock = asyncio.get_running_loop().time
    begin = clock() + work.warm_up
    run = LevelRun(level, begin, begin + work.duration)
    stop = stop or asyncio.Event()
    numbers = count() if numbers is None else numbers
    load = _closed_loop if level.kind == "concurrency" else _open_loop
    async with _client_lag(run, clock, progress):
        loading = asyncio.create_task(load(client, run, work, numbers, clock))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            loading.cancel()
            stopping.cancel()
            await asyncio.wait((loading, stopping))
    if not loading.cancelled():
        loading.result()
    run.end = min(run.end, max(run.begin, clock()))
    return run


async def _closed_loop(
    client: LoadClient,
    run: LevelRun,
    work: Workload,
    numbers: Iterator[int],
    clock: Callable[[], float],
) -> None:
    """Keep a constant number of requests in flight."""
    last = run.end + work.cool_down

    async def user() -> None:
        while (now := clock()) < last:
            await _request(client, run, plan_request(work, next(numbers)), now)

    async with asyncio.TaskGroup() as group:
        for _ in range(int(run.level.value)):
            group.create_task(user())


async def _open_loop(
    client: LoadClient,
    run: LevelRun,
    work: Workload,
    numbers: Iterator[int],
    clock: Callable[[], float],
) -> None:
    """Send requests at their scheduled times, whether earlier ones have ended or not."""
    start = run.begin - work.warm_up
    seconds = run.end + work.cool_down - start
    room = asyncio.Semaphore(work.max_in_flight)

    async def one(plan: RequestPlan, scheduled: float) -> None:
        try:
            await _request(client, run, plan, scheduled)
        finally:
            room.release()

    async with asyncio.TaskGroup() as group:
        for at in poisson_arrivals(run.level.value, seconds, f"{work.seed}/{run.level}"):
            scheduled = start + at
            await asyncio.sleep(scheduled - clock())
            await room.acquire()
            group.create_task(one(plan_request(work, next(numbers)), scheduled))


async def _request(client: LoadClient, run: LevelRun, plan: RequestPlan, scheduled: float) -> None:
    measured = run.begin <= scheduled < run.end
    record = RequestRecord(
        plan.number, plan.prompt.name, plan.output_tokens, scheduled, measured=measured
    )
    run.unfinished += 1
    await client.send(plan, record)
    run.unfinished -= 1
    run.records.append(record)


@asynccontextmanager
async def _client_lag(
    run: LevelRun, clock: Callable[[], float], progress: Progress | None
) -> AsyncIterator[None]:
    """Record how late the event loop runs in the measured window, and report progress."""

    async def watch() -> None:
        reported = clock()
        while True:
            due = clock() + _HEARTBEAT
            await asyncio.sleep(_HEARTBEAT)
            now = clock()
            if run.begin <= now < run.end:
                run.client_lag.append(max(0.0, now - due))
            if progress and now >= reported + 1:
                reported = now
                progress(run, now)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


Measure = Callable[[LoadLevel], Awaitable[LevelRun]]
"""Runs a level with everything else fixed."""
