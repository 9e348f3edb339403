"""The numbers of series in docs/reference/capacity.md are those of a running sidecar."""

from __future__ import annotations

import asyncio

import aiohttp

from exporter.app import watch
from exporter.settings import load_settings
from exporter.sources.triton.triton_source import TritonSource
from tests.fake_server import fake_server
from tests.polling import until
from tools.docs.capacity import CAPTURE, rule_rows, sidecar_rows


async def scrape(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()


async def served() -> list[str]:
    """Return the series of a sidecar that scrapes the recorded Triton."""
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    given = {"triton": ["http://x"], "listen": ["127.0.0.1:0"]}
    settings = load_settings(given, {})
    async with (
        fake_server({"/metrics": CAPTURE.read_text()}) as server,
        TritonSource(metrics_url=f"{server.url}/metrics") as source,
    ):
        running = asyncio.create_task(
            watch([source], settings, (), "1", stop, announce=lambda _, url: ready.set_result(url))
        )
        url = f"{await ready}/metrics"

        async def measured() -> str:
            text = await scrape(url)
            return text if "llm_kv_cache_utilization" in text else ""

        text = await until(measured)
        stop.set()
        await running
    return [line for line in text.splitlines() if not line.startswith("#")]


async def test_series_of_a_sidecar_are_those_on_the_page() -> None:
    lines = await served()
    rows = await asyncio.to_thread(lambda: dict(sidecar_rows()))
    own = [line for line in lines if 'model="' not in line]
    assert rows["the sidecar itself, with one source"] == str(len(own))
    for model, backend in (("tensorrt_llm", "TensorRT-LLM"), ("vllm_llm", "vLLM")):
        of_model = [line for line in lines if f'model="{model}"' in line]
        assert rows[f"a model of Triton, {backend} backend"] == str(len(of_model))


def test_recorded_series_do_not_depend_on_the_indicator() -> None:
    assert [row[0] for row in rule_rows()] == ["90%", "95%", "99%", "99.9%"]
