"""The load against a stand-in for Triton's generate_stream that does exactly what is asked."""

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

FIRST = 0.04
GAP = 0.01

# One well-behaved client after the other, as fast as they can.
STAYING = LoadSettings(
    rate=math.inf,
    at_once=1,
    seconds=30,
    requests=5,
    prompt_words=(50,),
    max_tokens=(4,),
    leave_before_first_token=0,
    leave_mid_stream=0,
    bad=0,
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

    async def under_way_is(self, count: int) -> None:
        async with asyncio.timeout(10):
            while self.under_way != count:  # noqa: ASYNC110 - a stand-in need not be elegant
                await asyncio.sleep(GAP)

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


async def test_it_measures_what_the_client_saw() -> None:
    async with serving() as server:
        summary = await Load(server.url, STAYING).run()
    assert outcomes(summary) == {"ok": 5}
    assert (summary.requests, summary.tokens) == (5, 20)
    assert summary.ttft is not None
    assert summary.gap is not None
    assert (summary.ttft.count, summary.gap.count) == (5, 15)
    assert FIRST <= summary.ttft.p50 <= summary.ttft.p95 <= summary.ttft.p99 <= summary.ttft.max
    assert summary.ttft.max < FIRST + 1
    assert GAP / 2 <= summary.gap.p50 < 5 * GAP


async def test_clients_that_leave_are_told_apart_by_whether_they_had_a_token() -> None:
    async with serving() as server:
        early = await Load(server.url, replace(STAYING, leave_before_first_token=1)).run()
        late = await Load(server.url, replace(STAYING, leave_mid_stream=1, max_tokens=(100,))).run()
        await server.under_way_is(0)
    assert outcomes(early) == {"left_before_first_token": 5}
    assert early.ttft is None
    assert outcomes(late) == {"left_mid_stream": 5}
    assert late.tokens <= 5 * 50
    assert server.dropped == 10


async def test_refusals_failures_and_timeouts_are_counted_as_such() -> None:
    async with serving() as server:
        bad = await Load(server.url, replace(STAYING, bad=1)).run()
        failing = await Load(server.url, replace(STAYING, failing=1, requests=20)).run()
        server.stuck = True
        stuck = await Load(server.url, replace(STAYING, request_seconds=0.1)).run()
    gone = await Load(server.url, STAYING).run()
    assert outcomes(bad) == {"rejected": 5}
    assert set(outcomes(failing)) == {"failed_before_first_token", "failed_mid_stream"}
    assert failing.requests == 20
    assert outcomes(stuck) == {"timeout": 5}
    assert outcomes(gone) == {"unreachable": 5}


async def test_shares_rate_and_lengths_are_kept() -> None:
    settings = replace(STAYING, rate=400, at_once=500, requests=400, bad=0.25, prompt_words=(5, 40))
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


async def test_no_more_are_under_way_than_allowed() -> None:
    async with serving() as server:
        await Load(server.url, replace(STAYING, at_once=3, requests=12)).run()
    assert server.most_under_way == 3


async def test_it_ends_in_time_and_lets_the_last_ones_finish() -> None:
    async with serving() as server:
        settings = replace(STAYING, rate=50, at_once=50, seconds=0.3, requests=10_000)
        summary = await Load(server.url, settings).run()
    assert 1 < summary.requests < 60
    assert outcomes(summary) == {"ok": len(server.bodies)}


async def test_stopping_drops_what_is_under_way() -> None:
    async with serving() as server:
        server.stuck = True
        load = Load(server.url, STAYING)
        task = asyncio.create_task(load.run())
        await server.under_way_is(1)
        load.stop()
        summary = await asyncio.wait_for(task, 5)
        await server.under_way_is(0)
    assert summary.requests == 0
    load.stop()


async def test_beside_runs_it_in_a_thread_and_stops_it() -> None:
    async with serving() as server:

        def watch() -> LoadSummary:
            with running_load(
                Load(server.url, replace(STAYING, requests=10_000, at_once=4))
            ) as load:
                while load.summary().requests < 5:
                    time.sleep(GAP)
            return load.summary()

        summary = await asyncio.to_thread(watch)
    assert summary.requests >= 5
    assert "load" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    "url",
    ["http://example.com:8000", "http://10.0.0.1:8000", "https://127.0.0.1:8000", "127.0.0.1:8000"],
)
def test_it_goes_nowhere_but_to_this_machine(url: str) -> None:
    with pytest.raises(ValueError, match="a load goes to http://127"):
        Load(url, STAYING)
