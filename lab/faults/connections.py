"""Many connections and slow readers at a proxy tap, with other clients beside them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from exporter.taps.proxy.proxy_tap import SPARE_DESCRIPTORS
from lab.faults.fault import Expectation, Fault, FaultEffect, Loss
from lab.faults.setup import SCRAPE_LIMIT, SETTLE_SECONDS, FaultSetup, allow_many_files
from lab.faults.sidecar_process import ScrapedSeries, SidecarProcess, mebibytes
from lab.faults.stream_load import StreamClients, read_streams
from lab.faults.stream_processes import request
from lab.process import HOST

CONNECTIONS, ABOVE_LIMIT = 10_000, 100
SLOW_READERS = 5_000
SLOW_TOKENS, TOKEN_BYTES = 40, 1024
HELD_SECONDS = 10.0
CONNECTS_PER_SECOND = 1_000.0
MEBIBYTES_PER_THOUSAND = 32.0
"""Memory of both processes that 1,000 connections may take."""
_RECEIVE_BUFFER, _SEGMENT_BYTES = 1, 256  # the kernel's minimum, and a small segment


@dataclass
class SidecarWatch:
    """Scrapes and memory (MiB, both processes) of a sidecar while a fault lasts."""

    scrapes: list[ScrapedSeries] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    @property
    def slowest(self) -> float:
        """The duration of the slowest scrape in seconds."""
        return max((each.seconds for each in self.scrapes), default=0.0)

    def highest(self, name: str) -> float:
        """Return the highest sum of a metric's series."""
        return max((each.sum(name) for each in self.scrapes), default=0.0)


@asynccontextmanager
async def watched(sidecar: SidecarProcess, pause: float = 0.5) -> AsyncIterator[SidecarWatch]:
    """Scrape and measure a sidecar until the scope exits."""
    found = SidecarWatch(memory=[_memory(sidecar)])

    async def watch() -> None:
        while True:
            found.scrapes.append(await sidecar.scrape())
            found.memory.append(_memory(sidecar))
            await asyncio.sleep(pause)

    task = asyncio.create_task(watch())
    try:
        yield found
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _memory(sidecar: SidecarProcess) -> float:
    return sum(map(mebibytes, sidecar.pids().values()))


