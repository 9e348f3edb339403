"""The proxy before real servers: transparent, and compared with client measurements."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from exporter.protocol.detection import observe
from exporter.protocol.events import ObserverSettings
from exporter.taps.proxy.proxy_tap import ProxyTap
from exporter.taps.tap import ProxySpec
from lab.load import Load, Protocol
from lab.process import ServerProcess
from lab.triton import Triton
from lab.trtllm_server import start
from tests import traced_triton
from tests.client_times import agree, agree_with_load, chunk_times, load_of, outcomes
from tests.event_log import WireLog
from tests.polling import until
from tests.proxy_setup import on_loop

pytestmark = pytest.mark.alone

WORDS, STREAMS = 20, 5


@asynccontextmanager
async def proxied(server: ServerProcess) -> AsyncIterator[tuple[tuple[int, ...], WireLog]]:
    """Put a proxy before every port of a server; it must be left as it was entered."""
    log = WireLog()
    async with AsyncExitStack() as stack:
        taps = []
        for port in server.ports:
            spec = ProxySpec("127.0.0.1", 0, "127.0.0.1", port)
            taps.append(ProxyTap(spec, partial(observe, log, ObserverSettings()), log.skipped))
            await taps[-1].start()
            stack.push_async_callback(taps[-1].close)
        yield tuple(tap.port for tap in taps), log
        await until(lambda: not any(tap.traffic().connections for tap in taps))
        assert not any(tap.traffic().refused for tap in taps)
    assert not [event for event in log.events if event[0] == "lost"]


@pytest.fixture(scope="module")
def look_alike(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start(tmp_path_factory.mktemp("look-alike")) as server:
        yield server


@on_loop("uvloop")
async def test_triton_over_http(test_triton: Triton) -> None:
    async with proxied(test_triton) as (ports, log):
        call = partial(
            traced_triton.by_http, replace(test_triton, ports=ports), "streaming", max_tokens=WORDS
        )
        seen = await asyncio.gather(*(asyncio.to_thread(call) for _ in range(STREAMS)))
    assert outcomes(log) == {"ok": STREAMS}
    agree(chunk_times(log), [times[:-1] for times in seen])


@on_loop("uvloop")
async def test_triton_over_grpc(test_triton: Triton) -> None:
    async with proxied(test_triton) as (ports, log):
        call = partial(
            traced_triton.by_grpc, replace(test_triton, ports=ports), "streaming", WORDS, requests=2
        )
        seen = await asyncio.gather(*(asyncio.to_thread(call) for _ in range(STREAMS)))
    assert outcomes(log) == {"ok": 2 * STREAMS}
    agree(chunk_times(log), [times for stream in seen for times in stream])


@on_loop("uvloop")
async def test_client_disconnect(test_triton: Triton) -> None:
    async with proxied(test_triton) as (ports, log):
        through = replace(test_triton, ports=ports)
        leave = partial(
            traced_triton.disconnect_http, through, "streaming", after=0.2, max_tokens=WORDS
        )
        await asyncio.to_thread(leave)
    assert outcomes(log) == {"client_disconnected": 1}


@on_loop("uvloop")
async def test_triton_sheds_by_queue_size_and_by_deadline(test_triton: Triton) -> None:
    async with proxied(test_triton) as (ports, log), aiohttp.ClientSession() as session:

        async def send(model: str) -> None:
            url = f"http://127.0.0.1:{ports[0]}/v2/models/{model}/generate"
            async with session.post(url, json={"text_input": "sleep 0.3"}) as response:
                await response.read()

        for model in ("bounded", "slow"):
            await asyncio.gather(*(send(model) for _ in range(5)))
    ends = reasons(log)
    assert ends["bounded", "shed", "capacity"] >= 1
    assert ends["slow", "shed", "deadline"] >= 1
    assert {outcome for _, outcome, _ in ends} == {"ok", "shed"}


@on_loop("uvloop")
async def test_triton_sheds_over_grpc(test_triton: Triton) -> None:
    async with proxied(test_triton) as (ports, log):
        address = replace(test_triton, ports=ports).grpc
        calls = (partial(infer, address, model) for model in ("bounded", "slow") * 5)
        await asyncio.gather(*(asyncio.to_thread(call) for call in calls))
        with client_of(address) as client:
            call = client.async_infer("bounded", [request("sleep 3")], lambda result, error: None)
            await until(lambda: len(log.streams) > 10)
            call.cancel()
    ends = reasons(log)
    assert ends["bounded", "shed", "capacity"] >= 1
    assert ends["slow", "shed", "deadline"] >= 1
    assert sum(count for end, count in ends.items() if end[1] == "client_disconnected") == 1


def reasons(log: WireLog) -> Counter[tuple[str, str, str]]:
    """Count requests by model, outcome and reason."""
    return Counter(
        (log.streams[event[1]].model, event[3], event[4])
        for event in log.events
        if event[0] == "ended"
    )


def infer(address: str, model: str) -> None:
    """Send a request by gRPC; the server may refuse it."""
    with client_of(address) as client, suppress(InferenceServerException):
        client.infer(model, [request("sleep 0.3")])


def client_of(address: str) -> Any:
    return triton_grpc.InferenceServerClient(address)


def request(prompt: str) -> Any:
    text = triton_grpc.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[prompt]], dtype=np.object_))
    return text


@pytest.mark.parametrize("protocol", [pytest.param("chat", marks=pytest.mark.long), "completions"])
@on_loop("uvloop")
async def test_fake_trtllm_serve_under_load(protocol: Protocol, look_alike: ServerProcess) -> None:
    async with proxied(look_alike) as (ports, log):
        saw = await Load(f"http://127.0.0.1:{ports[0]}", load_of(protocol)).run()
    agree_with_load(log, saw)


def _grpc(port: int) -> str:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\n\x05model", timeout=5)
    return str(caught.value.code().name)


@on_loop("uvloop")
async def test_requests_to_an_unreachable_server_are_counted() -> None:
    log = WireLog()
    tap = ProxyTap(
        ProxySpec("127.0.0.1", 0, "127.0.0.1", 1), partial(observe, log, ObserverSettings()), print
    )
    await tap.start()
    assert await asyncio.to_thread(_grpc, tap.port) == "UNAVAILABLE"
    url = f"http://127.0.0.1:{tap.port}/v2/models/m/generate"
    async with aiohttp.ClientSession() as session, session.post(url, json={}) as response:
        assert response.status == 502
    await tap.close()
    assert [event[3:5] for event in log.events if event[0] == "ended"] == [
        ("error", "UNAVAILABLE"),
        ("error", "502"),
    ]
