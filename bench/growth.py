"""Measure how the cost of the sidecar grows with models, streams, tokens and series.

Run ``python -m bench.growth [TABLE…]`` from the checkout; README.md explains the tables.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from math import log

from bench.arguments import check_names
from bench.scrape import expositions, served
from exporter.protocol.detection import observe
from exporter.protocol.events import CLIENT, SERVER, ObserverSettings, Stream
from exporter.recording.stream_recorder import StreamRecorder
from exporter.samples import Measurement, ModelInfo, Snapshot
from exporter.sources.vllm.vllm_source import VllmSource
from exporter.store.store import TAPS, Store
from exporter.web.collector import expose
from promql.http_client import FetchLimits

ROUNDS = 5
MODELS = (1, 5, 20, 100, 250, 500)
STREAMS = (1, 10, 100, 1_000, 5_000)
TOKENS = (1_000, 5_000, 20_000, 50_000)
SERIES = (1_000, 5_000, 20_000, 100_000)
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

Round = Callable[[], object]
"""One round of the work that is measured."""


def least(work: Round) -> float:
    """Return the least CPU seconds of a round; the first one fills caches."""
    work()
    gc.collect()
    found = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


# Work


@contextmanager
def models(count: int) -> Iterator[Round]:
    """Scrape a vLLM server of a number of models, store the result, and render a scrape."""
    store, now = Store(5.0), iter(range(ROUNDS + 2))
    with served(expositions("vllm", count, ROUNDS + 2), {}) as url, asyncio.Runner() as runner:
        source = runner.run(VllmSource(url, limits=LIMITS).__aenter__())

        def work() -> None:
            at = float(next(now))
            store.update(runner.run(source.snapshot(at)), at, 0.1)
            expose(store.view(at), "1")

        yield work
        runner.run(source.__aexit__(None, None, None))


@contextmanager
def streams(count: int) -> Iterator[Round]:
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
def tokens(count: int) -> Iterator[Round]:
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
def series(count: int) -> Iterator[Round]:
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


TABLES: Mapping[str, tuple[Callable[[int], object], Sequence[int]]] = {
    "models": (models, MODELS),
    "streams": (streams, STREAMS),
    "tokens": (tokens, TOKENS),
    "series": (series, SERIES),
}


def print_table(title: str, sizes: Sequence[int]) -> None:
    """Print the cost at each size, per unit, and the exponent of growth since the row before."""
    prepare = TABLES[title][0]
    print(f"{title:>9}  {'CPU ms':>9}  {'µs each':>9}  {'exponent':>8}")
    found: list[tuple[int, float]] = []
    for size in sizes:
        with prepare(size) as work:  # type: ignore[attr-defined]
            found.append((size, least(work)))
    exponents = [
        f"{log(after / before) / log(size / smaller):.2f}"
        for (smaller, before), (size, after) in pairwise(found)
    ]
    for (size, cost), exponent in zip(found, ["", *exponents], strict=True):
        print(f"{size:>9,}  {1e3 * cost:>9.2f}  {1e6 * cost / size:>9.2f}  {exponent:>8}")


def main(*tables: str) -> None:
    """Print the named tables, all by default."""
    check_names(tables, TABLES, "table")
    for title in tables or TABLES:
        print_table(title, TABLES[title][1])
        print(flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
