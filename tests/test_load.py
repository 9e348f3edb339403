"""The load generator against a fake of Triton's generate_stream with a fixed pace."""

from __future__ import annotations

import asyncio
import json
import math
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from lab.load import (
    Load,
    LoadPhase,
    LoadSettings,
    LoadSummary,
    LoadTarget,
    running_load,
)
from lab.load.client import plan_client
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
    """Streams `max_tokens` tokens, the first after FIRST seconds, the others GAP apart.

    It responds with `statuses` to the first requests, and stalls streams at token `stall_after`.
    """

    url: str = ""
    stuck: bool = False
    stall_after: int | None = None
    gap: float = GAP
    padding: int = 0
    statuses: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    written: int = 0
    dropped: int = 0
    under_way: int = 0
    most_under_way: int = 0

    async def generate_stream(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.paths.append(request.path)
        if self.statuses:
            return web.Response(status=self.statuses.pop(0), text="<html>gateway</html>")
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
            if index == self.stall_after:
                await asyncio.sleep(3600)
            await response.write(event(text_output=f"token{index} ", pad="x" * self.padding))
            self.written += 1
            await asyncio.sleep(self.gap)
        return response


def event(**content: str) -> bytes:
    return f"data: {json.dumps(content)}\n\n".encode()


@asynccontextmanager
async def serving() -> AsyncIterator[PacedServer]:
    server = PacedServer()
    app = web.Application()
    app.router.add_post("/v2/models/{path:.*}", server.generate_stream)
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
        broken = await Load(server.url, replace(STAYING, failing_mid_stream=1)).run()
        server.stuck = True
        stuck = await Load(server.url, replace(STAYING, request_seconds=0.1)).run()
    stopped = await Load(server.url, STAYING).run()
    assert outcomes(bad) == {"rejected": 5}
    assert set(outcomes(failing)) == {"failed_before_first_token", "failed_mid_stream"}
    assert failing.requests == 20
    assert outcomes(broken) == {"failed_mid_stream": 5}
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


async def test_clients_retry_the_same_prompt_after_timeouts() -> None:
    settings = replace(STAYING, requests=2, request_seconds=0.05, retries=2, backoff_seconds=0.01)
    async with serving() as server:
        server.stuck = True
        summary = await Load(server.url, settings).run()
    assert outcomes(summary) == {"timeout": 6}
    assert summary.retries == 4
    prompts = [body["text_input"] for body in server.bodies]
    assert prompts == [prompts[0]] * 3 + [prompts[3]] * 3
    assert prompts[0] != prompts[3]


async def test_clients_retry_failures_and_429_but_no_other_rejection() -> None:
    settings = replace(STAYING, requests=1, retries=3, backoff_seconds=0.01)
    async with serving() as server:
        server.statuses = [503, 429]
        recovered = await Load(server.url, settings).run()
        rejected = await Load(server.url, replace(settings, invalid=1)).run()
    unreachable = await Load(server.url, settings).run()
    assert outcomes(recovered) == {"failed_before_first_token": 1, "rejected": 1, "ok": 1}
    assert outcomes(rejected) == {"rejected": 1}
    assert outcomes(unreachable) == {"unreachable": 4}


async def test_backoff_doubles() -> None:
    settings = replace(STAYING, requests=1, retries=3, backoff_seconds=0.04)
    started = time.monotonic()
    await Load("http://127.0.0.1:1", settings).run()
    assert time.monotonic() - started >= 0.5 * (0.04 + 0.08 + 0.16)


async def test_idle_timeout_ends_a_stall_but_no_slow_stream() -> None:
    settings = replace(STAYING, requests=1, idle_seconds=0.3, max_tokens=(40,))
    async with serving() as server:
        slow = await Load(server.url, settings).run()
        server.stall_after = 2
        stalled = await Load(server.url, settings).run()
    assert outcomes(slow) == {"ok": 1}
    assert outcomes(stalled) == {"timeout": 1}
    assert stalled.tokens == 2


async def test_clients_disconnect_from_a_healthy_stream_at_an_age() -> None:
    settings = replace(
        STAYING, requests=2, disconnect_by_age=1, disconnect_ages=(0.2, 0.25), max_tokens=(10_000,)
    )
    async with serving() as server:
        summary = await Load(server.url, replace(settings, retries=2)).run()
        await until(lambda: server.dropped == 2)
    assert outcomes(summary) == {"disconnected_mid_stream": 2}


async def test_a_slow_reader_blocks_the_server() -> None:
    settings = replace(STAYING, requests=1, max_tokens=(400,), request_seconds=0.5)
    async with serving() as server:
        server.gap, server.padding = 0, 1000
        fast = await Load(server.url, settings).run()
        assert (outcomes(fast), server.written) == ({"ok": 1}, 400)
        slow = await Load(server.url, replace(settings, slow_readers=1)).run()
    assert outcomes(slow) == {"timeout": 1}
    assert slow.tokens == 0  # 500 bytes per second
    assert server.written - 400 < 200  # what fits into buffers: 64 KB of the server, the kernel's


async def test_half_closing_clients_take_data_until_they_reset() -> None:
    events = list[str]()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        writer.write(event(text_output="token ") * 10)
        assert not await reader.read()
        events.append("FIN")
        try:
            while True:
                writer.write(event(text_output="token "))
                await writer.drain()
                events.append("token")
                await asyncio.sleep(GAP)
        except ConnectionError:
            events.append("reset")

    settings = replace(
        STAYING, requests=1, half_close_mid_stream=1, half_close_seconds=0.2, max_tokens=(16,)
    )
    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        summary = await Load(f"http://127.0.0.1:{port}", settings).run()
        await until(lambda: "reset" in events)
    assert outcomes(summary) == {"disconnected_mid_stream": 1}
    assert events[0] == "FIN"
    assert events.count("token") > 2


async def test_load_follows_its_phases() -> None:
    quiet = replace(STAYING, rate=0, requests=1_000, seconds=0.6)
    phases = (
        LoadPhase(0.1, replace(quiet, rate=100, concurrency=9, prompt_words=(7,))),
        LoadPhase(0.25, replace(quiet, rate=math.inf, concurrency=2, prompt_words=(9,))),
        LoadPhase(0.4, replace(quiet, rate=0)),
    )
    async with serving() as server:
        await Load(server.url, quiet, phases).run()
    lengths = [len(body["text_input"].split()) for body in server.bodies]
    assert set(lengths) == {7, 9}
    assert lengths == sorted(lengths)


async def test_switch_changes_a_running_load_from_another_thread() -> None:
    async with serving() as server:

        def play() -> LoadSummary:
            paused = replace(STAYING, rate=0, requests=1_000, seconds=20)
            with running_load(Load(server.url, paused)) as load:
                load.switch(replace(paused, rate=math.inf))
                wait_until(lambda: load.summary().requests)
                load.switch(replace(paused, rate=math.inf, invalid=1))
                wait_until(lambda: load.summary().outcomes["rejected"])
            return load.summary()

        summary = await asyncio.to_thread(play)
    assert summary.outcomes["ok"]


async def test_requests_are_shared_between_models_and_versions() -> None:
    targets = (LoadTarget(0.25, "tensorrt_llm", "2"), LoadTarget(0.25, "draft"))
    settings = replace(STAYING, concurrency=100, requests=200, max_tokens=(1,))
    async with serving() as server:
        await Load(server.url, replace(settings, other_targets=targets)).run()
    counts = Counter(path.removeprefix("/v2/models/") for path in server.paths)
    assert set(counts) == {
        "tensorrt_llm/generate_stream",
        "tensorrt_llm/versions/2/generate_stream",
        "draft/generate_stream",
    }
    assert 25 < counts["tensorrt_llm/versions/2/generate_stream"] < 75
    assert 25 < counts["draft/generate_stream"] < 75


def test_a_target_can_have_prompts_of_its_own() -> None:
    canary = LoadTarget(0.5, "tensorrt_llm", "2", prompt_words=(3,))
    settings = replace(STAYING, prompt_words=(40,), other_targets=(canary,))
    plans = [plan_client(settings, random.Random(seed)) for seed in range(40)]
    lengths = {(plan.path, len(f"{plan.body['text_input']}".split())) for plan in plans}
    assert lengths == {
        ("/v2/models/tensorrt_llm/generate_stream", 40),
        ("/v2/models/tensorrt_llm/versions/2/generate_stream", 3),
    }


async def test_the_seed_determines_requests_whatever_their_order() -> None:
    settings = replace(
        STAYING, requests=30, prompt_words=(3, 5, 8), max_tokens=(1, 2, 3), retries=1, invalid=0.2
    )

    async def bodies(**changes: Any) -> list[str]:
        async with serving() as server:
            await Load(server.url, replace(settings, **changes)).run()
        return sorted(json.dumps(body) for body in server.bodies)

    first = await bodies(concurrency=30)
    assert first == await bodies(concurrency=7)
    assert first != await bodies(concurrency=30, seed=1)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"slow_readers": 0.6, "invalid": 0.6}, "shares of clients' behaviours add up to more"),
        (
            {"other_targets": (LoadTarget(0.7, "a"), LoadTarget(0.7, "b"))},
            "shares of other_targets add up to more",
        ),
    ],
)
def test_shares_above_one_are_refused(shares: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(STAYING, **shares)


@pytest.mark.parametrize(
    "url",
    ["http://example.com:8000", "http://10.0.0.1:8000", "https://127.0.0.1:8000", "127.0.0.1:8000"],
)
def test_load_refuses_other_machines(url: str) -> None:
    with pytest.raises(ValueError, match="load is allowed only on http://127"):
        Load(url, STAYING)
