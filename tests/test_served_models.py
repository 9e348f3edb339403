"""The model names that servers behind taps list."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from exporter.sources.served_models import ServedModels
from exporter.sources.tap_source import TapSource
from exporter.taps.process.child_process import TapProcess
from exporter.taps.process.messages import TapSettings
from exporter.taps.tap import CaptureSpec, parse
from lab import trtllm_server
from lab.process import HOST
from promql.http_client import FetchLimits
from tests.fake_server import fake_server
from tests.fake_triton import fake_triton, ready
from tests.polling import until
from tests.test_taps_process import port_of, total

LISTED = {"data": [{"id": "chat"}, {"id": 7}, "x", {"id": "adapter"}]}


async def served(port: int) -> ServedModels:
    models = ServedModels([CaptureSpec("lo", (port,))], FetchLimits(2.0))
    await models.refresh()
    return models


async def test_names_are_those_of_v1_models() -> None:
    async with fake_server({"/v1/models": LISTED}) as server:
        models = await served(urlsplit(server.url).port or 0)
    assert models.names() == models.generative() == {"chat", "adapter"}
    await models.refresh()
    assert models.names() == {"chat", "adapter"}, "a server that is down keeps its names"


async def test_port_without_http_is_queried_once() -> None:
    requests = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readline())
        writer.write(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00@\x00")  # SETTINGS
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        models = await served(server.sockets[0].getsockname()[1])
        await models.refresh()
    assert requests == [b"GET /v1/models HTTP/1.1\r\n"]


async def test_names_are_those_of_the_repository_index() -> None:
    async with fake_triton(index=ready("chat")) as server:
        models = await served(urlsplit(server.url).port or 0)
    assert models.names() == {"chat"}
    assert models.generative() == frozenset()


async def test_unrelated_response_lists_no_models() -> None:
    async with fake_server({"/v1/models": b"[[["}) as server:
        models = await served(urlsplit(server.url).port or 0)
    assert models.names() == frozenset()


async def test_invented_names_are_other_if_the_server_echoes_them(tmp_path: Path) -> None:
    with trtllm_server.start(tmp_path / "server") as server:
        tap = f"proxy={HOST}:0={HOST}:{server.ports[0]}"
        models = ServedModels([parse(tap)], FetchLimits(2.0))
        async with TapSource(TapProcess(TapSettings([tap])), served=models) as one:
            url = f"http://{HOST}:{port_of(one.where)}/v1/chat/completions"
            async with aiohttp.ClientSession() as session:

                async def request(model: str) -> None:
                    message = {"role": "user", "content": "a"}
                    body = {"model": model, "max_tokens": 1, "messages": [message]}
                    async with session.post(url, json=body) as answer:
                        assert (await answer.json())["model"] == model

                await one.snapshot(0.0)
                await asyncio.gather(
                    *(request(f"invented-{n}") for n in range(40)), request("tensorrt_llm")
                )

            async def all_counted() -> bool:
                return total(await one.snapshot(0.0), "requests") == 41

            await until(all_counted)
            snapshot = await one.snapshot(0.0)
            limited = {
                labels["label"]: value
                for family in one.families()
                if family.name == "tokenslo_tap_limited_labels"
                for labels, value in family.series
            }
    counts = {
        measurement.model: sum(
            value for value in measurement.samples.values() if isinstance(value, float)
        )
        for measurement in snapshot.measurements
        if measurement.signal == "requests"
    }
    assert counts == {"tensorrt_llm": 1, "other": 40}
    assert limited == {"model": 40}
