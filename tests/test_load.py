"""The load generator against a fake of Triton's generate_stream with a fixed pace."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from lab.load import Load, LoadSettings, LoadSummary, running_load
from tests.polling import until, wait_until

FIRST = 0.04
GAP = 0.01

# One client after another, each of which reads its stream to the end.
STAYING = LoadSettings(
    rate=math.inf,
    concurrency=1,
    seconds=30,
    requests=5,
    prompt_words=(50,),
    max_tokens=(4,),
    disconnect_before_first_token=0,
    disconnect_mid_stream=0,
    invalid=0,
    failing=0,
)


@dataclass
class PacedServer:
    """Streams `max_tokens` tokens, the first after FIRST seconds, the others GAP apart."""

    url: str = ""
    stuck: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    dropped: int = 0
    under_way: int = 0
    most_under_way: int = 0

    async def generate_stream(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if not isinstance(body["max_tokens"], int):
            return web.json_response({"error": "Unable to parse 'max_tokens'"}, status=400)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await self._stream(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.dropped += 1
            raise
        finally:
            self.under_way -= 1

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(status=400 if body.get("fail_after") == 0 else 200)
        response.content_type = "text/event-stream"
        await response.prepare(request)
        await response.write(event(text_output=""))  # the text of a token can be held back
        await asyncio.sleep(FIRST + 3600 * self.stuck)
        for index in range(body["max_tokens"]):
            if index == body.get("fail_after"):
                await response.write(event(error="the engine failed"))
                return response
            await response.write(event(model_name="m", text_output=f"token{index} "))
            await asyncio.sleep(GAP)
        return response


def event(**content: str) -> bytes:
    return f"data: {json.dumps(content)}\n\n".encode()


@asynccontextmanager
async def serving() -> AsyncIterator[PacedServer]:
    server = PacedServer()
    app = web.Application()
    app.router.add_post("/v2/models/tensorrt_llm/generate_stream", server.generate_stream)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def outcomes(summary: LoadSummary) -> dict[str, int]:
    return {outcome: count for outcome, count in summary.outcomes.items() if count}


async def test_load_measures_times_and_counts_of_its_clients() -> None:
    async with serving() as server:
        started = time.monotonic()
        summary = await Load(server.url, STAYING).run()
        elapsed = time.monotonic() - started
    assert outcomes(summary) == {"ok": 5}
    assert (summary.requests, summary.tokens) == (5, 20)
    assert summary.ttft is not None
    assert summary.gap is not None
    assert (summary.ttft.count, summary.gap.count) == (5, 15)
    assert FIRST <= summary.ttft.p50 <= summary.ttft.p95 <= summary.ttft.p99 <= summary.ttft.max
    assert summary.ttft.max < elapsed - 4 * FIRST  # the other four wait for theirs
    assert GAP / 2 <= summary.gap.p50 < elapsed / 8  # at least 8 of 15 gaps are as long


async def test_client_disconnects_are_counted_by_whether_a_token_came() -> None:
    async with serving() as server:
        late = await Load(
            server.url, replace(STAYING, disconnect_mid_stream=1, max_tokens=(100,))
        ).run()
        server.stuck = True
        early = await Load(server.url, replace(STAYING, disconnect_before_first_token=1)).run()
        # On a busy machine a client may disconnect before its request has reached the server.
        await until(lambda: server.dropped == len(server.bodies))
    assert outcomes(early) == {"disconnected_before_first_token": 5}
    assert early.ttft is None
    assert outcomes(late) == {"disconnected_mid_stream": 5}
    assert late.tokens <= 5 * 50
    assert 5 <= server.dropped <= 10


async def test_refusals_failures_timeouts_and_unreachable_servers_are_counted() -> None:
    async with serving() as server:
        bad = await Load(server.url, replace(STAYING, invalid=1)).run()
        failing = await Load(server.url, replace(STAYING, failing=1, requests=20)).run()
        server.stuck = True
        stuck = await Load(server.url, replace(STAYING, request_seconds=0.1)).run()
    stopped = await Load(server.url, STAYING).run()
    assert outcomes(bad) == {"rejected": 5}
    assert set(outcomes(failing)) == {"failed_before_first_token", "failed_mid_stream"}
    assert failing.requests == 20
    assert outcomes(stuck) == {"timeout": 5}
    assert outcomes(stopped) == {"unreachable": 5}


async def test_load_has_the_configured_shares_rate_and_lengths() -> None:
    settings = replace(
        STAYING, rate=400, concurrency=500, requests=400, invalid=0.25, prompt_words=(5, 40)
    )
    async with serving() as server:
        started = time.monotonic()
        summary = await Load(server.url, settings).run()
        seconds = time.monotonic() - started
    assert seconds > 0.8
    assert 60 < summary.outcomes["rejected"] < 140
    assert summary.requests == 400
    prompts = [body["text_input"].split() for body in server.bodies]
    assert {len(prompt) for prompt in prompts} == {5, 40}
    long = [prompt for prompt in prompts if len(prompt) == 40]
    assert {tuple(prompt[:32]) for prompt in long} == {
        tuple(f"p{prefix}.{n}" for n in range(32)) for prefix in range(4)
    }
    assert len({tuple(prompt) for prompt in long}) == len(long)
    assert all(body["stream"] for body in server.bodies)


async def test_load_limits_requests_in_flight() -> None:
    async with serving() as server:
        await Load(server.url, replace(STAYING, concurrency=3, requests=12)).run()
    assert server.most_under_way == 3


async def test_load_ends_in_time_and_lets_the_last_requests_finish() -> None:
    async with serving() as server:
        settings = replace(STAYING, rate=50, concurrency=50, seconds=0.3, requests=10_000)
        summary = await Load(server.url, settings).run()
    assert 1 < summary.requests < 60
    assert outcomes(summary) == {"ok": len(server.bodies)}


async def test_stopping_a_load_cancels_requests_in_flight() -> None:
    async with serving() as server:
        server.stuck = True
        load = Load(server.url, STAYING)
        task = asyncio.create_task(load.run())
        await until(lambda: server.under_way == 1)
        load.stop()
        summary = await asyncio.wait_for(task, 5)
        await until(lambda: server.under_way == 0)
    assert summary.requests == 0
    load.stop()


async def test_running_load_runs_in_a_thread_and_is_stopped() -> None:
    async with serving() as server:

        def watch() -> LoadSummary:
            with running_load(
                Load(server.url, replace(STAYING, requests=10_000, concurrency=4))
            ) as load:
                wait_until(lambda: load.summary().requests >= 5)
            return load.summary()

        summary = await asyncio.to_thread(watch)
    assert summary.requests >= 5
    assert "load" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    "url",
    ["http://example.com:8000", "http://10.0.0.1:8000", "https://127.0.0.1:8000", "127.0.0.1:8000"],
)
def test_load_refuses_other_machines(url: str) -> None:
    with pytest.raises(ValueError, match="load is allowed only on http://127"):
        Load(url, STAYING)
