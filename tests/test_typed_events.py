"""The Responses and Messages APIs end to end: clients, a proxy tap and the fake trtllm-serve."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import openai
import pytest

from exporter.protocol.detection import observe
from exporter.protocol.events import ObserverSettings, Stream
from exporter.taps.proxy.proxy_tap import ProxyTap
from exporter.taps.tap import ProxySpec
from lab import trtllm_server
from lab.engine_settings import EngineSettings
from lab.trtllm_serve.settings import ServeSettings
from tests.event_log import WireLog
from tests.http_streams import skipped
from tests.polling import until
from tests.proxy_setup import on_loop

HOST = "127.0.0.1"
QUICK = EngineSettings(step_seconds=0.005, sequence_seconds=0.0005, context_token_seconds=0.0001)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder: Path = tmp_path_factory.mktemp("serve")
    with trtllm_server.start(folder, ServeSettings(model="org/model"), QUICK) as server:
        yield server.ports[0]


@asynccontextmanager
async def tapped(port: int) -> AsyncIterator[tuple[str, WireLog]]:
    """Yield the URL of a proxy tap before a server, and what it observes."""
    log = WireLog()
    spec = ProxySpec(HOST, 0, HOST, port)
    tap = ProxyTap(spec, lambda: observe(log, ObserverSettings()), lambda _: None)
    await tap.start()
    try:
        yield f"http://{HOST}:{tap.port}", log
    finally:
        await tap.close()


async def ended(log: WireLog) -> tuple[Stream, str, str]:
    """Wait until the only request has ended; return it, its outcome and its reason."""
    await until(lambda: bool(log.streams) and log.of(0)[-1][0] == "ended")
    _, _, outcome, reason, _ = log.of(0)[-1]
    return log.streams[0], outcome, reason


def chunks(log: WireLog) -> int:
    return sum(event[0] == "chunk" for event in log.events)


@on_loop("uvloop")
async def test_a_stream_of_responses_by_the_openai_client(port: int) -> None:
    async with tapped(port) as (url, log):
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        kinds, text = [], ""
        async with client:
            stream = await client.responses.create(
                model="org/model", input="one two three", max_output_tokens=8, stream=True
            )
            async for event in stream:
                kinds.append(event.type)
                if event.type == "response.output_text.delta":
                    text += event.delta
                if event.type == "response.completed":
                    usage = event.response.usage
        seen, outcome, reason = await ended(log)

    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds.count("response.output_text.delta") == chunks(log) == 8
    assert text == "".join(f"token{number} " for number in range(8))
    assert usage is not None
    assert (seen.input_tokens, seen.output_tokens) == (usage.input_tokens, usage.output_tokens)
    assert (seen.endpoint, seen.model, seen.output_tokens) == ("responses", "org/model", 8)
    assert (outcome, reason) == ("ok", "")


@on_loop("uvloop")
async def test_a_whole_response_by_the_openai_client(port: int) -> None:
    async with tapped(port) as (url, log):
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        async with client:
            messages = [{"role": "user", "content": "one two"}]
            response = await client.responses.create(
                model="org/model",
                input=messages,  # type: ignore[arg-type]
                max_output_tokens=4,
            )
        seen, outcome, _ = await ended(log)

    assert response.output_text == "token0 token1 token2 token3 "
    assert (seen.input_tokens, seen.output_tokens, seen.streaming) == (2, 4, False)
    assert outcome == "ok"


@on_loop("uvloop")
async def test_disconnected_stream_of_responses(port: int) -> None:
    async with tapped(port) as (url, log):
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        async with client:
            stream = await client.responses.create(
                model="org/model", input="one", max_output_tokens=4000, stream=True
            )
            async for event in stream:
                if event.type == "response.output_text.delta":
                    break
            await stream.close()
        seen, outcome, _ = await ended(log)

    assert outcome == "client_disconnected"
    assert not seen.counted
    assert chunks(log) >= 1


ASK = {"model": "org/model", "max_tokens": 6, "stream": True, "system": "be brief",
       "messages": [{"role": "user", "content": "one two three"}]}  # fmt: skip


@on_loop("uvloop")
async def test_a_stream_of_messages(port: int) -> None:
    async with tapped(port) as (url, log), aiohttp.ClientSession() as session:
        async with session.post(f"{url}/v1/messages", json=ASK) as answer:
            events = (await answer.read()).decode().split("\n\n")
        seen, outcome, reason = await ended(log)

    kinds = [event.split("\n")[0].removeprefix("event: ") for event in events if event]
    assert kinds == ["message_start", "content_block_start", *["content_block_delta"] * 6,
                     "content_block_stop", "message_delta", "message_stop"]  # fmt: skip
    assert chunks(log) == 6
    assert (seen.endpoint, seen.input_tokens, seen.output_tokens) == ("messages", 5, 6)
    assert (outcome, reason) == ("ok", "max_tokens")


@on_loop("uvloop")
async def test_messages_that_fail(port: int) -> None:
    for more, status, expected in (
        ({"fail_after": 2}, 200, ("error", "in_band")),
        ({"max_tokens": "many"}, 400, ("invalid", "400")),
    ):
        async with tapped(port) as (url, log), aiohttp.ClientSession() as session:
            async with session.post(f"{url}/v1/messages", json={**ASK, **more}) as answer:
                text = (await answer.read()).decode()
                assert answer.status == status
            _, outcome, reason = await ended(log)
        assert json.loads(text.strip().splitlines()[-1].removeprefix("data: "))["type"] == "error"
        assert (outcome, reason) == expected


@on_loop("uvloop")
async def test_a_whole_message(port: int) -> None:
    async with tapped(port) as (url, log), aiohttp.ClientSession() as session:
        async with session.post(f"{url}/v1/messages", json={**ASK, "stream": False}) as answer:
            message = await answer.json()
        seen, outcome, _ = await ended(log)

    assert message["content"][0]["text"].startswith("token0 token1 ")
    assert message["usage"] == {"input_tokens": 5, "output_tokens": 6}
    assert (seen.input_tokens, seen.output_tokens, outcome) == (5, 6, "ok")


@on_loop("uvloop")
async def test_requests_to_other_endpoints_pass_and_count_one_by_one(port: int) -> None:
    paths = {"/v1/embeddings": "embeddings", "/v1/audio/transcriptions": "audio",
             "/inference/v1/generate": "token_generate", "/v1/whatever": "endpoint"}  # fmt: skip
    async with tapped(port) as (url, log), aiohttp.ClientSession() as session:
        for path in paths:
            for _ in range(10):
                async with session.post(f"{url}{path}", json={"model": "org/model"}) as answer:
                    assert answer.status == 404  # the fake trtllm-serve has none of them

    assert skipped(log) == [reason for reason in paths.values() for _ in range(10)]
    assert log.streams == []
