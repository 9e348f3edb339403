"""HTTP/2 floods through a proxy tap, beside clients of another tap in the same process."""

from __future__ import annotations

import asyncio
from functools import partial

from lab.faults.connections import watched
from lab.faults.fault import Expectation, Fault, FaultEffect, Loss
from lab.faults.setup import SCRAPE_LIMIT, SETTLE_SECONDS, FaultSetup
from lab.faults.stream_load import StreamClients
from lab.process import HOST, free_ports

FLOOD_SECONDS = 5.0
FLOODERS = 4
ADDED_SECONDS = 2.0
"""Most that a flood adds to the longest duration of another client's stream."""
ADDED_MEBIBYTES = 24.0


async def _inject(kind: str, setup: FaultSetup) -> FaultEffect:
    sink_port, flood_port = free_ports(2)
    setup.worker("http2_flood", "sink", str(sink_port))
    flooded = f"proxy={HOST}:{flood_port}={HOST}:{sink_port}"
    sidecar = await asyncio.to_thread(
        setup.sidecar, "--tap", flooded, upstream=setup.stream_server()
    )
    async with StreamClients(sidecar.tap) as quiet:
        await asyncio.sleep(3)
    async with watched(sidecar) as watch, StreamClients(sidecar.tap) as load:
        arguments = ("flood", str(flood_port), kind, f"{FLOOD_SECONDS:g}", str(FLOODERS))
        flooder = setup.worker("http2_flood", *arguments, ready=False)
        output, _ = await asyncio.to_thread(flooder.communicate)
        seconds = await sidecar.wait_for("tokenslo_tap_connections", 0, SETTLE_SECONDS, tap=flooded)
    frames = int(output)
    complete = load.complete + quiet.complete
    await sidecar.wait_for("llm_requests_total", complete, SETTLE_SECONDS, outcome="ok")
    last = await sidecar.scrape()
    skipped = round(last.sum("tokenslo_tap_skipped_total", tap=flooded))
    calls = round(last.sum("llm_requests_total")) - complete
    added = max(watch.memory) - watch.memory[0]
    return FaultEffect(
        f"{FLOODERS} connections sent {frames:,} frames in {FLOOD_SECONDS:g} s to a server that "
        "read all of them; clients of another tap in the same process streamed meanwhile",
        (Loss("connections that are no longer observed", FLOODERS, skipped,
              "tokenslo_tap_skipped_total"),),
        "the flood's connections had ended",
        seconds,
        (
            Expectation(
                f"{load.complete:,} of {len(load.ended):,} streams of other clients were complete "
                f"and counted, the slowest in {load.slowest:.2f} s ({quiet.slowest:.2f} s before "
                "the flood)",
                load.failed == 0 < load.complete and load.slowest < quiet.slowest + ADDED_SECONDS,
            ),
            Expectation(f"{calls:,} calls of the flood were counted as requests", calls >= 0),
            Expectation(
                f"memory of both processes rose from {watch.memory[0]:.0f} to "
                f"{max(watch.memory):.0f} MiB",
                added < ADDED_MEBIBYTES,
            ),
            Expectation(
                f"the slowest of {len(watch.scrapes)} scrapes took {watch.slowest:.2f} s",
                watch.slowest < SCRAPE_LIMIT,
            ),
        ),
    )  # fmt: skip


FAULTS = tuple(
    Fault(f"http2-{kind}", "HTTP/2 floods", title, partial(_inject, kind), 30.0)
    for kind, title in (
        ("rapid-reset", "calls that are reset at once"),
        ("continuation", "a header block that does not end"),
        ("ping", "a flood of PING frames"),
        ("data", "a flood of empty DATA frames"),
        ("settings", "a flood of SETTINGS frames"),
    )
)
