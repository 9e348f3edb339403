"""The source of trtllm-serve against the fake trtllm-serve and the truth of its engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from exporter.samples import Distribution, Labels, Measurement, Missing, Snapshot, Value
from exporter.sources.trtllm.request_timing import SPANS
from exporter.sources.trtllm.trtllm_serve import TrtllmServeSource
from exporter.store.store import Store
from exporter.store.view import SignalState
from lab.engine_settings import EngineSettings
from lab.process import get
from lab.trtllm_serve.settings import RELEASES, ServeSettings
from lab.trtllm_server import start
from tests.polling import until

THRESHOLDS = {"ttft": (0.033,), "e2e": (0.123,)}
ENGINE = EngineSettings()


async def requests(url: str, count: int, *, stream: bool = True, tokens: int = 8) -> None:
    """Make some requests at once."""
    body = {"model": "any", "prompt": "one two three four", "max_tokens": tokens, "stream": stream}
    async with aiohttp.ClientSession() as session:

        async def one() -> None:
            async with session.post(f"{url}/v1/completions", json=body) as response:
                assert response.status == 200
                await response.read()

        await asyncio.gather(*(one() for _ in range(count)))


async def truth(url: str) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/lab/truth") as response:
        found: dict[str, Any] = await response.json()
    return list(found["requests"])


class Watch:
    """Reads the source into a store, as the sidecar does."""

    def __init__(self, source: TrtllmServeSource) -> None:
        self.source = source
        self.store = Store(5.0)
        self.now = 0.0

    async def scrape(self) -> Snapshot:
        self.now += 1
        snapshot = await self.source.snapshot(self.now)
        assert {name: str(error) for name, error in snapshot.parts.items() if error} == {}
        self.store.update(snapshot, self.now, 0.1)
        return snapshot

    def states(self) -> dict[str, SignalState]:
        return {state.signal: state for state in self.store.view(self.now).signals}

    def distribution(self, signal: str, method: str) -> Distribution:
        state = self.states()[signal]
        assert state.method == method
        [value] = state.samples.values()
        assert isinstance(value, Distribution)
        return value


def spans(ended: Iterable[dict[str, Any]], signal: str) -> list[float]:
    start_of, end_of = SPANS[signal]
    found = (one[end_of] - one[start_of] for one in ended)
    return [seconds for seconds in found if seconds > 0 or signal != "decode"]


@pytest.mark.parametrize("release", ["1.1", "1.3", "1.4"])
async def test_single_requests_are_timed_exactly(release: str, tmp_path: Path) -> None:
    settings, files = RELEASES[release], ""
    if settings.per_request == "headers":
        settings = replace(settings, perf_metrics_output_dir=str(tmp_path / "perf"))
        files = str(tmp_path / "perf" / "perf_metrics-*.jsonl")
    with start(tmp_path / "server", settings, ENGINE) as server:
        await requests(server.url, 2)
        before = len(await truth(server.url))
        async with TrtllmServeSource(server.url, requests=files, thresholds=THRESHOLDS) as source:
            watch = Watch(source)
            await watch.scrape()
            for count in (1, 5, 20):
                await requests(server.url, count)
                await requests(server.url, 1, stream=False, tokens=1)
                await watch.scrape()
            last = await watch.scrape()
        ended = (await truth(server.url))[before:]
    assert len(ended) == 29
    assert last.lost_records == 0
    for signal in SPANS:
        true = spans(ended, signal)
        reported = watch.distribution(signal, "trtllm_request_timing")
        assert reported.count == len(true), signal
        assert reported.sum == pytest.approx(sum(true), abs=1e-5)
        for threshold in THRESHOLDS.get(signal, ()):
            within = reported.counts[reported.boundaries.index(threshold)]
            assert within == sum(seconds <= threshold for seconds in true)
    assert watch.states()["tpot"].method == "trtllm_serve_histogram"
    assert "itl" not in {measurement.signal for measurement in last.measurements}


@pytest.mark.parametrize("release", ["1.1", "1.3", "1.4"])
async def test_finish_reasons_and_engine_histograms(release: str, tmp_path: Path) -> None:
    settings = replace(RELEASES[release], per_request="none", perf_metrics_max_requests=0)
    with start(tmp_path / "server", settings, ENGINE) as server:
        await requests(server.url, 1)
        async with TrtllmServeSource(server.url) as source:
            watch = Watch(source)
            await watch.scrape()
            await requests(server.url, 7)
            await watch.scrape()
        ended = (await truth(server.url))[1:]
    assert watch.states()["requests"].samples[(("outcome", "ok"),)] == len(ended)
    ttft = watch.distribution("ttft", "trtllm_serve_histogram")
    assert ttft.count == len(ended)
    assert ttft.boundaries[-1] == inf
    assert ttft.sum == pytest.approx(sum(spans(ended, "ttft")), abs=1e-5)


async def test_disconnected_stream_is_not_counted_and_unary_request_is_cancelled(
    tmp_path: Path,
) -> None:
    settings = RELEASES["1.2"]
    with start(tmp_path / "server", settings, ENGINE) as server:
        await requests(server.url, 1)
        async with TrtllmServeSource(server.url) as source:
            watch = Watch(source)
            await watch.scrape()
            for stream in (True, False):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await requests(server.url, 1, stream=stream, tokens=5000)

            async def cancelled_requests() -> Mapping[Labels, Value]:
                await watch.scrape()
                samples = watch.states()["requests"].samples
                return samples if samples.get((("outcome", "cancelled"),)) else {}

            samples = await until(cancelled_requests, pause=0.1)
    assert samples[(("outcome", "cancelled"),)] == 1
    assert sum(value for value in samples.values() if isinstance(value, float)) == 1


async def test_competing_reader_is_detected(tmp_path: Path) -> None:
    with start(tmp_path / "server", RELEASES["1.2"], ENGINE) as server:
        async with TrtllmServeSource(server.url) as source, TrtllmServeSource(server.url) as other:
            await source.snapshot(0)
            for now in range(1, 5):
                await requests(server.url, 3)
                await other.snapshot(now)
                await requests(server.url, 3)
                snapshot = await source.snapshot(now)
    assert snapshot.lost_records is not None
    assert 6 <= snapshot.lost_records <= 12
    assert not [one for one in snapshot.measurements if one.method == "trtllm_request_timing"]


async def test_gauges_of_a_dead_worker_are_left_out(tmp_path: Path) -> None:
    settings = ServeSettings(dead_worker=True)
    with start(tmp_path / "server", settings, ENGINE) as server:
        async with TrtllmServeSource(server.url) as source:
            found: dict[str, Measurement | Missing] = {}
            for now in range(4):
                await requests(server.url, 4)
                snapshot = await source.snapshot(now)
                found = {one.signal: one for one in snapshot.missing}
                found |= {one.signal: one for one in snapshot.measurements}
                if now == 0:
                    assert isinstance(found["sequences_max"], Missing)
        _, text = get(server.ports[0], "/prometheus/metrics")
    series = [line for line in text.splitlines() if line.startswith("trtllm_max_num_active")]
    assert len(series) == 2
    most = found["sequences_max"]
    assert isinstance(most, Measurement), most
    assert most.samples == {(): float(series[0].rpartition(" ")[2])}


async def test_release_1_0_is_explained(tmp_path: Path) -> None:
    with start(tmp_path / "server", RELEASES["1.0"], ENGINE) as server:
        async with TrtllmServeSource(server.url) as source:
            snapshot = await source.snapshot(0)
    assert snapshot.ready is True
    assert snapshot.measurements == ()
    fixes = {gap.signal: gap.fix for gap in snapshot.missing}
    assert fixes["ttft"].startswith("set return_perf_metrics: true")
