"""Prometheus is killed and started again, while requests are counted."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import pairwise
from time import monotonic, time
from typing import Any

import aiohttp

from lab import prometheus, toolchain
from lab.faults.fault import Expectation, Fault, FaultEffect, Loss
from lab.faults.setup import SETTLE_SECONDS, FaultSetup, until
from lab.faults.stream_load import StreamClients
from lab.prometheus import Prometheus

SCRAPE_SECONDS = 0.5
RUNNING_SECONDS, DOWN_SECONDS = 4.0, 5.0
RESTARTS = 2
COUNTER = 'sum(llm_requests_total{outcome="ok"})'


async def _query(server: Prometheus, query: str) -> list[Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{server.url}/api/v1/query", params={"query": query}) as response,
    ):
        result: list[Any] = (await response.json())["data"]["result"]
    return result


async def _value(server: Prometheus, query: str) -> float:
    """Return the value of a query for one series, 0 without a sample."""
    result = await _query(server, query)
    return float(result[0]["value"][1]) if result else 0.0


async def _inject(setup: FaultSetup) -> FaultEffect:
    program = await asyncio.to_thread(toolchain.program, "prometheus", setup.progress)
    sidecar = await asyncio.to_thread(setup.sidecar, upstream=setup.stream_server())
    scrape = {"tokenslo": f"{sidecar.server.url}/metrics"}

    def start() -> Prometheus:
        folder = setup.folder / "prometheus"
        server = prometheus.start(program, folder, scrape=scrape, interval=SCRAPE_SECONDS)
        return setup.stack.enter_context(server)

    server = await asyncio.to_thread(start)
    slowest = 0.0
    async with StreamClients(sidecar.tap) as load:
        for _ in range(RESTARTS):
            await asyncio.sleep(RUNNING_SECONDS)
            os.kill(server.pid, signal.SIGKILL)
            await asyncio.to_thread(server.supervisor.wait)
            await asyncio.sleep(DOWN_SECONDS)
            began, wall = monotonic(), time()
            server = await asyncio.to_thread(start)

            async def has_scraped(since: float = wall, at: Prometheus = server) -> bool:
                return await _value(at, 'timestamp(up{job="tokenslo"})') > since

            await until(has_scraped, SETTLE_SECONDS, "Prometheus scrapes again")
            slowest = max(slowest, monotonic() - began)
        await asyncio.sleep(RUNNING_SECONDS)

    async def is_complete() -> bool:
        return await _value(server, COUNTER) == load.complete

    await until(is_complete, SETTLE_SECONDS, f"{COUNTER} is {load.complete}")
    samples = [
        float(at) for at, _ in (await _query(server, 'up{job="tokenslo"}[10m]'))[0]["values"]
    ]
    gaps = sorted(after - before for before, after in pairwise(samples))[-RESTARTS:]
    ups = await _value(server, 'min_over_time(up{job="tokenslo"}[10m])')
    lost = int(sum(gaps))
    return FaultEffect(
        f"SIGKILL to a Prometheus that scraped the sidecar every {SCRAPE_SECONDS:g} s, "
        f"{RESTARTS} times, for {DOWN_SECONDS:g} s each, during {len(load.ended):,} streams",
        (
            Loss(
                "seconds of samples",
                lost,
                0,
                "",
                lost,
                "nothing scraped; the increase of a counter over the gap is complete",
            ),
        ),
        "Prometheus scraped the sidecar again after its start",
        slowest,
        (
            Expectation(
                f"Prometheus has {load.complete:,} of {len(load.ended):,} requests",
                load.failed == 0 < load.complete,
            ),
            Expectation(f"every one of {len(samples)} scrapes succeeded", ups == 1),
        ),
    )


FAULTS = (
    Fault("prometheus-restart", "Prometheus", "Prometheus is killed and restarts", _inject, 30.0),
)
