"""Streaming clients that record the end of each stream."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from types import TracebackType
from typing import Self

from lab.faults.stream_processes import END, GONE, request
from lab.process import HOST

_EVENT = b"data: "
RETRY_SECONDS = 0.05
CLIENT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class EndedStream:
    """A client's stream: monotonic times in seconds, tokens, and whether it is complete."""

    began: float
    ended: float
    tokens: int
    complete: bool
    longest_gap: float

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.ended - self.began


async def read_stream(
    port: int, tokens: int, pace: float, *, prompt: str = "", size: int = 1
) -> EndedStream:
    """Request a stream and read it to its end, whatever that is."""
    began = last = monotonic()
    count, gap, tail, complete = 0, 0.0, b"", False
    writer = None
    with suppress(*GONE):
        async with asyncio.timeout(CLIENT_SECONDS):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(request(tokens, pace, prompt=prompt, size=size))
            while not complete and (data := await reader.read(65536)):
                now = monotonic()
                gap, last = max(gap, now - last), now
                data = tail + data
                count += data.count(_EVENT)
                complete, tail = data.endswith(END), data[1 - len(_EVENT) :]
    if writer:
        writer.close()
    return EndedStream(began, monotonic(), count, complete and count == tokens, gap)


async def read_streams(
    port: int, count: int, tokens: int, pace: float, *, per_second: float = 1000.0
) -> list[EndedStream]:
    """Read ``count`` streams at the same time, started at a rate."""
    streams = []
    for number in range(count):
        streams.append(asyncio.create_task(read_stream(port, tokens, pace, prompt=f"p{number}")))
        await asyncio.sleep(1 / per_second)
    return list(await asyncio.gather(*streams))


@dataclass
class StreamClients:
    """Clients that request one stream after the other until the scope exits.

    ``ended`` has every stream; a failed client waits before its next request.
    """

    port: int
    clients: int = 8
    tokens: int = 10
    pace: float = 0.02
    ended: list[EndedStream] = field(default_factory=list)
    _stopping: bool = False
    _tasks: Sequence[asyncio.Task[None]] = ()

    @property
    def complete(self) -> int:
        """The number of complete streams."""
        return sum(each.complete for each in self.ended)

    @property
    def failed(self) -> int:
        """The number of failed streams."""
        return len(self.ended) - self.complete

    @property
    def slowest(self) -> float:
        """The duration of the slowest complete stream in seconds."""
        return max((each.seconds for each in self.ended if each.complete), default=0.0)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(self.clients)]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping = True
        if error:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=error is not None)

    async def _run(self, number: int) -> None:
        dice = random.Random(number)
        await asyncio.sleep(dice.uniform(0, self.tokens * self.pace))
        while not self._stopping:
            prompt = f"prompt {number}.{len(self.ended)}"
            ended = await read_stream(self.port, self.tokens, self.pace, prompt=prompt)
            self.ended.append(ended)
            if not ended.complete:
                await asyncio.sleep(RETRY_SECONDS)
