"""Finding out by which input a model can be asked for its timing."""

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


def configs(*inputs: str, asked: list[str]) -> Callable[[web.Request], object]:
    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.json_response({"input": [{"name": name} for name in inputs]})

    return handle


async def made(url: str) -> ModelInputs:
    parts = urlsplit(url)
    return ModelInputs(parts.hostname or "", parts.port or 0)


@pytest.mark.parametrize("name", ["return_perf_metrics", "sampling_param_return_perf_metrics"])
async def test_a_model_that_has_the_input_is_asked_by_it_from_the_second_request_on(
    name: str,
) -> None:
    asked: list[str] = []
    async with serving(configs("text_input", name, asked=asked)) as url:
        inputs = await made(url)
        assert inputs.input_of("a/b") == ""
        assert await until(lambda: inputs.input_of("a/b")) == name
        assert asked == ["/v2/models/a/b/config"]


async def test_a_model_without_it_is_not_and_is_looked_at_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    async with serving(configs("text_input", asked=asked)) as url:
        inputs = await made(url)
        for _ in range(3):
            assert inputs.input_of("chat") == ""
            await until(lambda: asked)
        assert len(asked) == 1
        monkeypatch.setattr(model_inputs, "RETRY_SECONDS", 0.0)
        inputs = await made(url)
        inputs.input_of("chat")
        await until(lambda: len(asked) == 2)
        inputs.input_of("chat")
        await until(lambda: len(asked) == 3)


async def test_a_server_that_is_not_there_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_inputs, "RETRY_SECONDS", 0.0)
    (port,) = free_ports(1)
    inputs = ModelInputs("127.0.0.1", port)
    for _ in range(3):
        assert inputs.input_of("chat") == ""
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    async with serving(configs("return_perf_metrics", asked=[]), port):
        assert await until(lambda: inputs.input_of("chat"))
        inputs.close()


async def test_a_malformed_answer_is_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_names_that_clients_invent_do_not_keep_out_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_inputs, "MAX_MODELS", 3)
    asked: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append(request.path.split("/")[3])
        if "invented" in request.path:
            return web.json_response({"error": "unknown model"}, status=400)
        return web.json_response({"input": [{"name": "return_perf_metrics"}]})

    async with serving(handle) as url:
        inputs = await made(url)
        inputs.input_of("chat")
        await until(lambda: inputs.input_of("chat"))
        for number in range(10):
            inputs.input_of(f"invented{number}")
        inputs.input_of("invented9")  # one of the three that are remembered
        inputs.input_of("invented0")  # forgotten, so it is asked for once more
        await until(lambda: asked.count("invented0") == 2)
        assert asked.count("invented9") == 1
        inputs.input_of("late")
        assert await until(lambda: inputs.input_of("late"))
        assert inputs.input_of("chat")
        inputs.close()
