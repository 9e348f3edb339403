"""Triton's own tracer against the sidecar's endpoint: compared with client measurements."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web

from exporter.samples import Distribution, Snapshot
from exporter.sockets import Listen
from exporter.sources.probe import ID
from exporter.sources.traces.traces_source import TracesSource
from lab.engine_settings import EngineSettings
from lab.repository import write_repository
from lab.triton import Triton
from tests import traced_triton
from tests.polling import until

pytestmark = pytest.mark.alone

ANY = Listen("127.0.0.1", 0)
STREAMS, WORDS = 6, 30


@asynccontextmanager
async def collecting(bodies: list[bytes]) -> AsyncIterator[str]:
    async def take(request: web.Request) -> web.Response:
        bodies.append(await request.read())
        return web.json_response({})

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
    await runner.cleanup()


@asynccontextmanager
async def serving(
    triton: Callable[..., Triton], folder: Path, url: str, rate: int = 1
) -> AsyncIterator[Triton]:
    traced_triton.write_models(folder / "models")
    write_repository(folder / "models", engine=EngineSettings())
    context = await asyncio.to_thread(
        triton, folder / "models", folder, arguments=traced_triton.arguments(url, rate)
    )
    with context as running:
        yield running


def measured(snapshot: Snapshot, signal: str, model: str) -> Distribution:
    (measurement,) = [
        one for one in snapshot.measurements if (one.signal, one.model) == (signal, model)
    ]
    (value,) = measurement.samples.values()
    assert isinstance(value, Distribution)
    return value


def count(snapshot: Snapshot, model: str) -> float:
    return sum(
        value.count
        for measurement in snapshot.measurements
        if (measurement.signal, measurement.model) == ("ttft", model)
        for value in measurement.samples.values()
        if isinstance(value, Distribution)
    )


async def snapshot_with(source: TracesSource, model: str, requests: int) -> Snapshot:
    """Return the first snapshot that measured a count of requests."""

    async def snapshot() -> Snapshot | None:
        found = await source.snapshot(time.monotonic())
        return found if count(found, model) >= requests else None

    found = await until(snapshot, pause=0.1)
    assert found
    return found


def nearly(measured: Distribution, seen: list[float], tolerance: float) -> None:
    """Check the count, and the mean to ``tolerance`` seconds."""
    assert measured.count == len(seen)
    assert abs(measured.sum / measured.count - sum(seen) / len(seen)) < tolerance


async def test_traces_agree_with_client_measurements(
    triton: Callable[..., Triton], tmp_path: Path
) -> None:
    passed_on: list[bytes] = []
    async with (
        collecting(passed_on) as collector,
        TracesSource(ANY, collector) as source,
        serving(triton, tmp_path, source.url) as server,
    ):
        http = await asyncio.gather(
            *(
                asyncio.to_thread(
                    traced_triton.by_http,
                    server,
                    "tensorrt_llm",
                    "word " * 20,
                    max_tokens=WORDS,
                    stream=True,
                )
                for _ in range(STREAMS)
            )
        )
        snapshot = await snapshot_with(source, "tensorrt_llm", STREAMS)
        nearly(measured(snapshot, "ttft", "tensorrt_llm"), [times[0] for times in http], 0.05)
        nearly(
            measured(snapshot, "itl", "tensorrt_llm"),
            [later - sooner for times in http for sooner, later in pairwise(times[:-1])],
            0.01,
        )
        nearly(measured(snapshot, "e2e", "tensorrt_llm"), [times[-1] for times in http], 0.05)

        # Over one stream, so that a span stays open long after its request.
        grpc = await asyncio.to_thread(
            traced_triton.by_grpc, server, "streaming", WORDS, requests=4
        )
        snapshot = await snapshot_with(source, "streaming", 4)
        nearly(measured(snapshot, "ttft", "streaming"), [times[0] for times in grpc], 0.05)
        nearly(
            measured(snapshot, "itl", "streaming"),
            [later - sooner for times in grpc for sooner, later in pairwise(times)],
            0.01,
        )
        nearly(measured(snapshot, "e2e", "streaming"), [times[-1] for times in grpc], 0.05)

        # Requests of our own leave no trace of theirs.
        await asyncio.to_thread(traced_triton.by_http, server, "streaming", id=ID, max_tokens=WORDS)
        await asyncio.to_thread(traced_triton.by_http, server, "chained", max_tokens=3)
        await asyncio.to_thread(traced_triton.by_http, server, "calling", max_tokens=3)
        await asyncio.to_thread(traced_triton.by_http, server, "plain")
        await snapshot_with(source, "chained", 1)
        snapshot = await snapshot_with(source, "calling", 1)
        # The model that both of them ask is not counted with them, and plain is not reported on.
        assert count(snapshot, "streaming") == 4
        assert count(snapshot, "plain") == 0
        assert snapshot.lost_records == 0
        assert snapshot.parts == {"exports": None, "forward": None}

        def spans() -> int:
            return sum(
                len(scope["spans"])
                for body in passed_on
                for resource in json.loads(body)["resourceSpans"]
                for scope in resource["scopeSpans"]
            )

        # Root, model and compute of each; an ensemble computes nothing, and two ask a model again.
        expected = 3 * (STREAMS + 4 + 1 + 3) - 1 + 2 * 2
        await until(lambda: spans() >= expected)
        assert spans() == expected


@pytest.mark.long
async def test_sampled_traces_are_marked_as_a_sample(
    triton: Callable[..., Triton], tmp_path: Path
) -> None:
    async with (
        TracesSource(ANY) as placeholder,
        serving(triton, tmp_path, placeholder.url, rate=3) as server,
    ):
        port = int(placeholder.url.rpartition(":")[2])
        await placeholder.__aexit__(None, None, None)
        async with TracesSource(Listen("127.0.0.1", port), triton=server.url) as source:
            for _ in range(9):
                await asyncio.to_thread(traced_triton.by_http, server, "streaming", max_tokens=2)
            snapshot = await snapshot_with(source, "streaming", 3)
            await asyncio.to_thread(
                traced_triton.by_http,
                server,
                "streaming",
                headers=traced_triton.TRACE_CONTEXT,
                max_tokens=2,
            )
            snapshot = await snapshot_with(source, "streaming", 4)
            assert count(snapshot, "streaming") == 4
            assert {(one.method, one.note) for one in snapshot.measurements} == {
                (
                    "triton_trace_sampled",
                    "1 in 3 requests is traced, and all whose client sends a trace context",
                )
            }
            assert snapshot.parts == {"exports": None, "setting": None}
