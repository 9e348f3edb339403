"""Responses are observed in batches: in order, with their arrival times, before later events."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

from exporter.protocol.events import CLIENT, SERVER, Direction
from exporter.taps.proxy.observation_queue import BATCH, QUEUED_BYTES, ObservationQueue
from tests.polling import until
from tests.proxy_setup import (
    ANSWER,
    REQUEST,
    LoggingObserver,
    ProxySetup,
    on_loop,
    proxied,
    receive,
    reset,
)


class Connection:
    def __init__(self, log: list[tuple[bytes, float]]) -> None:
        self.log = log

    def observe(self, data: bytes, time: float) -> None:
        self.log.append((data, time))


def test_a_full_queue_is_observed_in_order() -> None:
    queue, log = ObservationQueue(), list[tuple[bytes, float]]()
    one, other = Connection(log), Connection(log)
    reads = [(b"%d" % number, float(number)) for number in range(BATCH + 1)]
    for number, read in enumerate(reads):
        assert log == reads[: number // BATCH * BATCH]
        queue.add((one, other)[number % 2], *read)
    assert log == reads[:BATCH]
    queue.flush()
    queue.flush()
    assert log == reads


@asynccontextmanager
async def queueing(*observers: LoggingObserver) -> AsyncIterator[ProxySetup]:
    """Run a proxy without the timer that observes queued reads."""
    unused = iter(observers)
    async with proxied(lambda: next(unused)) as scene:
        scene.tap.lag.close()
        scene.tap.lag.fresh_until = float("inf")
        yield scene


async def answered(scene: ProxySetup) -> tuple[socket.socket, socket.socket]:
    """Return client and server after a response that is queued."""
    client, server = await scene.pair()
    await asyncio.get_running_loop().sock_sendall(server, ANSWER)
    assert await receive(client, len(ANSWER)) == ANSWER
    return client, server


@on_loop()
async def test_reads_are_observed_later_with_their_arrival_times() -> None:
    observer = LoggingObserver()
    async with queueing(observer) as scene:
        await answered(scene)
        received = monotonic()
        assert observer.fed[SERVER] == b""
        scene.tap.flush()
        assert observer.fed[SERVER] == ANSWER
        assert observer.times[-1] < received


@on_loop()
async def test_a_large_read_is_observed_at_once_after_the_queued_ones() -> None:
    observer = LoggingObserver()
    large = bytes(QUEUED_BYTES + 1)
    async with queueing(observer) as scene:
        client, server = await answered(scene)
        await asyncio.get_running_loop().sock_sendall(server, large)
        assert await receive(client, len(large)) == large
        await until(lambda: observer.fed[SERVER].startswith(ANSWER + large[:QUEUED_BYTES]))


@on_loop()
async def test_requests_and_ends_are_observed_after_the_responses_before_them() -> None:
    seen: list[Direction | str] = []
    observer = LoggingObserver(live=1, on_feed=lambda direction, _: seen.append(direction))
    async with queueing(observer) as scene:
        client, server = await answered(scene)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, REQUEST)
        assert await receive(server, len(REQUEST)) == REQUEST
        await loop.sock_sendall(server, ANSWER)
        assert await receive(client, len(ANSWER)) == ANSWER
        assert seen == [CLIENT, SERVER, CLIENT]
        reset(client)
        await until(lambda: observer.events == ["client gone"])
        assert seen == [CLIENT, SERVER, CLIENT, SERVER]
        assert observer.times == sorted(observer.times)


@on_loop()
async def test_a_failing_observer_affects_only_its_connection_in_a_batch() -> None:
    def fail(direction: Direction, data: bytes) -> None:
        if direction == SERVER:
            raise RuntimeError

    observers = [LoggingObserver(on_feed=fail), LoggingObserver()]
    async with queueing(*observers) as scene:
        for _ in observers:
            await answered(scene)
        scene.tap.flush()
        assert observers[0].events == ["gap"]
        assert observers[1].fed[SERVER] == ANSWER
        assert scene.skipped == ["observer_error"]
