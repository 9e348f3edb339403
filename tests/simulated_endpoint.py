"""A simulated endpoint of load tests, in the time of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.level import LevelRun
from loadtest.records import RequestRecord
from loadtest.settings import RequestPlan


@dataclass
class SimulatedClient:
    """Requests wait for one of ``slots`` and hold it for ``first`` and a gap per further token.

    ``stalls`` are begins and ends of times in which no token is sent.
    """

    slots: int = 1000
    first: float = 0.1
    gap: float = 0.02
    stalls: tuple[tuple[float, float], ...] = ()
    counts: bool = True
    sent: list[float] = field(default_factory=list)
    most: int = 0
    _busy: int = 0

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.slots)

    async def __aenter__(self) -> SimulatedClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def send(self, plan: RequestPlan, record: RequestRecord) -> None:
        clock = asyncio.get_running_loop().time
        record.sent = clock()
        self.sent.append(record.sent)
        async with self._free:
            self._busy += 1
            self.most = max(self.most, self._busy)
            for index in range(plan.output_tokens):
                await self._wait(self.gap if index else self.first, clock)
                record.chunks.append(clock())
            self._busy -= 1
        record.ended, record.outcome = clock(), "ok"
        record.input_tokens = plan.prompt.words
        record.output_tokens = plan.output_tokens if self.counts else None

    async def _wait(self, seconds: float, clock: Callable[[], float]) -> None:
        await asyncio.sleep(seconds)
        for begin, end in self.stalls:
            if begin <= clock() < end:
                await asyncio.sleep(end - clock())


def measured_times(run: LevelRun) -> list[float]:
    return sorted(record.scheduled for record in run.measured)
