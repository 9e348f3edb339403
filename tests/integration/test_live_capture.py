"""Packet capture beside real servers: it tells what their clients saw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median_low

import pytest

from exporter.taps.capture import CaptureTap
from exporter.taps.tap import CaptureSpec
from exporter.wire.connection import observe
from exporter.wire.events import Settings
from lab.engine import EngineSettings
from lab.load import Load, LoadSettings, LoadSummary, Protocol
from lab.serve import start
from lab.triton import Triton
from tests import traced
from tests.capturing import need_capture
from tests.wire_log import WireLog

TOLERANCE = 0.02
"""Seconds; clients share two cores with the servers. Millisecond bounds are in test_truth.py."""

WORDS, STREAMS = 20, 5


@pytest.fixture(autouse=True)
def _capture() -> None:
    need_capture()


@asynccontextmanager
async def capturing(*ports: int) -> AsyncIterator[WireLog]:
    log = WireLog()
    tap = CaptureTap(CaptureSpec("lo", ports), partial(observe, log, Settings()), log.passed_over)
    await tap.start()
    try:
        yield log
    finally:
        await tap.close()
    assert tap.traffic().dropped == 0
    assert not [event for event in log.events if event[0] in ("lost", "passed_over")]


async def ended(log: WireLog, count: int) -> None:
    async with asyncio.timeout(10):
        while sum(event[0] == "ended" for event in log.events) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def chunk_times(log: WireLog) -> list[list[float]]:
    """Return of each stream when its chunks came, in seconds from its arrival."""
    return [
        [event[1] - stream.arrived for event in log.of(number) if event[0] == "chunk"]
        for number, stream in enumerate(log.streams)
    ]


def agree(told: list[list[float]], seen: list[list[float]]) -> None:
    """Check counts exactly, and times in the middle: whoever has the CPU may hold up a client."""
    assert sorted(map(len, told)) == sorted(map(len, seen))
    for pick in (firsts, gaps):
        assert abs(median_low(pick(told)) - median_low(pick(seen))) < TOLERANCE


def firsts(streams: list[list[float]]) -> list[float]:
    return [times[0] for times in streams]


def gaps(streams: list[list[float]]) -> list[float]:
    return [later - sooner for times in streams for sooner, later in pairwise(times)]


async def test_triton_over_http(test_triton: Triton) -> None:
    async with capturing(test_triton.ports[0]) as log:
        ask = partial(traced.by_http, test_triton, "streaming", max_tokens=WORDS)
        seen = await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(STREAMS)))
        await ended(log, STREAMS)
    assert {stream.model for stream in log.streams} == {"streaming"}
    assert [event[3] for event in log.events if event[0] == "ended"] == ["ok"] * STREAMS
    agree(chunk_times(log), [times[:-1] for times in seen])


async def test_triton_over_grpc(test_triton: Triton) -> None:
    async with capturing(test_triton.ports[1]) as log:
        ask = partial(traced.by_grpc, test_triton, "streaming", WORDS, requests=2)
        seen = await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(STREAMS)))
        await ended(log, 2 * STREAMS)
    assert {stream.endpoint for stream in log.streams} == {"model_stream_infer"}
    assert [event[3] for event in log.events if event[0] == "ended"] == ["ok"] * 2 * STREAMS
    agree(chunk_times(log), [times for stream in seen for times in stream])


async def test_a_client_that_hangs_up(test_triton: Triton) -> None:
    async with capturing(test_triton.ports[0]) as log:
        await asyncio.to_thread(
            traced.leave_http, test_triton, "streaming", after=0.2, max_tokens=WORDS
        )
        await ended(log, 1)
    (end,) = [event for event in log.events if event[0] == "ended"]
    (left,) = [event for event in log.events if event[0] == "closing"][-1:]
    assert end[3] == "disconnected"
    assert 0.15 < left[2] - log.streams[0].arrived < 0.4


@pytest.mark.parametrize("protocol", ["chat", "completions"])
async def test_the_look_alike_under_load(protocol: Protocol, tmp_path: Path) -> None:
    with await asyncio.to_thread(start, tmp_path, None, EngineSettings()) as server:
        async with capturing(server.ports[0]) as log:
            load = Load(
                server.url,
                LoadSettings(
                    rate=30,
                    requests=40,
                    max_tokens=(8, 16, 40),
                    prompt_words=(20, 60),
                    protocol=protocol,
                    leave_before_first_token=0,
                    failing=0,
                ),
            )
            saw = await load.run()
            await ended(log, 40)
    outcomes = [event[3] for event in log.events if event[0] == "ended"]
    told = {outcome: outcomes.count(outcome) for outcome in ("ok", "invalid", "disconnected")}
    assert told == {
        "ok": saw.outcomes["ok"],
        "invalid": saw.outcomes["rejected"],
        "disconnected": saw.outcomes["left_mid_stream"],
    }
    streams = [times for times in chunk_times(log) if times]
    assert_near(saw, streams)


def assert_near(saw: LoadSummary, streams: list[list[float]]) -> None:
    assert saw.ttft
    assert saw.gap
    assert saw.ttft.count == len(streams)
    assert abs(saw.ttft.p50 - median_low(firsts(streams))) < TOLERANCE
    assert abs(saw.gap.p50 - median_low(gaps(streams))) < TOLERANCE
