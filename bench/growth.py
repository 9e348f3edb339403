"""Measure how CPU time and memory of the sidecar grow with models, streams, tokens and series.

Run ``python -m bench.growth [TABLE…]`` from the checkout; README.md explains the tables.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from bench.arguments import check_names
from bench.child_server import child_port
from bench.figures import Figure, GrowthCurve
from bench.growth_table import print_curves
from bench.scrape import expositions, serve_consecutive
from exporter.protocol.detection import observe
from exporter.protocol.events import CLIENT, SERVER, ObserverSettings, Stream
from exporter.recording.stream_recorder import StreamRecorder
from exporter.samples import Measurement, ModelInfo, Snapshot
from exporter.sources.vllm.vllm_source import VllmSource
from exporter.store.store import Store
from exporter.store.unavailability import TAPS
from exporter.web.collector import expose
from promql.http_client import FetchLimits

ROUNDS = 11
MODELS = (1, 5, 20, 100, 250, 500)
STREAMS = (1, 10, 100, 1_000, 5_000)
TOKENS = (1_000, 5_000, 20_000, 50_000)
SERIES = (1_000, 5_000, 20_000, 100_000)
LEAST_MIB = 0.1
"""Smallest amount of memory: less is within the noise of an allocator."""
CONNECTIONS = 100
"""Streams that the tokens are distributed over."""
THRESHOLDS = {"ttft": (0.8,), "itl": (0.06,), "max_gap": (2.0,), "e2e": (30.0,)}
LIMITS = FetchLimits(timeout=30.0, max_bytes=64 * 2**20)
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 28\r\n\r\n"
    b'{"model":"m","stream": true}'
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)

Work = Callable[[], object]
"""One round of the work that is measured."""


@dataclass(frozen=True, slots=True)
class SizeCost:
    """CPU seconds of each round at one size, and the memory in MiB that the work holds."""

    cpu: Sequence[float]
    memory: float


Prepare = Callable[[int], AbstractContextManager[Work]]


def measure(prepare: Prepare, size: int) -> SizeCost:
    """Measure the rounds of a size in a child process, whose memory has no earlier work."""
    processes = multiprocessing.get_context("fork")
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=_measure, args=(prepare, size, sender))
    process.start()
    sender.close()
    try:
        found: SizeCost = receiver.recv()
    finally:
        process.join()
    return found


def _measure(prepare: Prepare, size: int, sender: Connection) -> None:
    gc.collect()
    before = _resident_mib()
    with prepare(size) as work:
        work()  # fills caches
        gc.collect()
        found = []
        for _ in range(ROUNDS):
            start = time.process_time()
            work()
            found.append(time.process_time() - start)
        sender.send(SizeCost(found, max(LEAST_MIB, _resident_mib() - before)))


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


# Work


@contextmanager
def models(count: int) -> Iterator[Work]:
    """Scrape a vLLM server of a number of models, store the result, and render a scrape."""
    store, now = Store(5.0), iter(range(ROUNDS + 2))

    def serve(port: int) -> None:
        serve_consecutive(expositions("vllm", count, ROUNDS + 2), {}, port)

    with child_port(serve) as port, asyncio.Runner() as runner:
        url = f"http://127.0.0.1:{port}"
        source = runner.run(VllmSource(url, limits=LIMITS).__aenter__())

        def work() -> None:
            at = float(next(now))
            store.update(runner.run(source.snapshot(at)), at, 0.1)
            expose(store.view(at), "1")

        yield work
        runner.run(source.__aexit__(None, None, None))


@contextmanager
def streams(count: int) -> Iterator[Work]:
    """Evaluate active streams against the thresholds, and collect their measurements."""
    recorder = StreamRecorder(THRESHOLDS, expected=["m"])
    for number in range(count):
        stream = Stream("chat", "m", streaming=True)
        recorder.started(stream, number / count)
        recorder.chunk(stream, 1.0 + number / count, 1)
    now = iter(range(2, ROUNDS + 4))

    def work() -> None:
        for _ in recorder.evaluate_active(float(next(now))):
            pass
        for _ in recorder.measurements():
            pass
        recorder.waiting()

    yield work


@contextmanager
def tokens(count: int) -> Iterator[Work]:
    """Observe the tokens of one second, one in each chunk."""
    recorder = StreamRecorder(THRESHOLDS, expected=["m"])
    observers = [observe(recorder, ObserverSettings()) for _ in range(CONNECTIONS)]
    for observer in observers:
        observer.feed(CLIENT, REQUEST, 0.0)
        observer.feed(SERVER, HEAD, 0.1)
    seconds = iter(range(1, ROUNDS + 3))

    def work() -> None:
        begin, each = float(next(seconds)), count // CONNECTIONS
        for number in range(each):
            at = begin + number / each
            for observer in observers:
                observer.feed(SERVER, CHUNK, at)

    yield work


@contextmanager
def series(count: int) -> Iterator[Work]:
    """Store new values of a number of series, and render them."""
    recorder = StreamRecorder({}, expected=["m"])
    stream = Stream("chat", "m", streaming=True)
    recorder.started(stream, 0.0)
    recorder.chunk(stream, 0.1, 1)
    one = tuple(measurement for part in recorder.measurements() for measurement in part)
    number = max(1, round(count / _lines(Store(5.0), Snapshot(TAPS, one), 0.0)))
    store, now = Store(5.0, max_models=number), iter(range(ROUNDS + 2))

    def work() -> None:
        stream_at = float(next(now))
        recorder.chunk(stream, 0.2 + stream_at, 1)
        current = tuple(each for part in recorder.measurements() for each in part)
        copies = (_of_model(current, f"m{copy}") for copy in range(number))
        measurements = tuple(each for part in copies for each in part)
        infos = tuple(ModelInfo(f"m{copy}", "1") for copy in range(number))
        store.update(Snapshot(TAPS, measurements, models=infos), stream_at, 0.1)
        expose(store.view(stream_at), "1")

    yield work


def _of_model(measurements: Sequence[Measurement], model: str) -> Iterator[Measurement]:
    return (replace(one, model=model, version="1") for one in measurements)


def _lines(store: Store, snapshot: Snapshot, now: float) -> int:
    store.update(snapshot, now, 0.0)
    return expose(store.view(now), "1").body.count(b'model="')


@dataclass(frozen=True, slots=True)
class GrowthTable:
    """The work of a table, its sizes, and what a round is."""

    prepare: Prepare
    sizes: Sequence[int]
    text: str


TABLES: Mapping[str, GrowthTable] = {
    "models": GrowthTable(models, MODELS, "scrape a vLLM server, store the result and render it"),
    "streams": GrowthTable(streams, STREAMS, "evaluate active streams, once a second"),
    "tokens": GrowthTable(
        tokens, TOKENS, f"observe the tokens of a second on {CONNECTIONS} streams"
    ),
    "series": GrowthTable(series, SERIES, "store new values of all series and render them"),
}


def curves(title: str) -> tuple[GrowthCurve, GrowthCurve]:
    """Measure a table; return the growth of CPU time and of memory."""
    table = TABLES[title]
    costs = [measure(table.prepare, size) for size in table.sizes]
    cpu = [[1e3 * each for each in cost.cpu] for cost in costs]
    memory = [[cost.memory] for cost in costs]
    return (
        GrowthCurve(f"CPU to {table.text}", title, "ms", table.sizes, cpu),
        GrowthCurve(f"memory to {table.text}", title, "MiB", table.sizes, memory),
    )


def figures(_: bool) -> Iterator[Figure]:
    """Measure all tables."""
    for title in TABLES:
        yield from curves(title)


def main(*tables: str) -> None:
    """Print the named tables, all by default."""
    check_names(tables, TABLES, "table")
    for title in tables or TABLES:
        print_curves(*curves(title))


if __name__ == "__main__":
    main(*sys.argv[1:])
