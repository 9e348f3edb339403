"""The source and the store report what happens to models of a real Triton."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from exporter.samples import Distribution, Labels, SourceError, Value
from exporter.sources.triton.triton_source import TritonSource
from exporter.store.store import Store
from exporter.store.view import SignalState
from lab.engine_settings import EngineSettings
from lab.repository import ModelSettings, write_repository
from lab.triton import Triton
from tests.polling import until
from tests.triton_models import ARGUMENTS, write_models

MODELS = ("plain", "failing", "slow", "pipeline", "streaming", "vllm_llm")
FROZEN_SECONDS = 0.5
ENGINE = EngineSettings(max_batch_size=2, max_num_active_requests=4, kv_blocks=40)


@pytest.fixture(scope="module")
def server(
    triton: Callable[..., Triton], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Triton]:
    """Serve every kind of model that the source treats differently."""
    folder = tmp_path_factory.mktemp("triton")
    repository = folder / "models"
    write_models(repository, MODELS)
    shutil.copytree(repository / "pipeline", repository / "third")
    (repository / "third/1").rename(repository / "third/3")
    write_repository(repository, engine=ENGINE)
    write_repository(repository, "stuck", ENGINE, ModelSettings(freeze=True))
    with triton(repository, folder, load=["*"], arguments=ARGUMENTS) as running:
        yield running


@dataclass
class PolledTriton:
    """A source and its store, polled by hand."""

    server: Triton
    source: TritonSource
    store: Store = field(default_factory=lambda: Store(5.0))

    async def poll(self) -> None:
        now = time.monotonic()
        self.store.update(await self.source.snapshot(now), now, 0.0)

    async def poll_until(self, condition: Callable[[], object]) -> None:
        """Poll until a condition holds: Triton counts a request after its response."""

        async def holds() -> object:
            await self.poll()
            return condition()

        await until(holds, pause=0.05)

    def state(self, model: str, signal: str, version: str = "1") -> SignalState:
        (found,) = [
            one
            for one in self.store.view(time.monotonic()).signals
            if (one.model, one.version, one.signal) == (model, version, signal)
        ]
        return found

    def value(self, model: str, signal: str, labels: Labels = ()) -> Value:
        return self.state(model, signal).samples[labels]

    def outcomes(self, model: str, version: str = "1") -> dict[str, Value]:
        samples = self.state(model, "requests", version).samples
        return {" ".join(word for _, word in labels): n for labels, n in samples.items() if n}

    async def request(self, model: str, text: str = "some words", **more: object) -> None:
        verb = "generate_stream" if more else "generate"
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{self.server.url}/v2/models/{model}/{verb}", json={"text_input": text, **more}
            ) as response,
        ):
            await response.read()

    async def disconnect(self, model: str, after: float, **more: object) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{self.server.url}/v2/models/{model}/generate_stream",
                json={"text_input": "some words", **more},
            ) as response,
        ):
            await response.content.readany()
            await asyncio.sleep(after)  # the client reads for this long

    async def control(self, model: str, action: str) -> None:
        url = f"{self.server.url}/v2/repository"
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{url}/models/{model}/{action}") as response:
                await response.read()

            async def is_done() -> bool:
                async with session.post(f"{url}/index", json={}) as response:
                    return "LOADING" not in await response.text()

            await until(is_done, pause=0.05)


@pytest.fixture
async def sidecar(server: Triton) -> AsyncIterator[PolledTriton]:
    """Read everything once: all counters are 0 then."""
    async with TritonSource(
        server.url, server.metrics, models=["slow", "plain"], frozen_after=FROZEN_SECONDS
    ) as source:
        fresh = PolledTriton(server, source)
        await fresh.poll()
        yield fresh


async def test_streams_of_the_engine(sidecar: PolledTriton) -> None:
    request = {"max_tokens": 12, "stream": True}
    streams = [
        asyncio.create_task(sidecar.request("tensorrt_llm", "word " * 40, **request))
        for _ in range(6)
    ]
    most: dict[str, float] = {}
    while not all(stream.done() for stream in streams):
        await asyncio.sleep(0.05)  # the interval of samples
        await sidecar.poll()
        for signal in ("sequences_active", "sequences_decoding", "sequences_waiting",
                       "kv_utilization"):  # fmt: skip
            for value in sidecar.state("tensorrt_llm", signal).samples.values():
                assert isinstance(value, float)
                most[signal] = max(value, most.get(signal, 0.0))
    assert most["sequences_active"] == 4
    assert most["sequences_decoding"] == 2
    assert most["sequences_waiting"] == 2
    assert 0 < most["kv_utilization"] <= 1

    await sidecar.poll_until(
        lambda: (
            sidecar.outcomes("tensorrt_llm") == {"ok": 6}
            and sidecar.value("tensorrt_llm", "sequences_active") == 0
        )
    )
    assert sidecar.state("tensorrt_llm", "requests").method == "trtllm_finished"
    assert sidecar.value("tensorrt_llm", "output_tokens") == 72
    ttft = sidecar.value("tensorrt_llm", "ttft")
    assert isinstance(ttft, Distribution)
    assert ttft.count == 6
    assert 0 < ttft.sum / 6 < 5
    assert sidecar.value("tensorrt_llm", "sequences_max") == 4

    await sidecar.poll_until(
        lambda: (
            sidecar.store.view(time.monotonic()).engine_stats_age["tensorrt_llm", "1"]
            > FROZEN_SECONDS
        )
    )
    assert sidecar.value("tensorrt_llm", "sequences_active") == 0, "idle is not stuck"


async def test_client_disconnect_counts_as_a_finished_request(sidecar: PolledTriton) -> None:
    await sidecar.disconnect("tensorrt_llm", 0.1, max_tokens=200, stream=True)
    await sidecar.poll_until(lambda: sidecar.outcomes("tensorrt_llm") == {"ok": 1})
    assert "including cancelled ones" in sidecar.state("tensorrt_llm", "requests").note
    disconnects = sidecar.state("tensorrt_llm", "disconnects")
    assert disconnects.quality == "unavailable"
    assert "observe the streams" in disconnects.fix


async def test_stuck_engine_has_no_active_requests_signal(sidecar: PolledTriton) -> None:
    await sidecar.request("stuck", max_tokens=5, stream=True)
    await sidecar.poll_until(
        lambda: sidecar.state("stuck", "sequences_active").quality == "unavailable"
    )
    note = sidecar.state("stuck", "sequences_active").note
    assert re.match("engine statistics stopped [01] s ago with 1 active: ", note)
    assert sidecar.value("stuck", "output_tokens") == 5


async def test_a_decoupled_model_without_metrics_of_its_own(sidecar: PolledTriton) -> None:
    await sidecar.request("streaming", max_tokens=3)
    await sidecar.request("streaming", "raise", max_tokens=3)
    await sidecar.poll()
    requests = sidecar.state("streaming", "requests")
    assert (requests.quality, requests.samples) == ("unavailable", {})
    assert "when execute() returns" in requests.note


async def test_vllm(sidecar: PolledTriton) -> None:
    await sidecar.request("vllm_llm", "three small words", max_tokens=5)
    await sidecar.poll()
    assert sidecar.outcomes("vllm_llm") == {"ok": 1}
    assert sidecar.value("vllm_llm", "input_tokens") == 3
    assert sidecar.value("vllm_llm", "output_tokens") == 5
    itl = sidecar.value("vllm_llm", "itl")
    assert isinstance(itl, Distribution)
    assert itl.count == 4


@pytest.mark.parametrize(("model", "version"), [("pipeline", "1"), ("third", "3")])
async def test_ensemble_failures_are_counted_once(
    sidecar: PolledTriton, model: str, version: str
) -> None:
    await sidecar.request(model)
    await sidecar.request(model, "then raise")
    await sidecar.request(model, "then raise")
    await sidecar.poll()
    assert sidecar.outcomes(model, version) == {"ok": 1, "error": 2}


async def test_rejected_requests(sidecar: PolledTriton) -> None:
    await asyncio.gather(*(sidecar.request("slow", "sleep 0.3") for _ in range(4)))
    await sidecar.poll()
    assert sidecar.outcomes("slow") == {"ok": 1, "shed": 3}
    died = sidecar.state("slow", "requests_without_first_token")
    assert died.samples == {(("outcome", "cancelled"),): 0, (("outcome", "shed"),): 3}
    assert died.quality == "estimate"


async def test_model_reload_keeps_counters_monotonic(sidecar: PolledTriton) -> None:
    for _ in range(3):
        await sidecar.request("pipeline")
    await sidecar.request("pipeline", "then raise")
    await sidecar.poll()
    expected = {"ok": 3, "error": 1}
    assert sidecar.outcomes("pipeline") == expected

    await sidecar.control("pipeline", "unload")
    await sidecar.poll_until(lambda: sidecar.state("pipeline", "requests").quality == "unavailable")
    gone = sidecar.state("pipeline", "requests")
    assert (gone.quality, gone.note) == (
        "unavailable",
        "the model is not loaded (UNAVAILABLE: unloaded)",
    )

    await sidecar.control("pipeline", "load")
    await sidecar.poll()
    assert sidecar.outcomes("pipeline") == expected
    await sidecar.request("pipeline")
    await sidecar.poll()
    assert sidecar.outcomes("pipeline") == {"ok": 4, "error": 1}


async def test_wrong_path_of_the_metrics_port_is_an_error(server: Triton) -> None:
    async with TritonSource(None, server.metrics.removesuffix("s")) as source:
        with pytest.raises(SourceError, match=f"Triton's metrics are at {server.metrics}") as error:
            await source.snapshot(0.0)
    assert error.value.kind == "empty"


async def test_without_the_api(server: Triton) -> None:
    async with TritonSource(None, server.metrics) as source:
        snapshot = await source.snapshot(0.0)
    assert {info.model for info in snapshot.models if not info.excluded} == {
        "stuck",
        "tensorrt_llm",
        "vllm_llm",
    }


async def test_frozen_counters_fall_back_to_statistics(
    triton: Callable[..., Triton], tmp_path: Path
) -> None:
    write_models(tmp_path / "models", ["plain"])
    arguments = ("--metrics-config=counter_latencies=false", *ARGUMENTS)
    with triton(tmp_path / "models", tmp_path, arguments=arguments) as server:
        async with TritonSource(server.url, server.metrics, models=["plain"]) as source:
            sidecar = PolledTriton(server, source)
            await sidecar.poll()
            for _ in range(3):
                await sidecar.request("plain")
            await sidecar.poll_until(lambda: sidecar.outcomes("plain") == {"ok": 3})
    requests = sidecar.state("plain", "requests")
    assert requests.method == "statistics_requests"
    assert "counter_latencies=false" in requests.note
