"""Packet capture beside real servers, compared with client measurements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from exporter.protocol.detection import observe
from exporter.protocol.events import ObserverSettings
from exporter.taps.capture.capture_tap import CaptureTap
from exporter.taps.tap import CaptureSpec
from lab.load import Load, Protocol
from lab.process import ServerProcess
from lab.triton import Triton
from lab.trtllm_server import start
from tests import traced_triton
from tests.client_times import agree, agree_with_load, chunk_times, load_of, outcomes
from tests.event_log import WireLog
from tests.packet_capture import need_capture
from tests.polling import until

pytestmark = pytest.mark.alone

WORDS, STREAMS = 20, 5


@pytest.fixture(autouse=True)
def _capture() -> None:
    need_capture()


@asynccontextmanager
async def capturing(*ports: int) -> AsyncIterator[WireLog]:
    log = WireLog()
    tap = CaptureTap(
        CaptureSpec("lo", ports), partial(observe, log, ObserverSettings()), log.skipped
    )
    await tap.start()
    try:
        yield log
    finally:
        await tap.close()
    assert tap.traffic().dropped == 0
    assert not [event for event in log.events if event[0] in ("lost", "skipped")]


async def ended(log: WireLog, count: int) -> None:
    await until(lambda: sum(event[0] == "ended" for event in log.events) >= count)


@pytest.fixture(scope="module")
def look_alike(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start(tmp_path_factory.mktemp("look-alike")) as server:
        yield server


async def test_triton_over_http(test_triton: Triton) -> None:
    async with capturing(test_triton.ports[0]) as log:
        call = partial(traced_triton.by_http, test_triton, "streaming", max_tokens=WORDS)
        seen = await asyncio.gather(*(asyncio.to_thread(call) for _ in range(STREAMS)))
        await ended(log, STREAMS)
    assert {stream.model for stream in log.streams} == {"streaming"}
    assert outcomes(log) == {"ok": STREAMS}
    agree(chunk_times(log), [times[:-1] for times in seen])


async def test_triton_over_grpc(test_triton: Triton) -> None:
    async with capturing(test_triton.ports[1]) as log:
        call = partial(traced_triton.by_grpc, test_triton, "streaming", WORDS, requests=2)
        seen = await asyncio.gather(*(asyncio.to_thread(call) for _ in range(STREAMS)))
        await ended(log, 2 * STREAMS)
    assert {stream.endpoint for stream in log.streams} == {"model_stream_infer"}
    assert outcomes(log) == {"ok": 2 * STREAMS}
    agree(chunk_times(log), [times for stream in seen for times in stream])


async def test_client_disconnect(test_triton: Triton) -> None:
    async with capturing(test_triton.ports[0]) as log:
        await asyncio.to_thread(
            traced_triton.disconnect_http, test_triton, "streaming", after=0.2, max_tokens=WORDS
        )
        await ended(log, 1)
    (end,) = [event for event in log.events if event[0] == "ended"]
    (left,) = [event for event in log.events if event[0] == "closing"][-1:]
    assert end[3] == "client_disconnected"
    assert 0.15 < left[2] - log.streams[0].arrived < 0.4


@pytest.mark.parametrize("protocol", [pytest.param("chat", marks=pytest.mark.long), "completions"])
async def test_fake_trtllm_serve_under_load(protocol: Protocol, look_alike: ServerProcess) -> None:
    async with capturing(look_alike.ports[0]) as log:
        saw = await Load(look_alike.url, load_of(protocol)).run()
        await ended(log, 40)
    agree_with_load(log, saw)
