"""The HTTP client of a load test against servers in the same process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from lab.engine_settings import EngineSettings
from lab.trtllm_serve.server import SimulatedTrtllmServe
from lab.trtllm_serve.settings import ServeSettings
from loadtest.http_client import HttpRequests
from loadtest.level import LevelRun, new_client, run_level
from loadtest.level_result import level_result
from loadtest.records import RequestRecord
from loadtest.session import UnusableEndpointError, check_endpoint
from loadtest.settings import (
    ApiName,
    LoadEndpoint,
    LoadLevel,
    PromptClass,
    RequestPlan,
    Workload,
    plan_request,
)
from tests.fake_server import serving

SETTINGS = ServeSettings(prometheus="none", per_request="none", read="one-fetch")
QUICK = EngineSettings(step_seconds=0.005, sequence_seconds=0.0, context_token_seconds=0.0)
WORK = Workload((PromptClass(6),), 6, warm_up=0.0, duration=0.3, cool_down=0.0, timeout=20.0)
PLAN = RequestPlan(1, PromptClass(6), "one two three four five six", 6)


@asynccontextmanager
async def look_alike() -> AsyncIterator[str]:
    """Serve the simulated trtllm-serve in this process."""
    runner = web.AppRunner(SimulatedTrtllmServe(SETTINGS, QUICK).app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def endpoint(url: str, api: ApiName = "chat") -> LoadEndpoint:
    return LoadEndpoint(url, api, "tensorrt_llm")


async def sent(url: str, api: ApiName = "chat", plan: RequestPlan = PLAN, **work: Any) -> Any:
    """Send one request and return its record."""
    clock = asyncio.get_running_loop().time
    record = RequestRecord(plan.number, plan.prompt.name, plan.output_tokens, clock())
    load = Workload(**{"timeout": 20.0} | work)
    async with HttpRequests(endpoint(url, api), load, clock) as client:
        await client.send(plan, record)
    return record


async def truth(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/lab/truth") as response:
        found: dict[str, Any] = await response.json()
    return found


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_client_times_are_those_of_the_engine(api: ApiName) -> None:
    async with look_alike() as url:
        clock = asyncio.get_running_loop().time
        async with new_client(endpoint(url, api), WORK, clock) as client:
            run = await run_level(client, LoadLevel("concurrency", 2), WORK)
        engine = await truth(url)
    records = run.records
    assert len(records) == len(engine["requests"]) >= 2
    assert {(one.outcome, one.output_tokens, one.input_tokens) for one in records} == {("ok", 6, 6)}
    assert all(record.matched for record in records)
    assert sum(len(record.gaps) for record in records) == len(engine["gaps"])
    # The client is behind the engine: it sees a first token later than the engine made it.
    ours = sorted(record.ttft or 0 for record in records)
    theirs = sorted(one["first_token_time"] - one["arrival_time"] for one in engine["requests"])
    assert all(mine >= own for mine, own in zip(ours, theirs, strict=True))
    # Delays of single chunks cancel out over a stream.
    lengths = sorted(record.chunks[-1] - record.chunks[0] for record in records)
    middle = lengths[len(lengths) // 2]
    spans = sorted(one["last_token_time"] - one["first_token_time"] for one in engine["requests"])
    assert middle == pytest.approx(spans[len(spans) // 2], abs=0.05)


async def test_a_server_that_ignores_the_length_is_reported() -> None:
    async with look_alike() as url:
        record = await sent(url, extra={"stop_after": 3})
        clock = asyncio.get_running_loop().time
    assert (record.outcome, record.output_tokens, record.matched) == ("ok", 3, False)
    run = LevelRun(LoadLevel("concurrency", 1), 0.0, clock(), [record])
    assert level_result([run], [], 0.95).work.other == 1


async def test_the_body_requests_matched_work() -> None:
    bodies = []

    async def handle(request: web.Request) -> web.StreamResponse:
        bodies.append((request.path, await request.json()))
        return web.Response(status=500)

    async with serving(handle) as url:
        for api in ("chat", "completions", "generate"):
            await sent(url, api, extra={"temperature": 0})
    common = {"max_tokens": 6, "min_tokens": 6, "ignore_eos": True, "stream": True}
    assert [path for path, _ in bodies] == [
        "/v1/chat/completions",
        "/v1/completions",
        "/v2/models/tensorrt_llm/generate_stream",
    ]
    assert all((common | {"temperature": 0}).items() <= body.items() for _, body in bodies)
    assert [body.get("stream_options") for _, body in bodies] == [{"include_usage": True}] * 2 + [
        None
    ]


def chat(content: str = "", finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return event({"choices": [choice]})


def event(data: object) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


DONE = b"data: [DONE]\n\n"
ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}})


@pytest.mark.parametrize(
    ("api", "parts", "outcome", "reason", "chunks", "tokens"),
    [
        ("chat", [ROLE, chat("a"), chat("b", "length"), USAGE, DONE], "ok", "", 2, 2),
        ("chat", [ROLE, chat("a"), chat("", "stop"), DONE], "ok", "", 1, None),
        ("chat", [chat("a"), chat("b", "stop")], "ok", "", 2, None),
        ("chat", [chat("a"), chat("b")], "truncated", "truncated", 2, None),
        ("chat", [chat("a"), event({"error": "x"})], "error", "in_band", 1, None),
        ("chat", [b"data: {\n\n"], "error", "malformed", 0, None),
        ("chat", [b"data: []\n\n"], "error", "in_band", 0, None),
        ("chat", [b": ping\n\n", b"event: x\n" + chat("a"), DONE], "ok", "", 1, None),
        (
            "chat",
            [event({"choices": [{"delta": {"reasoning_content": "a"}}]}), DONE],
            "ok",
            "",
            1,
            None,
        ),
        ("completions", [event({"choices": [{"text": "a"}]}), DONE], "ok", "", 1, None),
        ("generate", [event({"text_output": "a"}), event({"text_output": ""})], "ok", "", 1, None),
        ("generate", [event({"text_output": "a", "num_output_tokens": 7})], "ok", "", 1, 7),
        ("generate", [event({"error": "boom"})], "error", "in_band", 0, None),
    ],
)
async def test_outcomes_of_streams(
    api: ApiName, parts: list[bytes], outcome: str, reason: str, chunks: int, tokens: int | None
) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        return response

    async with serving(handle) as url:
        record = await sent(url, api)
    assert (record.outcome, record.reason, len(record.chunks)) == (outcome, reason, chunks)
    assert record.output_tokens == tokens


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, "invalid"),
        (404, "invalid"),
        (408, "timeout"),
        (429, "quota"),
        (500, "error"),
        (503, "error"),
        (504, "timeout"),
        (302, "error"),
    ],
)
async def test_outcomes_by_status(status: int, outcome: str) -> None:
    async def handle(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    async with serving(handle) as url:
        record = await sent(url)
    assert (record.outcome, record.reason) == (outcome, str(status))


async def test_a_stall_times_out_and_a_reset_is_an_error() -> None:
    async def stall(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(chat("a"))
        if (await request.json())["model"] != "tensorrt_llm":
            return response
        await asyncio.sleep(3600)
        return response

    async def reset(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with serving(stall) as url:
        record = await sent(url, timeout=0.2)
        assert (record.outcome, record.reason, len(record.chunks)) == ("timeout", "client", 1)
        assert record.e2e >= 0.2
    async with serving(reset) as url:
        assert (await sent(url)).reason == "reset"
    assert (await sent(url)).reason == "unreachable"


async def test_a_planned_cancellation_closes_the_connection() -> None:
    async with look_alike() as url:
        plan = RequestPlan(1, PromptClass(6), "a b c d e f", 200, cancel_after=3)
        record = await sent(url, plan=plan)
    assert (record.outcome, record.reason, len(record.chunks)) == (
        "client_disconnected",
        "planned",
        3,
    )
    assert record.tpot is None


async def test_a_first_request_checks_the_endpoint() -> None:
    async with look_alike() as url:
        await check_endpoint(endpoint(url), WORK)
        with pytest.raises(UnusableEndpointError) as raised:
            await check_endpoint(endpoint(f"{url}/wrong"), WORK)
    assert str(raised.value) == (
        f"{url}/wrong: a first request failed (invalid: 404). Fix: check the URL, --api and "
        "--model."
    )


def plans() -> Iterator[RequestPlan]:
    yield from (plan_request(WORK, number) for number in range(3))


async def test_connections_are_reused() -> None:
    """A request of a closed loop does not pay for a new connection each time."""
    ports = []

    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.append(request.transport.get_extra_info("peername")[1])
        await request.read()
        return web.Response(body=chat("a", "stop") + DONE, content_type="text/event-stream")

    async with serving(handle) as url:
        clock = asyncio.get_running_loop().time
        async with HttpRequests(endpoint(url), WORK, clock) as client:
            for plan in plans():
                record = RequestRecord(plan.number, plan.prompt.name, plan.output_tokens, clock())
                await client.send(plan, record)
                assert record.outcome == "ok"
    assert len({*ports}) == 1


def test_gaps_are_between_consecutive_chunks() -> None:
    record = RequestRecord(1, "6", 6, 0.0)
    record.chunks.extend([1.0, 1.5, 3.0])
    assert list(record.gaps) == [b - a for a, b in pairwise(record.chunks)]
