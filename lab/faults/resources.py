"""Exhausted resources of the tap process: file descriptors and memory."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic

from lab.faults.fault import Expectation, Fault, FaultEffect, Loss
from lab.faults.memory_cgroup import memory_cgroup
from lab.faults.setup import INTERVAL, SCRAPE_LIMIT, SETTLE_SECONDS, FaultSetup, until
from lab.faults.sidecar_process import ScrapedSeries, SidecarProcess, descriptors
from lab.faults.stream_load import read_stream, read_streams
from lab.faults.stream_processes import request
from lab.process import HOST

FILES = 256
CLIENTS = 200
FEW_FILES = 8
"""Descriptors that the tap process may open above those that it has."""
ROOM_MEBIBYTES = 24
"""Memory or address space that the tap process may take above what it has."""
MEBIBYTE = 2**20
HEAVY_CLIENTS = 1500
STREAMS = 20
HELD_SECONDS = 3.0
_REFUSED = b" 503 "


async def _connect(port: int, data: bytes) -> socket.socket:
    """Open a connection and send bytes, as many as the other end reads in two seconds."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setblocking(False)
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(2):
            await loop.sock_connect(client, (HOST, port))
            await loop.sock_sendall(client, data)
    return client


async def _connect_many(port: int, data: bytes, count: int) -> list[socket.socket]:
    return list(await asyncio.gather(*(_connect(port, data) for _ in range(count))))


async def _served(port: int) -> bool:
    return (await read_stream(port, 2, 0.01)).complete


async def _scrapes_while(sidecar: SidecarProcess, seconds: float) -> list[ScrapedSeries]:
    end, found = monotonic() + seconds, []
    while monotonic() < end:
        found.append(await sidecar.scrape())
        await asyncio.sleep(0.1)
    return found


async def _first_bytes(client: socket.socket) -> bytes:
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(5):
            return await asyncio.get_running_loop().sock_recv(client, 4096)
    return b""


async def _descriptor_limit(setup: FaultSetup) -> FaultEffect:
    upstream = setup.stream_server()
    prefix = ("prlimit", f"--nofile={FILES}:{FILES}")
    sidecar = await asyncio.to_thread(setup.sidecar, upstream=upstream, prefix=prefix)
    assert await _served(sidecar.tap)  # noqa: S101
    held = request(3, 4.0)
    clients = await _connect_many(sidecar.tap, held, CLIENTS)
    scrapes = await _scrapes_while(sidecar, HELD_SECONDS)
    heads = await asyncio.gather(*map(_first_bytes, clients))
    ok = sum(b" 200 " in head for head in heads)
    refused = sum(_REFUSED in head or not head for head in heads)
    counted = round((await sidecar.scrape()).sum("tokenslo_tap_refused_total"))
    for client in clients:
        client.close()
    seconds = await until(lambda: _served(sidecar.tap), SETTLE_SECONDS, "a request is served")
    slowest = max(each.seconds for each in scrapes)
    return FaultEffect(
        f"{CLIENTS} connections to a sidecar with a limit of {FILES} open files",
        (Loss("connections", refused, counted, "tokenslo_tap_refused_total"),),
        "the next request was served once clients had disconnected",
        seconds,
        (
            Expectation(f"{ok} of {CLIENTS} connections were served", ok + refused == CLIENTS),
            Expectation(
                f"the slowest of {len(scrapes)} scrapes took {slowest:.2f} s",
                slowest < SCRAPE_LIMIT,
            ),
        ),
    )


async def _no_descriptors(setup: FaultSetup) -> FaultEffect:
    upstream = setup.stream_server()
    sidecar = await asyncio.to_thread(setup.sidecar, upstream=upstream)
    assert await _served(sidecar.tap)  # noqa: S101
    tap = await sidecar.new_tap_pid()
    previous = resource.prlimit(tap, resource.RLIMIT_NOFILE)
    few = descriptors(tap) + FEW_FILES
    resource.prlimit(tap, resource.RLIMIT_NOFILE, (few, previous[1]))
    held = request(400, 0.01)
    clients = await _connect_many(sidecar.tap, held, 3 * FEW_FILES)
    before = _cpu_seconds(tap)
    scrapes = await _scrapes_while(sidecar, HELD_SECONDS)
    cpu = (_cpu_seconds(tap) - before) / HELD_SECONDS
    resource.prlimit(tap, resource.RLIMIT_NOFILE, previous)
    began = monotonic()
    heads = await asyncio.gather(*map(_first_bytes, clients))
    await until(lambda: _served(sidecar.tap), SETTLE_SECONDS, "a request is served")
    seconds = monotonic() - began
    counted = round((await sidecar.scrape()).sum("tokenslo_tap_refused_total"))
    for client in clients:
        client.close()
    failed = sum(b" 200 " not in head for head in heads)
    slowest = max(each.seconds for each in scrapes)
    return FaultEffect(
        f"the tap process could open {FEW_FILES} more files for {HELD_SECONDS:g} s "
        f"(prlimit), and {len(clients)} clients connected",
        (Loss("connections", failed, counted, "tokenslo_tap_refused_total"),),
        "the next request was served once there were descriptors",
        seconds,
        (
            Expectation(
                f"the same tap process continued, at {cpu:.0%} of a core meanwhile",
                sidecar.tap_pid() == tap and cpu < 0.5,
            ),
            Expectation(
                f"the slowest of {len(scrapes)} scrapes took {slowest:.2f} s",
                slowest < SCRAPE_LIMIT,
            ),
        ),
    )


