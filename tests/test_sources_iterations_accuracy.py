"""How near the ITL that is derived from iteration records comes to the true one.

The truth is what clients of the simulated engine would see: for every request, the times between
the steps that brought it tokens, the last one included, whether the request ran on or finished
there.  Tokens of one step come in one chunk, so drafts do not shorten gaps.  Left out on both sides
is what iterations cannot show: the wait of a sequence that was paused.  The estimate is read as a
histogram with edges 1 % apart, so that the buckets add nothing to its error.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest

from exporter.samples import Distribution, Measurement
from exporter.sources.trtllm.iterations.engine import EngineState
from exporter.sources.trtllm.iterations.records import read_record
from exporter.sources.trtllm.iterations.report import report
from lab.engine import SimulatedEngine
from lab.engine_events import EngineRequest
from lab.engine_settings import EngineSettings
from lab.trtllm_serve.iteration_json import Json, records
from lab.trtllm_serve.settings import ServeSettings
from promql.histogram import histogram_quantile

QUANTILES = (0.5, 0.9, 0.99)
TOLERANCE = 0.10
BOUNDARIES = [0.001 * 1.01**step for step in range(930)]
SECONDS = 40.0
EPOCH = 1_795_000_000.0

Arrivals = list[tuple[float, EngineRequest]]


def request(rng: random.Random, prompt: tuple[int, int], output: tuple[int, int]) -> EngineRequest:
    words = tuple(rng.getrandbits(32) for _ in range(rng.randint(*prompt)))
    return EngineRequest(words, rng.randint(*output))


def steady(rng: random.Random) -> Arrivals:
    """Short prompts, one after the other."""
    times = [rng.uniform(0, SECONDS) for _ in range(80)]
    return sorted(((time, request(rng, (8, 64), (60, 200))) for time in times), key=first)


def mixed(rng: random.Random) -> Arrivals:
    """Every third prompt is long and stalls the sequences that decode."""
    times = [rng.uniform(0, SECONDS) for _ in range(70)]
    return sorted(
        (
            (time, request(rng, (800, 1800) if number % 3 == 0 else (8, 64), (40, 120)))
            for number, time in enumerate(times)
        ),
        key=first,
    )


def bursts(rng: random.Random) -> Arrivals:
    """Twelve requests within half a second, then nothing for a while."""
    return sorted(
        (
            (begin + rng.uniform(0, 0.5), request(rng, (8, 400), (20, 80)))
            for begin in range(0, int(SECONDS), 8)
            for _ in range(12)
        ),
        key=first,
    )


def first(pair: tuple[float, EngineRequest]) -> float:
    return pair[0]


LOADS: dict[str, Callable[[random.Random], Arrivals]] = {
    "steady": steady,
    "mixed prefill": mixed,
    "bursts": bursts,
}


PLAIN = EngineSettings(kv_blocks=4000, max_batch_size=16, max_num_active_requests=32)
PIPELINE = replace(PLAIN, micro_batches=2)
DRAFTS = replace(PLAIN, draft_tokens=3)


@dataclass(frozen=True)
class SimulatedServer:
    serve: ServeSettings
    engine: EngineSettings = PLAIN


SERVERS = {
    "C++": SimulatedServer(ServeSettings(schema="tensorrt")),
    "C++, pipeline": SimulatedServer(ServeSettings(schema="tensorrt"), PIPELINE),
    "C++, drafts": SimulatedServer(ServeSettings(schema="tensorrt"), DRAFTS),
    "PyTorch 1.2": SimulatedServer(ServeSettings(schema="pytorch-1.2")),
    "PyTorch 1.2, no overlap": SimulatedServer(ServeSettings(schema="pytorch-1.2", overlap=False)),
    "PyTorch 1.4": SimulatedServer(ServeSettings(schema="pytorch-1.4")),
    "PyTorch 1.4, no overlap": SimulatedServer(ServeSettings(schema="pytorch-1.4", overlap=False)),
    "PyTorch 1.4, pipeline": SimulatedServer(ServeSettings(schema="pytorch-1.4"), PIPELINE),
    "PyTorch 1.4, drafts": SimulatedServer(ServeSettings(schema="pytorch-1.4"), DRAFTS),
    "PyTorch 1.4, 4 ranks": SimulatedServer(
        ServeSettings(schema="pytorch-1.4", attention_dp_ranks=4)
    ),
}


@dataclass
class EngineRun:
    """What an engine wrote, and what its clients saw."""

    records: list[Json]
    gaps: list[float]
    tokens: int
    prefilled: int


def run(server: SimulatedServer, arrivals: Arrivals) -> EngineRun:
    """Serve the arrivals in virtual time."""
    engine, now = SimulatedEngine(server.engine), EPOCH
    writer = records(server.serve, server.engine)
    coming = [(EPOCH + time, one) for time, one in arrivals]
    steps: dict[int, list[float]] = defaultdict(list)
    written: list[Json] = []
    tokens = prefilled = 0
    while True:
        while coming and coming[0][0] <= now:
            at, one = coming.pop(0)
            engine.submit(one, at)
        step = engine.step(now)
        written += writer.of(now, step)
        for event in step.events:
            if event.index is not None:
                tokens += 1
                if not steps[event.request_id] or steps[event.request_id][-1] < now:
                    steps[event.request_id].append(now)
        if step.stats:
            prefilled += step.stats.inflightBatchingStats.numCtxTokens
        if step.seconds is not None:
            now += step.seconds
        elif coming:
            now = max(now, coming[0][0])
        else:
            gaps = [b - a for times in steps.values() for a, b in pairwise(times)]
            return EngineRun(written, sorted(gaps), tokens, prefilled)


def evaluated(written: list[Json]) -> tuple[EngineState, dict[str, Measurement]]:
    engine = EngineState({"itl": BOUNDARIES})
    for value in written:
        record = read_record(value)
        assert record is not None
        engine.add(record)
    measurements, _ = report(engine, 0.0, 5.0, "chat", "")
    return engine, {measurement.signal: measurement for measurement in measurements}


def distribution(measurement: Measurement) -> Distribution:
    value = measurement.samples[()]
    assert isinstance(value, Distribution)
    return value


def at(gaps: list[float], q: float) -> float:
    return gaps[min(len(gaps) - 1, int(q * len(gaps)))]


def rows(name: str, load: str, gaps: list[float], estimate: Distribution) -> Iterator[str]:
    for q in QUANTILES:
        truth, guess = at(gaps, q), histogram_quantile(q, estimate.boundaries, estimate.counts)
        yield (
            f"{name:24} {load:14} p{q * 100:<4g} {truth * 1000:9.2f} {guess * 1000:9.2f} "
            f"{guess / truth - 1:+8.1%}"
        )


@pytest.fixture(scope="module", params=SERVERS, ids=str)
def runs(request: Any) -> tuple[str, dict[str, EngineRun]]:
    server = SERVERS[request.param]
    return request.param, {
        load: run(server, make(random.Random(load))) for load, make in LOADS.items()
    }


def test_percentiles_are_within_a_tenth_of_the_truth(
    runs: tuple[str, dict[str, EngineRun]], capsys: pytest.CaptureFixture[str]
) -> None:
    name, by_load = runs
    table, wrong = [], []
    for load, one in by_load.items():
        engine, measurements = evaluated(one.records)
        estimate = distribution(measurements["itl"])
        table += rows(name, load, one.gaps, estimate)
        for q in QUANTILES:
            truth = at(one.gaps, q)
            if (
                abs(histogram_quantile(q, estimate.boundaries, estimate.counts) - truth)
                > TOLERANCE * truth
            ):
                wrong.append((load, q))
        # Most gaps there were are in it, and none that was not.
        assert 0.9 * len(one.gaps) <= estimate.count <= len(one.gaps)
        assert engine.lost == engine.repeated == 0
    with capsys.disabled():
        print("\n" + "\n".join(table))
    assert wrong == []


def test_every_token_is_counted(runs: tuple[str, dict[str, EngineRun]]) -> None:
    for one in runs[1].values():
        _, measurements = evaluated(one.records)
        assert measurements["output_tokens"].samples[()] == pytest.approx(one.tokens, rel=0.02)
        assert measurements["input_tokens"].samples[()] == pytest.approx(one.prefilled, rel=0.02)
