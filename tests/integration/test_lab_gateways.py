"""The lab's real gateways in front of a simulated trtllm-serve: what ends a stream, and when."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from lab import gateway, trtllm_server
from lab.engine_settings import EngineSettings
from lab.gateway import CaddySettings, Gateway, GatewaySettings, HaproxySettings, NginxSettings
from lab.process import HOST, ServerProcess
from tests.polling import until

IDLE = 0.8
TOTAL = 0.8
LAZY_TIMER = 0.3  # nginx leaves a timer as it is if the new time is at most this much later
TOKEN = 0.02


pytestmark = pytest.mark.needs("nginx", "haproxy", "caddy")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    engine = EngineSettings(step_seconds=TOKEN, jitter=0)
    with trtllm_server.start(tmp_path_factory.mktemp("server"), None, engine) as running:
        yield running


@dataclass(frozen=True)
class Response:
    """A response: its status, whether it is complete, and times since the request in seconds."""

    status: int
    complete: bool
    events: tuple[float, ...]
    end: float


async def stream(
    url: str, max_tokens: int, on_event: Callable[[int], object] = lambda _: None
) -> Response:
    """Read a stream; call `on_event` with the number of each event."""
    started, events, complete, status = time.monotonic(), list[float](), False, 0
    body = {"model": "tensorrt_llm", "prompt": "a b", "max_tokens": max_tokens, "stream": True}
    async with aiohttp.ClientSession() as session:
        with suppress(aiohttp.ClientError):
            async with session.post(f"{url}/v1/completions", json=body) as response:
                status = response.status
                async for line in response.content:
                    if line.startswith(b"data:"):
                        events.append(time.monotonic() - started)
                        on_event(len(events))
                        complete = b"[DONE]" in line
    return Response(status, complete, tuple(events), time.monotonic() - started)


@contextmanager
def stopped(server: ServerProcess) -> Iterator[Callable[[], None]]:
    """Stop the server's process by the yielded function; continue it at the end."""
    try:
        yield lambda: os.kill(server.pid, signal.SIGSTOP)
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.fixture(params=[NginxSettings(idle_seconds=IDLE), HaproxySettings(idle_seconds=IDLE)])
def idle_gateway(
    request: pytest.FixtureRequest, server: ServerProcess, tmp_path: Path
) -> Iterator[Gateway]:
    """Run each gateway with an idle time-out of IDLE seconds."""
    with gateway.start(request.param, tmp_path, server.url, print) as running:
        yield running


async def test_an_idle_timeout_ends_a_stall_and_no_healthy_stream(
    idle_gateway: Gateway, server: ServerProcess
) -> None:
    healthy = await stream(idle_gateway.url, 70)
    assert healthy.complete
    assert healthy.end > 1.5 * IDLE
    with stopped(server) as stop:
        stalled = await stream(
            idle_gateway.url, 1000, lambda count: stop() if count == 10 else None
        )
    assert not stalled.complete
    assert 10 <= len(stalled.events) < 100
    assert IDLE - LAZY_TIMER - 0.05 <= stalled.end - stalled.events[-1] < 2 * IDLE


@pytest.mark.alone
async def test_a_total_timeout_ends_a_healthy_stream_at_its_age(
    server: ServerProcess, tmp_path: Path
) -> None:
    with gateway.start(CaddySettings(total_seconds=TOTAL), tmp_path, server.url, print) as running:
        short = await stream(running.url, 10)
        long = await stream(running.url, 200)
    assert short.complete
    assert not long.complete
    assert len(long.events) > 10
    assert TOTAL - 0.05 <= long.end < 2 * TOTAL


@pytest.mark.parametrize(
    ("patient", "strict"),
    [
        (NginxSettings(), NginxSettings(requests_per_second=0.02)),
        (CaddySettings(total_seconds=60), CaddySettings(total_seconds=0.3)),
    ],
)
async def test_a_reload_applies_to_new_requests(
    patient: GatewaySettings, strict: GatewaySettings, server: ServerProcess, tmp_path: Path
) -> None:
    with gateway.start(patient, tmp_path, server.url, print) as running:
        reloaded = await stream(
            running.url, 40, lambda count: running.reload(strict) if count == 2 else None
        )
        assert reloaded.complete == isinstance(patient, NginxSettings)
        await until(lambda: _is_cut(running.url))


async def _is_cut(url: str) -> bool:
    return not (await stream(url, 40)).complete


@pytest.mark.parametrize(("retry", "tries"), [(False, 1), (True, 2)])
async def test_nginx_retries_a_request_without_a_response(
    retry: bool, tries: int, server: ServerProcess, tmp_path: Path
) -> None:
    settings = NginxSettings(idle_seconds=0.1, retry=retry)
    with (
        gateway.start(settings, tmp_path, server.url, print) as running,
        stopped(server) as stop,
    ):
        stop()
        response = await stream(running.url, 10)
    assert response.status == 504
    assert running.log.read_text().count("upstream timed out") == tries


async def test_nginx_limits_the_rate(server: ServerProcess, tmp_path: Path) -> None:
    settings = NginxSettings(requests_per_second=0.02)
    with gateway.start(settings, tmp_path, server.url, print) as running:
        statuses = [(await stream(running.url, 1)).status for _ in range(3)]
    assert statuses == [200, 200, 429]


@pytest.mark.parametrize("buffering", [True, False])
async def test_nginx_reads_ahead_of_a_slow_client_only_with_buffering(
    buffering: bool, tmp_path: Path
) -> None:
    ahead = asyncio.Event()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(2**25))
        with suppress(ConnectionError):
            await writer.drain()
            ahead.set()
        writer.close()

    async with await asyncio.start_server(respond, HOST, 0) as upstream:
        url = f"http://{HOST}:{upstream.sockets[0].getsockname()[1]}"
        settings = NginxSettings(buffering=buffering)
        with gateway.start(settings, tmp_path, url, print) as running:
            _, client = await asyncio.open_connection(HOST, running.ports[0], limit=1)
            client.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            wait = asyncio.wait_for(ahead.wait(), 20 if buffering else 0.5)
            with nullcontext() if buffering else pytest.raises(TimeoutError):
                await wait
            client.transport.abort()
