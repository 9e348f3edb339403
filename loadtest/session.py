"""Run a load test: levels or a rate search, on one endpoint or alternating between two."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from math import ceil

from loadtest.confidence import least_count
from loadtest.crossover import Crossover, crossovers, saturation
from loadtest.level import LevelRun, Progress, new_client, run_level
from loadtest.level_result import LevelResult, level_result
from loadtest.objectives import ClientObjective
from loadtest.records import RequestRecord
from loadtest.search import FoundRate, rate_search
from loadtest.settings import (
    LoadEndpoint,
    LoadLevel,
    PromptClass,
    UnsupportedModelError,
    Workload,
    plan_request,
)
from loadtest.sidecar_comparison import (
    Sample,
    SidecarComparison,
    SidecarRestartError,
    compare_sidecar,
    requests_increase,
)
from loadtest.stack_comparison import StackComparison, compare_stacks

_NUMBERS = 10_000_000
"""Request numbers of each round: no two rounds of a test have the same prompts."""
_MARGIN = 2
"""Requests of a search's level, in multiples of the number that all good could prove a target."""
_SETTLE_PAUSE = 0.2

Scrape = Callable[[], Awaitable[Sequence[Sample]]]


class UnusableEndpointError(Exception):
    """An endpoint does not answer a first request; the message has the reason and the fix."""


@dataclass(frozen=True, slots=True)
class RateSearchSettings:
    """Rates per second from ``first`` to ``highest``, found to a share ``resolution``.

    A level lasts at most ``most_seconds``.  Targets that need more requests are not proven; a level
    then keeps them if its share of good events does.
    """

    first: float = 1.0
    highest: float = 1000.0
    resolution: float = 0.05
    most_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class LoadTest:
    """A load test: one endpoint, or two that get the same requests in alternating ``rounds``.

    There are either ``levels`` or a ``search``.  ``scrape`` reads the sidecar at ``sidecar``,
    which may need ``settle`` seconds to record a request.
    """

    endpoints: tuple[LoadEndpoint, ...]
    work: Workload
    levels: tuple[LoadLevel, ...]
    objectives: tuple[ClientObjective, ...] = ()
    confidence: float = 0.95
    search: RateSearchSettings | None = None
    rounds: int = 1
    scrape: Scrape | None = None
    sidecar: str = ""
    settle: float = 3.0


@dataclass(slots=True)
class EndpointRuns:
    """The runs and results of one endpoint, in the order of the levels."""

    endpoint: LoadEndpoint
    runs: list[list[LevelRun]] = field(default_factory=list)
    results: list[LevelResult] = field(default_factory=list)

    @property
    def records(self) -> list[RequestRecord]:
        """All requests, the unmeasured ones included."""
        return [record for level in self.runs for run in level for record in run.records]


@dataclass(slots=True)
class LoadTestResult:
    """Results of a load test, of what was measured if it was ``interrupted``."""

    test: LoadTest
    sides: tuple[EndpointRuns, ...]
    interrupted: bool = False
    found: FoundRate | None = None
    sidecar: SidecarComparison | None = None
    sidecar_error: str = ""
    stacks: StackComparison | None = None

    @property
    def crossovers(self) -> list[Crossover]:
        """Where the first endpoint's objectives stop to be kept."""
        return crossovers(self._ascending)

    @property
    def saturation(self) -> LoadLevel | None:
        """The level at which the first endpoint's throughput stops to grow."""
        return saturation(self._ascending)

    @property
    def _ascending(self) -> list[LevelResult]:
        complete = (result for result in self.sides[0].results if result.requests)
        return sorted(complete, key=lambda result: result.level.value)


RunLevel = Callable[[LoadEndpoint, LoadLevel, Workload, Iterator[int]], Awaitable[LevelRun]]
"""A driver: it runs one level on one endpoint."""


async def run_load_test(
    test: LoadTest,
    stop: asyncio.Event,
    progress: Callable[[LoadEndpoint], Progress] | None = None,
    driver: RunLevel | None = None,
    check: Callable[[LoadEndpoint, Workload], Awaitable[None]] | None = None,
) -> LoadTestResult:
    """Run a load test until its end, or until ``stop`` is set.

    ``check`` raises UnusableEndpointError before the first level.
    """
    before = await test.scrape() if test.scrape else None
    for endpoint in test.endpoints:
        await (check or check_endpoint)(endpoint, test.work)
    if before is not None:
        before = await _settled(test, before, 1)

    async def own_driver(
        endpoint: LoadEndpoint, level: LoadLevel, work: Workload, numbers: Iterator[int]
    ) -> LevelRun:
        report = progress(endpoint) if progress else None
        client = new_client(endpoint, work, asyncio.get_running_loop().time)
        async with client:
            return await run_level(client, level, work, numbers, stop, report)

    result = LoadTestResult(test, tuple(EndpointRuns(each) for each in test.endpoints))
    session = _Session(test, result, driver or own_driver, stop)
    if test.search:
        result.found = await session.search(test.search)
    else:
        for level in test.levels:
            if stop.is_set():
                break
            await session.level(level, test.work)
    result.interrupted = stop.is_set()
    if before is not None:
        await _compare_sidecar(test, result, before)
    if len(result.sides) == 2:
        first, second = result.sides
        result.stacks = compare_stacks(
            ([run for level in first.runs for run in level],
             [run for level in second.runs for run in level]),
            (first.results, second.results),
        )  # fmt: skip
    return result


