"""Scenes for the status page: ten minutes of scrapes through the real store, on a fake clock."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from time import monotonic

from exporter.objectives.objective_status import evaluate
from exporter.samples import (
    Distribution,
    Labels,
    Measurement,
    Missing,
    ModelInfo,
    Snapshot,
    SourceError,
    Value,
)
from exporter.store.latency_history import LatencyRecorder
from exporter.store.store import Store
from exporter.store.view import View
from exporter.web.readiness import readiness
from exporter.web.server import Facts
from exporter.web.status import Status
from slos.model import Service
from slos.signals import MAIN_SIGNALS, SIGNALS
from tests.service_example import objective, service

INTERVAL = 5.0
MINUTES = 11.0
NO_TAP = ("the proxy tap is not running", "start the sidecar with --tap proxy=LISTEN=UPSTREAM")


@dataclass(slots=True)
class ModelScene:
    """The behaviour of one model: requests per second, latencies and gauges over time.

    ``ttft`` and ``itl`` are medians in seconds at a time; ``without`` are unavailable signals.
    """

    name: str
    rate: float = 4.0
    ttft: Callable[[float], float] = lambda _: 0.25
    itl: Callable[[float], float] = lambda _: 0.02
    active: int = 12
    waiting: int = 0
    maximum: int = 64
    kv: float = 0.41
    preemptions_per_second: float = 0.0
    failing: float = 0.0
    disconnecting: float = 0.02
    without: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    version: str = "1"


class _SceneTotals:
    """The counters that a server would publish of one model."""

    def __init__(self, scene: ModelScene, seed: int) -> None:
        self.scene = scene
        self._random = random.Random(seed)
        self._buckets = {
            key: [0] * (len(SIGNALS[key].buckets) + 2) for key in ("ttft", "itl", "tpot", "e2e")
        }
        self._edges = {key: self._edges_of(key) for key in self._buckets}
        self._sums = dict.fromkeys(self._buckets, 0.0)
        self._counters: dict[str, dict[Labels, float]] = {
            "requests": dict.fromkeys(
                _labels("outcome", "ok", "error", "client_disconnected"), 0.0
            ),
            "disconnects": dict.fromkeys(_labels("phase", "before_first_token", "mid_stream"), 0.0),
            "requests_without_first_token": dict.fromkeys(_labels("outcome", "error"), 0.0),
            "output_tokens": {(): 0.0},
            "preemptions": {(): 0.0},
        }

    @staticmethod
    def _edges_of(key: str) -> tuple[float, ...]:
        return (*sorted({*SIGNALS[key].buckets, 0.8 if key == "ttft" else 0.06}), math.inf)

    def advance(self, now: float) -> None:
        scene, chance = self.scene, self._random.random
        wanted = scene.rate * INTERVAL
        for _ in range(int(wanted) + (chance() < wanted % 1)):
            outcome = "error" if chance() < scene.failing else "ok"
            if chance() < scene.disconnecting:
                outcome = "client_disconnected"
                self._add("disconnects", "phase", "mid_stream")
            self._add("requests", "outcome", outcome)
            self._observe("ttft", scene.ttft(now))
            for _ in range(4):
                self._observe("itl", scene.itl(now), count=3)
            self._observe("tpot", scene.itl(now))
            self._observe("e2e", scene.ttft(now) + 120 * scene.itl(now))
            self._counters["output_tokens"][()] += 120
        self._counters["preemptions"][()] += scene.preemptions_per_second * INTERVAL

    def _add(self, key: str, label: str, value: str) -> None:
        self._counters[key][(label, value),] += 1

    def _observe(self, key: str, median: float, count: int = 1) -> None:
        value = median * math.exp(self._random.gauss(0, 0.3))
        self._buckets[key][bisect_left(self._edges[key], value)] += count
        self._sums[key] += count * value

    def measurements(self) -> Iterable[Measurement | Missing]:
        scene = self.scene
        samples: dict[str, Mapping[Labels, Value]] = {**self._counters}
        for key, edges in self._edges.items():
            counts = [0.0]
            for count in self._buckets[key]:
                counts.append(counts[-1] + count)
            samples[key] = {
                (): Distribution(edges, tuple(counts[1 : len(edges) + 1]), self._sums[key])
            }
        gauges = {
            "sequences_active": scene.active,
            "sequences_waiting": scene.waiting,
            "sequences_max": scene.maximum,
            "kv_utilization": scene.kv,
        }
        samples |= {key: {(): float(value)} for key, value in gauges.items()}
        for key in MAIN_SIGNALS:
            if key in samples and key not in scene.without:
                yield Measurement(key, scene.name, scene.version, "wire", samples[key])
            else:
                reason, fix = scene.without.get(key, NO_TAP)
                yield Missing(key, scene.name, scene.version, reason, fix)


def _labels(name: str, *values: str) -> list[Labels]:
    return [((name, value),) for value in values]


def status(
    models: Iterable[ModelScene],
    services: Sequence[Service] = (),
    *,
    lost_for: float = 0.0,
    minutes: float = MINUTES,
) -> Status:
    """Play a scene, whose source fails in the last ``lost_for`` seconds; return its status."""
    totals = [_SceneTotals(scene, seed) for seed, scene in enumerate(models)]
    store, recorder = Store(stale_after=10), LatencyRecorder(INTERVAL)
    infos = tuple(
        ModelInfo(one.scene.name, one.scene.version, "tensorrtllm", decoupled=True)
        for one in totals
    )
    end = 60 * minutes
    now = 0.0
    while now < end:
        now += INTERVAL
        for one in totals:
            one.advance(now)
        if now > end - lost_for:
            error = SourceError("connect", "http://127.0.0.1:8002/metrics: connection refused")
            store.fail("triton", error, now, 0.002)
        else:
            items = [item for one in totals for item in one.measurements()]
            snapshot = Snapshot(
                "triton",
                tuple(item for item in items if isinstance(item, Measurement)),
                tuple(item for item in items if isinstance(item, Missing)),
                infos,
                ready=True,
            )
            store.update(snapshot, now, 0.012)
        recorder.update(store.view(now), now)
    view = store.summarized_view(now + 0.4)()
    return Status(
        "1.2.3",
        "2026-01-02T03:04:05Z",
        view,
        readiness(view, 10),
        evaluate(services, view),
        history=recorder.history,
    )


def facts(found: Status) -> Facts:
    """Return the data of a server that serves one status, in which only the sources age."""
    began = monotonic()

    def view() -> View:
        age = monotonic() - began
        sources = (
            replace(one, age=None if one.age is None else one.age + age)
            for one in found.view.sources
        )
        return replace(found.view, sources=tuple(sources))

    return Facts(
        "1.2.3",
        view,
        lambda: view,
        lambda _: found.readiness,
        lambda aged: replace(found, view=aged),
    )


def chat() -> Service:
    """Return an SLO file for every model."""
    return service(
        objective("ttft", "0.95"),
        replace(objective("itl", "0.99"), threshold=Decimal("0.06")),
        objective("availability", "0.999"),
        objective("kv_headroom"),
        selector={},
    )


def _rising(start: float, end: float) -> Callable[[float], float]:
    """Return a latency that rises during the second half of the scene."""
    half = 30 * MINUTES
    return lambda now: start + (end - start) * max(0.0, now - half) / half


def _wavy(middle: float, phase: float) -> Callable[[float], float]:
    return lambda now: middle * (1 + 0.25 * math.sin(now / 60 + phase))


def fleet(count: int, **fields: object) -> list[ModelScene]:
    """Return models with different loads."""
    names = ("chat", "code", "summary", "rerank")
    return [
        ModelScene(
            f"{names[number % 4]}-{(number // 4 + 1) * 8}b",
            rate=1.0 + number % 3,
            ttft=_wavy(0.15 + 0.03 * (number % 7), number),
            itl=_wavy(0.01 + 0.002 * (number % 5), number),
            active=5 + 3 * (number % 9),
            kv=0.1 + 0.07 * (number % 9),
            **fields,  # type: ignore[arg-type]
        )
        for number in range(count)
    ]


def _violated(name: str = "llama-3-70b") -> ModelScene:
    return ModelScene(
        name, ttft=_rising(0.3, 1.6), active=62, waiting=14, kv=0.86, failing=0.03, rate=6
    )


def _preempting(name: str = "llama-3-70b") -> ModelScene:
    return ModelScene(
        name, kv=0.88, preemptions_per_second=0.3, itl=_rising(0.018, 0.024), waiting=3
    )


_NO_TOKENS = (
    "Triton does not time tokens",
    "start the sidecar with --tap proxy=LISTEN=UPSTREAM, or serve with the vLLM backend",
)
_NO_ENGINE = ("the backend publishes no engine statistics", "serve with the TensorRT-LLM backend")
_WITHOUT_TAP = {
    **dict.fromkeys(("itl", "tpot", "disconnects"), _NO_TOKENS),
    **dict.fromkeys(("sequences_active", "sequences_waiting", "kv_utilization"), _NO_ENGINE),
}
_LLAMA = "llama-3-70b"

SCENES: Mapping[str, Callable[[], Status]] = {
    "healthy": partial(status, [ModelScene(_LLAMA, ttft=_wavy(0.25, 0))], [chat()]),
    "violated": partial(status, [_violated()], [chat()]),
    "limited": partial(status, [_preempting()], [chat()]),
    "down": partial(status, [ModelScene(_LLAMA)], [chat()], lost_for=40),
    "failing-scrape": partial(status, [ModelScene(_LLAMA)], [chat()], lost_for=5),
    "idle": partial(status, [ModelScene(_LLAMA, rate=0, active=0, kv=0)], [chat()]),
    "started": partial(status, [ModelScene(_LLAMA)], [chat()], minutes=0.25),
    "unavailable": partial(status, [ModelScene(_LLAMA, without=_WITHOUT_TAP)], [chat()]),
    "no-slo": partial(status, [ModelScene(_LLAMA)]),
    "twelve": partial(status, [*fleet(10), _violated(), _preempting("mixtral-8x7b")], [chat()]),
    "hundred": partial(status, fleet(100), [chat()], minutes=1.0),
}
"""Scenes by name; each takes up to a few seconds to play."""
