"""Faults of a source: Triton behind a gateway that misbehaves, and a tap beside it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Literal, Self
from urllib.parse import urlsplit

from lab.faults.fault import Expectation, Fault, FaultEffect, Loss
from lab.faults.setup import SCRAPE_LIMIT, SETTLE_SECONDS, FaultSetup, until
from lab.faults.sidecar_process import ScrapedSeries, SidecarProcess
from lab.faults.stream_processes import GONE, Reader, Writer
from lab.load import Load, LoadSettings, running_load
from lab.process import HOST, free_ports

GatewayMode = Literal["down", "hung", "garbage", "endless", "slow", "redirecting", "forwarding"]
HEALTHY_SECONDS, HELD_SECONDS = 2.0, 3.0
BYTE_SECONDS = 0.1
"""Time between two bytes of a slow response."""
GAUGE = "llm_kv_cache_utilization_ratio"
"""A gauge that only the source has."""
SCRAPED = "triton/metrics"
RECOVERS_WITHIN = 30.0
LOAD = LoadSettings(
    rate=4.0,
    seconds=3600.0,
    requests=1_000_000,
    model="tensorrt_llm",
    max_tokens=(8, 16),
    disconnect_before_first_token=0.0,
    disconnect_mid_stream=0.0,
    invalid=0.0,
    failing=0.0,
)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"


@dataclass
class FaultyGateway:
    """Forwards TCP connections to servers, or treats them by its ``mode``.

    ``upstreams`` maps listening ports to ports of servers.  ``redirected`` counts the requests that
    followed a redirect.
    """

    upstreams: dict[int, int]
    mode: GatewayMode = "forwarding"
    redirected: int = 0
    _servers: list[asyncio.Server] = field(default_factory=list)
    _connections: set[asyncio.Task[None]] = field(default_factory=set)
    _decoy: asyncio.Server | None = None

    async def set(self, mode: GatewayMode) -> None:
        """Change the mode, and end all connections of the previous one."""
        was_down, self.mode = self.mode == "down", mode
        if mode == "down":
            self._close()
        elif was_down:
            await self._open()
        for task in tuple(self._connections):
            task.cancel()

    async def __aenter__(self) -> Self:
        self._decoy = await asyncio.start_server(self._count, HOST, 0)
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()
        if self._decoy:
            self._decoy.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _open(self) -> None:
        for port, upstream in self.upstreams.items():
            serve = partial(self._serve, upstream)
            self._servers.append(await asyncio.start_server(serve, HOST, port))

    def _close(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def _count(self, reader: Reader, writer: Writer) -> None:
        self.redirected += 1
        writer.close()

    async def _serve(self, upstream: int, reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task  # noqa: S101
        self._connections.add(task)
        with closing(writer), suppress(*GONE, asyncio.CancelledError):
            if self.mode == "forwarding":
                await self._forward(upstream, reader, writer)
            else:
                await reader.readuntil(b"\r\n\r\n")
                async for data in self._response():
                    writer.write(data)
                    await writer.drain()
        self._connections.discard(task)

    async def _forward(self, upstream: int, reader: Reader, writer: Writer) -> None:
        from_server, to_server = await asyncio.open_connection(HOST, upstream)
        with closing(to_server):
            requests = asyncio.create_task(_copy(reader, to_server))
            try:
                await _copy(from_server, writer)
            finally:
                requests.cancel()

    async def _response(self) -> AsyncIterator[bytes]:
        """Yield the parts of a response of the mode."""
        match self.mode:
            case "garbage":
                yield _HEAD + random.Random(1).randbytes(65536)
            case "endless":
                yield _HEAD
                while True:
                    yield b"# a comment that does not end the response\n" * 1000
            case "slow":
                for byte in _HEAD + b"nv_inference_request_success 1\n" * 1000:
                    yield bytes([byte])
                    await asyncio.sleep(BYTE_SECONDS)
            case "redirecting":
                assert self._decoy  # noqa: S101
                port = self._decoy.sockets[0].getsockname()[1]
                location = f"Location: http://{HOST}:{port}/metrics\r\n".encode()
                yield b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n" + location + b"\r\n"
            case _:
                await asyncio.Event().wait()


async def _copy(reader: Reader, writer: Writer) -> None:
    with suppress(*GONE):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


_INJECTED = {
    "down": "connections to Triton were refused",
    "hung": "Triton accepted connections and did not respond",
    "garbage": "Triton answered 200 with 64 KiB of random bytes",
    "endless": "Triton's responses did not end",
    "slow": f"Triton sent one byte per {BYTE_SECONDS * 1000:.0f} ms",
    "redirecting": "Triton answered 302 with the address of another server",
}


@asynccontextmanager
async def _scraping(sidecar: SidecarProcess, taken: list[ScrapedSeries]) -> AsyncIterator[None]:
    """Scrape the sidecar until the scope exits; append the scrapes to ``taken``."""

    async def scrape() -> None:
        while True:
            taken.append(await sidecar.scrape())
            await asyncio.sleep(0.1)

    task = asyncio.create_task(scrape())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _inject(mode: GatewayMode, setup: FaultSetup) -> FaultEffect:
    triton = await asyncio.to_thread(setup.triton)
    metrics = urlsplit(triton.metrics).port
    assert metrics  # noqa: S101
    api_port, metrics_port = free_ports(2)
    ports = {api_port: triton.ports[0], metrics_port: metrics}
    scrapes: list[ScrapedSeries] = []
    async with FaultyGateway(ports) as gateway:
        options = ("--timeout", "1s", "--stale-after", "2s")
        urls = ("--triton", f"http://{HOST}:{api_port}")
        metrics_url = ("--triton-metrics", f"http://{HOST}:{metrics_port}/metrics")
        sidecar = await asyncio.to_thread(
            setup.sidecar, *urls, *metrics_url, *options, upstream=triton.ports[0]
        )
        load = setup.stack.enter_context(running_load(Load(f"http://{HOST}:{sidecar.tap}", LOAD)))
        await sidecar.wait_for("tokenslo_source_up", 1, SETTLE_SECONDS, source=SCRAPED)

        async def published() -> bool:
            return (await sidecar.scrape()).count(GAUGE) > 0

        await until(published, SETTLE_SECONDS, f"{GAUGE} of Triton")
        await asyncio.sleep(HEALTHY_SECONDS)
        before = await sidecar.scrape()
        began = monotonic()
        await gateway.set(mode)
        detected = await sidecar.wait_for("tokenslo_source_up", 0, SETTLE_SECONDS, source=SCRAPED)

        async def withdrawn() -> bool:
            return not await published()

        await until(withdrawn, SETTLE_SECONDS, f"{GAUGE} is withdrawn")
        withdrawn_after = monotonic() - began
        async with _scraping(sidecar, scrapes):
            await asyncio.sleep(HELD_SECONDS)
        lasted = monotonic() - began
        during = await sidecar.scrape()
        await gateway.set("forwarding")
        lifted = monotonic()
        await sidecar.wait_for("tokenslo_source_up", 1, SETTLE_SECONDS, source=SCRAPED)
        await until(published, SETTLE_SECONDS, f"{GAUGE} is published again")
        recovered = monotonic() - lifted
        await asyncio.sleep(HEALTHY_SECONDS)
        load.switch(replace(LOAD, rate=0.0))
        await sidecar.wait_for("llm_live_streams", 0, SETTLE_SECONDS)
        summary = load.summary()
        ok = summary.outcomes["ok"]
        counted = await sidecar.wait_for("llm_requests_total", ok, SETTLE_SECONDS, outcome="ok")
        redirected = gateway.redirected
    del counted
    age = during.sum("tokenslo_source_age_seconds", source=SCRAPED)
    errors = during.sum("tokenslo_source_errors_total") - before.sum("tokenslo_source_errors_total")
    slowest = max(each.seconds for each in scrapes)
    expectations = [
        Expectation(f"{ok:,} of {summary.requests:,} requests through the tap were served and "
                    "counted meanwhile", ok == summary.requests > 0),
        Expectation(f"the fault was visible in `tokenslo_source_up` after {detected:.1f} s, with "
                    f"{errors:.0f} failed scrapes", errors > 0),
        Expectation(f"the source's gauges were withdrawn after {withdrawn_after:.1f} s",
                    withdrawn_after < 6),
        Expectation(f"the slowest of {len(scrapes)} scrapes of the sidecar took {slowest:.2f} s",
                    slowest < SCRAPE_LIMIT),
    ]  # fmt: skip
    if mode == "redirecting":
        text = f"{redirected} requests followed the redirect"
        expectations.append(Expectation(text, redirected == 0))
    return FaultEffect(
        f"{_INJECTED[mode]} for {lasted:.0f} s, while clients streamed through the proxy tap",
        (
            Loss(
                "seconds of the source's gauges",
                int(lasted),
                min(int(lasted), int(age)),
                "tokenslo_source_age_seconds",
            ),
        ),
        "the next scrape succeeded",
        recovered,
        tuple(expectations),
    )


_TITLES: Mapping[GatewayMode, str] = {
    "down": "a source is down",
    "hung": "a source hangs",
    "garbage": "a source answers with garbage",
    "endless": "a source's response does not end",
    "slow": "a source is slow",
    "redirecting": "a source redirects",
}
FAULTS = tuple(
    Fault(f"source-{mode}", "Sources", title, partial(_inject, mode), RECOVERS_WITHIN)
    for mode, title in _TITLES.items()
)
