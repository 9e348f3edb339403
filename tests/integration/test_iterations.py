"""ITL from the iteration records of a server in real time, through every form of GET /metrics."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from exporter.samples import Distribution, Measurement, Snapshot, SourceError
from exporter.sources.trtllm.iterations_source import IterationsFileSource, IterationsSource
from lab import trtllm_server
from lab.engine_settings import EngineSettings
from lab.trtllm_serve.settings import RELEASES, ServeSettings
from promql.histogram import histogram_quantile
from promql.http_client import FetchLimits

ENGINE = EngineSettings(
    step_seconds=0.010, sequence_seconds=0.0005, context_token_seconds=0.0001, kv_blocks=2000
)
BOUNDARIES = [0.001 * 1.02**step for step in range(460)]
SECONDS = 4.0
SERVERS = {
    "C++": ServeSettings(schema="tensorrt", read="one-fetch", prometheus="none"),
    "1.0": RELEASES["1.0"],
    "1.2": ServeSettings(schema="pytorch-1.2", read="one-fetch", prometheus="none"),
    "1.4": RELEASES["1.4"],
}


async def load(session: aiohttp.ClientSession, url: str, seconds: float) -> None:
    """Keep six streams going, every fifth with a long prompt."""
    end = time.monotonic() + seconds

    async def client(number: int) -> None:
        sent = number
        while time.monotonic() < end:
            words = 800 if sent // 6 % 3 == number % 3 else 20
            body = {
                "model": "m",
                "prompt": " ".join(f"w{sent}x{word}" for word in range(words)),
                "max_tokens": 20 + sent * 7 % 30,
                "stream": True,
            }
            async with session.post(f"{url}/v1/completions", json=body) as response:
                assert response.status == 200, await response.text()
                await response.read()
            sent += 6

    await asyncio.gather(*map(client, range(6)))


async def watch(
    source: IterationsSource | IterationsFileSource, busy: asyncio.Task[Any], later: float = 0.0
) -> Snapshot:
    """Read once a second while there is load, and until what it left behind has come.

    Under load the first servers do not answer at all, which is an error until they do.
    """
    await asyncio.sleep(later)
    left, snapshot = 3, None
    while left:
        with suppress(SourceError):
            snapshot = await source.snapshot(time.monotonic())
        await asyncio.sleep(1.0)
        left -= busy.done()
    return snapshot or await source.snapshot(time.monotonic())


def itl(snapshot: Snapshot) -> Distribution:
    (measurement,) = [one for one in snapshot.measurements if one.signal == "itl"]
    assert isinstance(measurement, Measurement)
    value = measurement.samples[()]
    assert isinstance(value, Distribution)
    return value


@pytest.mark.parametrize("release", SERVERS)
async def test_every_release_gives_the_true_itl(
    release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with trtllm_server.start(tmp_path, SERVERS[release], ENGINE) as server:
        url = f"http://127.0.0.1:{server.ports[0]}"
        async with (
            aiohttp.ClientSession() as session,
            IterationsSource(
                url, thresholds={"itl": BOUNDARIES}, limits=FetchLimits(timeout=2.0)
            ) as source,
        ):
            snapshot = await watch(source, asyncio.create_task(load(session, url, SECONDS)))
            async with session.get(f"{url}/lab/truth") as response:
                truth = await response.json()
    estimate = itl(snapshot)
    lines = []
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        true = truth["gap_quantiles"][name]
        guess = histogram_quantile(q, estimate.boundaries, estimate.counts)
        lines.append(
            f"{release:4} {name} {true * 1000:8.2f} {guess * 1000:8.2f} {guess / true - 1:+7.1%}"
        )
        assert guess == pytest.approx(true, rel=0.1)
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert snapshot.lost_records == 0
    assert 0.9 * len(truth["gaps"]) <= estimate.count <= len(truth["gaps"])


async def test_file_of_records_gives_the_true_itl(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    records.touch()
    settings = ServeSettings(iterations_file=str(records))
    with trtllm_server.start(tmp_path / "server", settings, ENGINE) as server:
        url = f"http://127.0.0.1:{server.ports[0]}"
        async with (
            aiohttp.ClientSession() as session,
            IterationsFileSource(str(records), thresholds={"itl": BOUNDARIES}) as source,
        ):
            snapshot = await watch(source, asyncio.create_task(load(session, url, 2.0)))
            async with session.get(f"{url}/lab/truth") as response:
                truth = await response.json()
    for name, q in (("p50", 0.5), ("p90", 0.9)):
        estimate = itl(snapshot)
        guess = histogram_quantile(q, estimate.boundaries, estimate.counts)
        assert guess == pytest.approx(truth["gap_quantiles"][name], rel=0.1)
    assert snapshot.lost_records == 0


async def test_second_reader_causes_loss_that_both_report(tmp_path: Path) -> None:
    with trtllm_server.start(tmp_path, RELEASES["1.4"], ENGINE) as server:
        url = f"http://127.0.0.1:{server.ports[0]}"
        async with (
            aiohttp.ClientSession() as session,
            IterationsSource(url) as one,
            IterationsSource(url) as other,
        ):
            busy = asyncio.create_task(load(session, url, 2.5))
            snapshots = await asyncio.gather(watch(one, busy), watch(other, busy, 0.5))
    lost = [snapshot.lost_records for snapshot in snapshots]
    assert all(count and count > 20 for count in lost), lost
