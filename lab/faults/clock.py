"""Steps of the wall clock, by libfaketime: the monotonic clock is not affected, as in reality."""

from __future__ import annotations

import asyncio
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic, time

import aiohttp

from lab import toolchain
from lab.faults.fault import Expectation, Fault, FaultEffect
from lab.faults.setup import SETTLE_SECONDS, FaultSetup, until
from lab.faults.sidecar_process import SidecarProcess
from lab.faults.stream_load import StreamClients

STEP_SECONDS = 3600
HISTOGRAMS = (
    "llm_time_to_first_token_seconds",
    "llm_inter_token_latency_seconds",
    "llm_request_duration_seconds",
)
HELD_SECONDS = 6.0
LONGEST = "10.0"
"""A bucket boundary above the duration of every stream."""
RECOVERS_WITHIN = 30.0


def _library(setup: FaultSetup) -> Path:
    package = toolchain.debian("libfaketime", setup.progress, "libfaketime", "use Debian")
    return next(package.glob("usr/lib/*/faketime/libfaketimeMT.so.1"))


async def _clock_offset(sidecar: SidecarProcess) -> float:
    """Return the offset of the sidecar's clock, from the header Date of a response."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{sidecar.server.url}/healthz") as response,
    ):
        return parsedate_to_datetime(response.headers["Date"]).timestamp() - time()


async def _inject(step: int, setup: FaultSetup) -> FaultEffect:
    offset = setup.folder / "offset"
    offset.write_text("+0")
    env = {
        "LD_PRELOAD": str(await asyncio.to_thread(_library, setup)),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    upstream = setup.stream_server()
    sidecar = await asyncio.to_thread(setup.sidecar, upstream=upstream, env=env)
    async with StreamClients(sidecar.tap) as load:
        await asyncio.sleep(2)
        scrapes = [await sidecar.scrape()]
        stepped = monotonic()
        offset.write_text(f"{step:+d}")

        async def has_stepped() -> bool:
            return abs(await _clock_offset(sidecar) - step) < 3

        await until(has_stepped, SETTLE_SECONDS, "the clock of the sidecar has stepped")
        while monotonic() - stepped < HELD_SECONDS:
            scrapes.append(await sidecar.scrape())
            await asyncio.sleep(0.2)
        streams = (await sidecar.scrape()).sum("llm_requests_total")

        async def counts_on() -> bool:
            return (await sidecar.scrape()).sum("llm_requests_total") > streams

        recovered = await until(counts_on, SETTLE_SECONDS, "requests are counted after the step")
    await sidecar.wait_for("llm_requests_total", load.complete, SETTLE_SECONDS, outcome="ok")
    last = await sidecar.scrape()
    scrapes.append(last)
    decreased = {name for earlier, later in pairwise(scrapes) for name in earlier.decreases(later)}
    beyond = sum(
        last.sum(f"{name}_count") - last.sum(f"{name}_bucket", le=LONGEST) for name in HISTOGRAMS
    )
    failed_scrapes = last.sum("tokenslo_source_errors_total")
    return FaultEffect(
        f"the wall clock of both processes was set {'forward' if step > 0 else 'back'} by one hour "
        f"(libfaketime), during {len(load.ended):,} streams through the proxy tap",
        (),
        "no recovery needed: durations come from the monotonic clock",
        recovered,
        (
            Expectation(
                f"{load.complete:,} of {len(load.ended):,} streams were complete and counted",
                load.failed == 0 < load.complete,
            ),
            Expectation(f"{beyond:.0f} measured latencies above 10 s", beyond == 0),
            Expectation(
                f"{len(decreased)} counters decreased in {len(scrapes)} scrapes", not decreased
            ),
            Expectation(f"{failed_scrapes:.0f} failed scrapes", failed_scrapes == 0),
        ),
    )


FAULTS = (
    Fault(
        "clock-forward",
        "Clock",
        "the clock is set forward",
        partial(_inject, STEP_SECONDS),
        RECOVERS_WITHIN,
    ),
    Fault(
        "clock-back",
        "Clock",
        "the clock is set back",
        partial(_inject, -STEP_SECONDS),
        RECOVERS_WITHIN,
    ),
)