async def _many_connections(setup: FaultSetup) -> FaultEffect:
    files = allow_many_files()
    # The proxy lowers its limit to what open files permit, two for each connection.
    limit = min(CONNECTIONS, (files - SPARE_DESCRIPTORS) // 2)
    upstream = setup.stream_server()
    sidecar = await asyncio.to_thread(
        setup.sidecar, "--tap-connections", str(CONNECTIONS), upstream=upstream
    )
    total = CONNECTIONS + ABOVE_LIMIT
    async with watched(sidecar) as watch:
        ended = await read_streams(sidecar.tap, total, 2, 15.0, per_second=CONNECTS_PER_SECOND)
    seconds = await sidecar.wait_for("tokenslo_tap_connections", 0, SETTLE_SECONDS)
    complete = sum(each.complete for each in ended)
    await sidecar.wait_for("llm_requests_total", complete, SETTLE_SECONDS, outcome="ok")
    last = await sidecar.scrape()
    refused = round(last.sum("tokenslo_tap_refused_total", reason="connections"))
    most = watch.highest("tokenslo_tap_connections")
    added = max(watch.memory) - watch.memory[0]
    per_thousand = added / total * 1000
    return FaultEffect(
        f"{total:,} clients opened connections and requested a stream each, at "
        f"{CONNECTS_PER_SECOND:,.0f} per second, with `--tap-connections {CONNECTIONS}`"
        + _hard_limit(files, limit),
        (Loss("streams", total - complete, refused, "tokenslo_tap_refused_total"),),
        "all connections had ended",
        seconds,
        (
            Expectation(
                f"{complete:,} streams were complete, over {most:,.0f} connections at a time",
                complete == limit == most,
            ),
            Expectation(
                f"memory of both processes rose from {watch.memory[0]:.0f} to "
                f"{max(watch.memory):.0f} MiB",
                per_thousand < MEBIBYTES_PER_THOUSAND,
            ),
            Expectation(
                f"the slowest of {len(watch.scrapes)} scrapes took {watch.slowest:.2f} s",
                watch.slowest < SCRAPE_LIMIT,
            ),
        ),
    )


def _hard_limit(files: int, limit: int) -> str:
    """Return a remark if this machine permits fewer connections than the row needs."""
    if limit == CONNECTIONS:
        return ""
    needed = 2 * CONNECTIONS + SPARE_DESCRIPTORS
    return (
        f"; that needs {needed:,} open files, and this machine's hard limit, which the harness "
        f"cannot raise, is {files:,}: it permits {limit:,}"
    )


async def _slow_reader(port: int, number: int) -> socket.socket:
    """Request a stream and read nothing of it."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setblocking(False)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES)
    await loop.sock_connect(client, (HOST, port))
    prompt = f"slow {number}"
    await loop.sock_sendall(client, request(SLOW_TOKENS, 0.1, prompt=prompt, size=TOKEN_BYTES))
    return client


async def _slow_readers(setup: FaultSetup) -> FaultEffect:
    allow_many_files()
    sidecar = await asyncio.to_thread(setup.sidecar, upstream=setup.stream_server())
    other_server = setup.stream_server()
    async with StreamClients(other_server, clients=4) as direct:
        await asyncio.sleep(2)
    clients: list[socket.socket] = []
    async with watched(sidecar) as watch, StreamClients(sidecar.tap, clients=4) as load:
        for number in range(SLOW_READERS):
            clients.append(await _slow_reader(sidecar.tap, number))
            await asyncio.sleep(1 / CONNECTS_PER_SECOND)
        await asyncio.sleep(HELD_SECONDS)
    backpressure = (await sidecar.scrape()).sum("llm_client_backpressure_seconds_total")
    for client in clients:
        client.close()
    seconds = await sidecar.wait_for("tokenslo_tap_connections", 0, SETTLE_SECONDS)
    last = await sidecar.scrape()
    counted = round(last.sum("llm_requests_total")) - load.complete
    added = max(watch.memory) - watch.memory[0]
    return FaultEffect(
        f"{SLOW_READERS:,} clients requested streams of {SLOW_TOKENS * TOKEN_BYTES // 1024} KiB "
        f"and read nothing for {HELD_SECONDS:.0f} s, and then disconnected; four others read "
        "theirs",
        (Loss("streams of the slow readers", SLOW_READERS, counted, "llm_requests_total"),),
        "all connections had ended",
        seconds,
        (
            Expectation(
                f"{load.complete:,} of {len(load.ended):,} streams of other clients were complete, "
                f"the slowest in {load.slowest:.2f} s ({direct.slowest:.2f} s without proxy and "
                "slow readers)",
                load.failed == 0 < load.complete and load.slowest < 10,
            ),
            Expectation(
                f"{backpressure:,.0f} s in `llm_client_backpressure_seconds_total`",
                backpressure > SLOW_READERS,
            ),
            Expectation(
                f"memory of both processes rose from {watch.memory[0]:.0f} to "
                f"{max(watch.memory):.0f} MiB",
                added / SLOW_READERS * 1000 < MEBIBYTES_PER_THOUSAND,
            ),
            Expectation(
                f"the slowest of {len(watch.scrapes)} scrapes took {watch.slowest:.2f} s",
                watch.slowest < SCRAPE_LIMIT,
            ),
        ),
    )


FAULTS = (
    Fault("connections-10000", "Connections", "10,000 connections", _many_connections, 30.0),
    Fault("slow-readers-5000", "Connections", "5,000 slow readers", _slow_readers, 30.0),
)
