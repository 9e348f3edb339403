"""Detection of the model input that requests the engine's timing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from fake_server import serving

from exporter.taps.proxy import model_inputs
from exporter.taps.proxy.model_inputs import ModelInputs
from lab.process import free_ports
from tests.polling import until


def configs(*inputs: str, requested: list[str]) -> Callable[[web.Request], object]:
    async def handle(request: web.Request) -> web.StreamResponse:
        requested.append(request.path)
        return web.json_response({"input": [{"name": name} for name in inputs]})

    return handle


async def made(url: str) -> ModelInputs:
    parts = urlsplit(url)
    return ModelInputs(parts.hostname or "", parts.port or 0)


@pytest.mark.parametrize("name", ["return_perf_metrics", "sampling_param_return_perf_metrics"])
async def test_the_input_of_a_model_is_used_from_its_second_request(
    name: str,
) -> None:
    requested: list[str] = []
    async with serving(configs("text_input", name, requested=requested)) as url:
        inputs = await made(url)
        assert inputs.input_of("a/b") == ""
        assert await until(lambda: inputs.input_of("a/b")) == name
        assert requested == ["/v2/models/a/b/config"]


async def test_a_model_without_the_input_is_checked_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requested: list[str] = []
    async with serving(configs("text_input", requested=requested)) as url:
        inputs = await made(url)
        for _ in range(3):
            assert inputs.input_of("chat") == ""
            await until(lambda: requested)
        inputs.input_of("next")
        await until(lambda: "/v2/models/next/config" in requested)
        assert requested.count("/v2/models/chat/config") == 1
        monkeypatch.setattr(model_inputs, "RETRY_SECONDS", 0.0)
        inputs = await made(url)
        inputs.input_of("chat")
        await until(lambda: requested.count("/v2/models/chat/config") == 2)
        inputs.input_of("chat")
        await until(lambda: requested.count("/v2/models/chat/config") == 3)


async def test_an_unreachable_server_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_inputs, "RETRY_SECONDS", 0.0)
    (port,) = free_ports(1)
    inputs = ModelInputs("127.0.0.1", port)
    for _ in range(3):
        assert inputs.input_of("chat") == ""
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    async with serving(configs("return_perf_metrics", requested=[]), port):
        assert await until(lambda: inputs.input_of("chat"))
        inputs.close()


async def test_a_malformed_response_has_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_inputs, "RETRY_SECONDS", 0.0)
    good = '{"input": [{"name": "return_perf_metrics"}]}'
    answers = ["[1", "{}", "[]", good]

    async def handle(_: web.Request) -> web.StreamResponse:
        return web.Response(text=answers.pop(0) if answers[1:] else good)

    async with serving(handle) as url:
        inputs = await made(url)
        assert await until(lambda: inputs.input_of("chat")) == "return_perf_metrics"
        assert answers == [good]
        inputs.close()


async def test_invented_model_names_do_not_displace_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_inputs, "MAX_MODELS", 3)
    requested: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        requested.append(request.path.split("/")[3])
        if "invented" in request.path:
            return web.json_response({"error": "unknown model"}, status=400)
        return web.json_response({"input": [{"name": "return_perf_metrics"}]})

    async with serving(handle) as url:
        inputs = await made(url)
        inputs.input_of("chat")
        await until(lambda: inputs.input_of("chat"))
        for number in range(10):
            inputs.input_of(f"invented{number}")
        inputs.input_of("invented9")  # one of the three in the cache
        inputs.input_of("invented0")  # evicted, so it is requested again
        await until(lambda: requested.count("invented0") == 2)
        assert requested.count("invented9") == 1
        inputs.input_of("late")
        assert await until(lambda: inputs.input_of("late"))
        assert inputs.input_of("chat")
        inputs.close()