@contextmanager
def _address_space(pid: int, room: int) -> Iterator[None]:
    """Limit the address space of a process to ``room`` bytes more."""
    limit = _mapped_bytes(pid) + room
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    yield
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


async def _memory_limit(
    limited: Callable[[int, int], AbstractContextManager[None]], injected: str, setup: FaultSetup
) -> FaultEffect:
    upstream = setup.stream_server()
    sidecar = await asyncio.to_thread(setup.sidecar, upstream=upstream)
    assert await _served(sidecar.tap)  # noqa: S101
    tap = await sidecar.new_tap_pid()
    streams = asyncio.create_task(read_streams(sidecar.tap, STREAMS, 150, 0.1))
    await sidecar.wait_for("llm_live_streams", STREAMS, SETTLE_SECONDS)
    await asyncio.sleep(3 * INTERVAL)
    # Heads of 60 KiB, which the tap keeps until they are complete.
    unfinished = b"POST / HTTP/1.1\r\nHost: x\r\nX-Padding: " + b"x" * 60 * 1024
    with limited(tap, ROOM_MEBIBYTES * MEBIBYTE):
        clients = await _connect_many(sidecar.tap, unfinished, HEAVY_CLIENTS)
        scrapes = await _scrapes_while(sidecar, HELD_SECONDS)
        for client in clients:
            client.close()
        began = monotonic()
    await until(lambda: _served(sidecar.tap), SETTLE_SECONDS, "a request is served")
    await sidecar.wait_for("tokenslo_source_up", 1, SETTLE_SECONDS, source="taps")
    seconds = monotonic() - began
    cut = sum(not each.complete for each in await streams)
    last = await sidecar.scrape()
    lost = round(last.sum("tokenslo_source_lost_records_total"))
    restarts = round(last.sum("tokenslo_tap_restarts_total"))
    failures = round(last.sum("tokenslo_source_errors_total", source="taps"))
    slowest = max(each.seconds for each in scrapes)
    return FaultEffect(
        f"the tap process had {ROOM_MEBIBYTES} MiB {injected}, and {HEAVY_CLIENTS:,} "
        f"clients sent heads of 60 KiB that did not end, during {STREAMS} streams",
        (Loss("streams", cut, lost, "tokenslo_source_lost_records_total"),),
        "the next request was served, by "
        + ("a new tap process" if restarts else "the same tap process"),
        seconds,
        (
            Expectation(
                f"the sidecar served {len(scrapes)} scrapes, the slowest in {slowest:.2f} s",
                slowest < SCRAPE_LIMIT,
            ),
            Expectation(f"{failures} snapshots of the tap process failed", failures < 100),
            Expectation(f"`tokenslo_tap_restarts_total` is {restarts}", restarts <= 1),
        ),
    )


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _mapped_bytes(pid: int) -> int:
    """Return the size of a process's address space."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


FAULTS = (
    Fault(
        "descriptor-limit",
        "Resources",
        "a low limit of open files",
        _descriptor_limit,
        30.0,
    ),
    Fault("no-descriptors", "Resources", "no free file descriptor", _no_descriptors, 30.0),
    Fault(
        "memory-limit",
        "Resources",
        "no free address space",
        partial(_memory_limit, _address_space, "of address space left (RLIMIT_AS)"),
        30.0,
    ),
    Fault(
        "memory-cgroup",
        "Resources",
        "no free memory",
        partial(_memory_limit, memory_cgroup, "of memory left (cgroup)"),
        30.0,
    ),
)