class _Session:
    """Runs levels and adds them to a result."""

    def __init__(
        self, test: LoadTest, result: LoadTestResult, driver: RunLevel, stop: asyncio.Event
    ) -> None:
        self._test, self._result, self._driver, self._stop = test, result, driver, stop
        self._round = 0

    async def level(self, level: LoadLevel, work: Workload) -> LevelResult:
        """Run all rounds of a level; return the result of the first endpoint."""
        sides = self._result.sides
        runs: dict[int, list[LevelRun]] = {index: [] for index in range(len(sides))}
        for number in range(self._test.rounds):
            first = self._round * _NUMBERS
            self._round += 1
            order = list(range(len(sides)))
            for index in order if number % 2 == 0 else reversed(order):
                if self._stop.is_set():
                    break
                run = await self._driver(sides[index].endpoint, level, work, count(first))
                runs[index].append(run)
        for index, side in enumerate(sides):
            if runs[index]:
                side.runs.append(runs[index])
                side.results.append(
                    level_result(runs[index], self._test.objectives, self._test.confidence)
                )
        return sides[0].results[-1]

    async def search(self, settings: RateSearchSettings) -> FoundRate | None:
        """Search for the highest rate that keeps every objective; None if interrupted."""
        rates = rate_search(settings.first, settings.highest, settings.resolution)
        rate = next(rates)
        while True:
            work = replace(self._test.work, duration=self._seconds(rate, settings))
            result = await self.level(LoadLevel("rate", rate), work)
            if self._stop.is_set():
                return None
            try:
                rate = rates.send(result.acceptable)
            except StopIteration as end:
                found: FoundRate = end.value
                return found

    def _seconds(self, rate: float, settings: RateSearchSettings) -> float:
        """Return how long a level lasts, fixed before its start.

        It is enough to prove the targets, except of those that would need ``most_seconds`` or more.
        """
        needed = level_requests(self._test.objectives, self._test.confidence)
        seconds = (ceil(requests / rate) for requests in needed)
        affordable = (each for each in seconds if each <= settings.most_seconds)
        return max(self._test.work.duration, max(affordable, default=0))


def level_requests(objectives: Sequence[ClientObjective], confidence: float) -> Iterator[int]:
    """Yield the number of requests with which a search measures each objective."""
    for objective in objectives:
        yield _MARGIN * least_count(objective.target, confidence)


async def check_endpoint(endpoint: LoadEndpoint, work: Workload) -> None:
    """Send one short request; raises UnusableEndpointError unless it succeeds."""
    short = replace(work, prompts=(PromptClass(8),), output_tokens=4, cancelled=0.0)
    plan = plan_request(short, -1)
    clock = asyncio.get_running_loop().time
    record = RequestRecord(plan.number, plan.prompt.name, plan.output_tokens, clock())
    try:
        async with new_client(endpoint, short, clock) as client:
            await client.send(plan, record)
    except UnsupportedModelError as error:
        raise UnusableEndpointError(f"{error}.") from None
    if record.outcome != "ok":
        raise UnusableEndpointError(_advice(endpoint, record))
    if not record.chunks:
        raise UnusableEndpointError(
            f"{endpoint.url}: the response has no text. Fix: check --api {endpoint.api}, and that "
            "the model streams."
        )


_ADVICE = {
    "401": "give the credentials in --http-config FILE",
    "403": "give the credentials in --http-config FILE",
    "404": "check the URL, --api and --model",
    "400": "check --model; give other parameters in --extra-body FILE",
    "422": "check --model; give other parameters in --extra-body FILE",
    "unreachable": "check the host and the port, and that the server runs",
    "NOT_FOUND": "check --model",
    "truncated": "check --api: the server sends no end of a stream",
    "client": "give a longer --timeout",
}


def _advice(endpoint: LoadEndpoint, record: RequestRecord) -> str:
    fix = _ADVICE.get(record.reason, "check the server's log")
    status = record.reason or record.outcome
    return f"{endpoint.url}: a first request failed ({record.outcome}: {status}). Fix: {fix}."


async def _settled(test: LoadTest, before: Sequence[Sample], requests: int) -> Sequence[Sample]:
    """Scrape the sidecar until it has recorded a number of requests, for some seconds at most."""
    assert test.scrape is not None  # noqa: S101 - there is a first scrape
    model, after = test.endpoints[0].model, before
    for _ in range(int(test.settle / _SETTLE_PAUSE)):
        after = await test.scrape()
        with suppress(SidecarRestartError):
            if requests_increase(before, after, model) >= requests:
                break
        await asyncio.sleep(_SETTLE_PAUSE)
    return after


async def _compare_sidecar(
    test: LoadTest, result: LoadTestResult, before: Sequence[Sample]
) -> None:
    side = result.sides[0]
    unfinished = sum(run.unfinished for level in side.runs for run in level)
    if unfinished:
        result.sidecar_error = f"{unfinished} requests were cut off by the interruption"
        return
    records, model = side.records, side.endpoint.model
    after = await _settled(test, before, len(records))
    try:
        result.sidecar = compare_sidecar(
            test.sidecar, before, after, records, model, test.objectives
        )
    except SidecarRestartError as error:
        result.sidecar_error = str(error)
