"""Times of bytes that a late event loop reads are corrected or excluded, and counted."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from exporter.protocol.detection import observe
from exporter.protocol.events import ObserverSettings, Stream
from exporter.recording.stream_recorder import StreamRecorder
from exporter.samples import Distribution
from exporter.taps.capture.capture_tap import CaptureTap
from exporter.taps.loop_lag import TICK_SECONDS, LoopLag
from exporter.taps.tap import CaptureSpec
from tests.polling import until
from tests.proxy_setup import ProxySetup, on_loop, proxied, receive
from tests.recording_observer import RecordingObserver

BODY = b'{"model": "m", "prompt": "x", "stream": true}'
REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HELD_UP = 0.5


def chunk(text: str) -> bytes:
    event = b'data: {"choices":[{"index":0,"text":"%b"}]}\n\n' % text.encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


def found(recorder: StreamRecorder, signal: str) -> Distribution:
    (value,) = (
        value
        for measurements in recorder.measurements()
        for measurement in measurements
        if measurement.signal == signal and measurement.model == "m"
        for value in measurement.samples.values()
    )
    assert isinstance(value, Distribution)
    return value


async def stream_through(
    scene: ProxySetup,
    recorder: StreamRecorder,
    serve: Callable[[socket.socket], None],
    chunks: Sequence[bytes],
) -> float:
    """Let a thread send a stream while the event loop is held up; return the seconds after that.

    Returns once the recorder has all of its chunks.
    """
    lag = recorder.lag = scene.tap.lag
    client, server = await scene.pair(REQUEST)
    server.setblocking(True)
    await until(lambda: time.monotonic() < lag.fresh_until < float("inf"))
    answering = threading.Thread(target=serve, args=(server,))
    answering.start()
    time.sleep(HELD_UP)  # noqa: ASYNC251 - holding the loop up is the point
    resumed = time.monotonic()
    await receive(client, sum(map(len, chunks)))
    await asyncio.to_thread(answering.join)
    recorded = len(chunks) - 1
    await until(lambda: found(recorder, "itl").count + recorder.late_gaps == recorded)
    return time.monotonic() - resumed


@on_loop()
async def test_gaps_of_late_read_chunks_are_counted_but_not_recorded() -> None:
    recorder = StreamRecorder({}, expected=["m"])
    chunks = [HEAD + chunk("0"), *(chunk(str(number)) for number in range(1, 40))]

    def serve(server: socket.socket) -> None:
        for data in chunks:
            server.sendall(data)
            time.sleep(0.02)  # the pace of the stream

    async with proxied(partial(observe, recorder, ObserverSettings())) as scene:  # type: ignore[arg-type]
        after_resuming = await stream_through(scene, recorder, serve, chunks)
        traffic = scene.tap.traffic()
    itl = found(recorder, "itl")
    assert traffic.late_reads >= 1
    assert recorder.late_gaps >= 10
    assert itl.count + recorder.late_gaps == len(chunks) - 1
    assert itl.sum < after_resuming  # without the 0.5 s of 0.8 s that the loop was held up


@on_loop()
async def test_a_first_token_that_is_read_late_has_its_arrival_time() -> None:
    recorder = StreamRecorder({}, expected=["m"])
    first = HEAD + chunk("0")
    async with proxied(partial(observe, recorder, ObserverSettings())) as scene:  # type: ignore[arg-type]
        began = time.monotonic()
        sent: list[float] = []

        def serve(server: socket.socket) -> None:
            server.sendall(first)
            sent.append(time.monotonic())

        await stream_through(scene, recorder, serve, [first])
        ttft = found(recorder, "ttft")
        assert ttft.count == 1
        assert ttft.sum < sent[0] - began + 0.02
        assert scene.tap.traffic().late_reads >= 1


@on_loop()
async def test_times_of_late_reads_do_not_decrease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ages = iter(range(100))
    monkeypatch.setattr(LoopLag, "arrival_time", lambda _, now, __: now - next(ages))
    async with proxied() as scene:
        client, server = await scene.pair()
        scene.tap.lag.close()
        scene.tap.lag.fresh_until = 0.0
        for at_one, at_other in ((server, client), (client, server)) * 2:
            at_one.send(b"x")
            assert await receive(at_other, 1) == b"x"
        times = scene.observers[0].times
    assert next(ages) >= 4
    assert times == sorted(times)


@on_loop()
async def test_a_late_tap_reports_the_time_up_to_which_it_read() -> None:
    lag = LoopLag()
    lag.open()
    await until(lambda: lag.fresh_until < float("inf"))
    began = time.monotonic()
    time.sleep(HELD_UP)  # noqa: ASYNC251 - holding the loop up is the point
    assert lag.seen_until() <= began
    await until(lambda: lag.seen_until() > began)
    lag.close()


@on_loop()
async def test_reads_cause_the_ticks_instead_of_the_timer() -> None:
    ticks: list[float] = []
    lag = LoopLag(each_tick=lambda: ticks.append(time.monotonic()))
    lag.open()
    await until(lambda: lag.due < time.monotonic())
    before = len(ticks)
    for _ in range(3):
        lag.request_tick()
    for _ in range(2):
        await asyncio.sleep(0)
    assert len(ticks) == before + 1
    assert ticks[-1] < lag.due < lag.fresh_until
    lag.close()
    await asyncio.sleep(3 * TICK_SECONDS)
    lag.request_tick()
    await asyncio.sleep(3 * TICK_SECONDS)
    assert len(ticks) == before + 1


@on_loop()
async def test_reads_after_a_late_tick_are_late_until_the_next_tick() -> None:
    lag = LoopLag()
    lag.open()
    await until(lambda: lag.fresh_until < float("inf"))
    time.sleep(HELD_UP)  # noqa: ASYNC251 - holding the loop up is the point
    lag.request_tick()
    assert lag.due <= lag.fresh_until < time.monotonic()
    await until(lambda: lag.fresh_until > time.monotonic())
    lag.close()


def test_a_capture_is_never_late() -> None:
    tap = CaptureTap(CaptureSpec("lo", (8000,)), RecordingObserver, print)
    assert tap.lag.fresh_until == float("inf")
    assert not tap.lag.late


def test_the_gap_after_a_late_chunk_is_excluded_too() -> None:
    recorder = StreamRecorder({}, expected=["m"])
    recorder.lag = lag = LoopLag()
    stream = Stream("chat", "m", streaming=True)
    recorder.started(stream, 0.0)
    recorder.lag = lag = LoopLag()
    for number, late in enumerate((False, False, True, False, False)):
        lag.late = late
        recorder.chunk(stream, float(number), 0)
    assert (found(recorder, "itl").count, recorder.late_gaps) == (2, 2)
    assert stream.max_gap == 1.0
