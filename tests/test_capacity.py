"""The numbers of series in docs/reference/capacity.md are those of a running sidecar."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from exporter.app import watch
from exporter.protocol.events import Stream
from exporter.recording.model_metrics import MAX_REASONS
from exporter.recording.stream_recorder import MAX_TENANTS, StreamRecorder
from exporter.samples import Snapshot
from exporter.settings import load_settings
from exporter.sources.triton.triton_source import TritonSource
from exporter.store.store import Store
from exporter.store.unavailability import TAPS
from exporter.web.collector import expose
from slos.outcomes import Outcome
from slos.signals import SIGNALS
from tests.fake_server import fake_server
from tests.polling import until
from tools.docs.capacity import CAPTURE, addition_rows, rule_rows, sidecar_rows
from tools.kubernetes.limits import ENGINE_BOUNDARIES, model_samples


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


# Limits

MODEL = "m"


def series_of(recorder: StreamRecorder) -> int:
    """Return the series of the model on the page of a tap's sidecar."""
    store = Store(5.0)
    measurements = tuple(one for part in recorder.measurements() for one in part)
    store.update(Snapshot(TAPS, measurements), 0.0, 0.0)
    lines = expose(store.view(0.0), "1").body.decode().splitlines()
    return sum(f'model="{MODEL}"' in line for line in lines if not line.startswith("#"))


def send(recorder: StreamRecorder, outcome: Outcome, reason: str = "", tenant: str = "") -> None:
    """Record one streaming request with one chunk and its numbers of tokens."""
    stream = Stream("chat", MODEL, tenant=tenant, streaming=True, input_tokens=7, cached_tokens=0)
    stream.counted, stream.output_tokens = True, 1
    recorder.started(stream, 0.0)
    recorder.chunk(stream, 0.1, 1)
    recorder.ended(stream, 0.2, outcome, reason, None)


@pytest.mark.parametrize(
    ("label", "most", "requests"),
    [
        ("tenant", MAX_TENANTS, [("ok", "", f"t{n}") for n in range(MAX_TENANTS + 5)]),
        (
            "reason of failures",
            MAX_REASONS,
            [("error", f"reason_{n}", "") for n in range(MAX_REASONS + 5)],
        ),
    ],
)
def test_labels_of_clients_add_the_series_of_the_page_up_to_their_limit(
    label: str, most: int, requests: list[tuple[Outcome, str, str]]
) -> None:
    rows = {name: int(series) for name, series, _ in addition_rows()}
    recorder = StreamRecorder({}, expected=[MODEL])
    send(recorder, "ok")
    alone, added = series_of(recorder), {}
    for number, (outcome, reason, tenant) in enumerate(requests, start=1):
        send(recorder, outcome, reason, tenant)
        if number in (1, most, most + 1, len(requests)):
            added[number] = series_of(recorder) - alone
    # The first value beyond the limit becomes "other", which has series of its own.
    first, further = rows[f"the first {label}"], rows[f"a further {label}"]
    with_other = first + further * most
    assert added == {
        1: first,
        most: with_other - further,
        most + 1: with_other,
        len(requests): with_other,
    }


def test_models_on_the_page_are_within_the_limit_of_a_scrape() -> None:
    rows = [int(series) for name, series in sidecar_rows() if name.startswith("a model")]
    # The limit allows engines more bucket boundaries than the sidecar's own, which the page counts.
    of_engines = sum(
        max(0, ENGINE_BOUNDARIES - len(signal.buckets))
        for signal in SIGNALS.values()
        if signal.kind == "histogram"
    )
    assert 0.7 * (model_samples(0) - of_engines) < max(rows) <= model_samples(0)
