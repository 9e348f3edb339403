"""Count the series of a sidecar and of the rules, for ``docs/reference/capacity.md``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import alerts.rules
from exporter.families import own_family
from exporter.process_metrics import families as process_families
from exporter.protocol.events import Stream
from exporter.recording.goodput import GoodputObjective
from exporter.recording.initial_series import known_labels
from exporter.recording.label_limiter import MAX_SERIES
from exporter.recording.model_metrics import MAX_REASONS
from exporter.recording.model_registry import MAX_INITIAL_MODELS, MAX_MODELS
from exporter.recording.stream_recorder import MAX_TENANTS, StreamRecorder
from exporter.samples import Snapshot
from exporter.sources.triton.triton_source import TritonSource
from exporter.store.store import Store
from exporter.store.unavailability import TAPS
from exporter.web.collector import expose
from exporter.web.readiness import family as ready_family
from exporter.web.readiness import readiness
from slos.indicators import INDICATORS
from slos.model import Alerting, Objective, Service
from slos.plan import Plan, plan
from slos.prompt_classes import MAX_BOUNDS
from slos.signals import MAIN_SIGNALS, SIGNALS
from tools.kubernetes.limits import sample_limit

CAPTURE = Path(__file__).parents[2] / "tests/captures/triton_traffic.txt"
TAPPED = "m"
"""The model of taps."""
TARGETS = ("0.9", "0.95", "0.99", "0.999")
GROUP = "cluster"
WITH_TAP = "a model of Triton, vLLM backend, that a tap sees"
PODS, SERVICES, OBJECTIVES = 1_000, 50, 6
"""Pods, services, and objectives of each service in the example."""
MODELS = 10
"""Models of the pod whose maximum is shown."""
SCRAPE_SECONDS, DAYS = 15, 28
SAMPLE_BYTES = (1, 2)
"""Bytes of a sample on disk, as in the documentation of Prometheus."""
SERIES_KIB = (4, 8)
"""Memory of an active series: an estimate."""
CLASSES = (512, 4096, 32768)
_DAY = 86_400

Rows = Iterator[Sequence[str]]


# The sidecar


@cache
def _scraped() -> Snapshot:
    """Return the snapshot of a sidecar that scrapes the recorded Triton."""
    body = CAPTURE.read_bytes()

    class CaptureHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    async def scraped(url: str) -> Snapshot:
        async with TritonSource(metrics_url=url) as source:
            return await source.snapshot(0.0)

    with ThreadingHTTPServer(("127.0.0.1", 0), CaptureHandler) as server:
        Thread(target=server.serve_forever).start()
        try:
            return asyncio.run(scraped(f"http://127.0.0.1:{server.server_port}/metrics"))
        finally:
            server.shutdown()


def _of_tap(
    thresholds: Mapping[str, Iterable[float]] | None = None,
    objectives: Iterable[GoodputObjective] = (),
    tenants: Sequence[str] = (),
    reasons: Sequence[str] = (),
    prompt_classes: Sequence[int] = (),
) -> Snapshot:
    """Return the snapshot of a tap with one model, a stream in flight and failed ones."""
    recorder = StreamRecorder(
        thresholds or {},
        objectives,
        {TAPPED: tenants} if tenants else {},
        expected=[TAPPED],
        prompt_classes=prompt_classes,
    )
    stream = Stream("chat", TAPPED, streaming=True)
    recorder.started(stream, 0.0)
    recorder.chunk(stream, 0.1, 1)
    for reason in reasons:
        failed = Stream("chat", TAPPED, streaming=True)
        recorder.started(failed, 0.0)
        recorder.ended(failed, 0.1, "error", reason, None)
    measurements = tuple(one for part in recorder.measurements() for one in part)
    return Snapshot(TAPS, measurements)


def _lines(*snapshots: Snapshot) -> list[str]:
    """Return the series of a sidecar with these snapshots."""
    store = Store(5.0)
    for snapshot in snapshots:
        store.update(snapshot, 0.0, 0.0)
    view = store.view(0.0)
    tasks = ("progress", *(f"read {snapshot.source}" for snapshot in snapshots))
    restarts = own_family("tokenslo_task_restarts", [({"task": task}, 0) for task in tasks])
    more = (ready_family(readiness(view, 30.0)), restarts, *process_families())
    text = expose(view, "1", more=more).body.decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def _series(model: str, *snapshots: Snapshot) -> int:
    """Return the number of series of a model; of the sidecar itself for an empty name."""
    own = [
        line for line in _lines(*snapshots) if (f'model="{model}"' if model else 'model="') in line
    ]
    return len(own) if model else len(_lines(*snapshots)) - len(own)


def sidecar_rows() -> Rows:
    """Yield name and series of what a sidecar serves of idle models."""
    triton, tap = _scraped(), _of_tap()
    yield "the sidecar itself, with one source", str(_series("", triton))
    for model, backend in (("tensorrt_llm", "TensorRT-LLM"), ("vllm_llm", "vLLM")):
        yield f"a model of Triton, {backend} backend", str(_series(model, triton))
    yield "a model that only a tap sees", str(_series(TAPPED, tap))
    measurements = tuple(replace(one, model="vllm_llm", version="1") for one in tap.measurements)
    both = _series("vllm_llm", triton, replace(tap, measurements=measurements))
    yield WITH_TAP, str(both)
    every = (*MAIN_SIGNALS, "input_length", "output_length")
    most = sum(map(_most, every)) + len(every)
    yield "a model with every signal of the catalogue", str(most)


def _most(signal: str) -> int:
    """Return the series of a signal with the sidecar's own bucket boundaries."""
    if SIGNALS[signal].kind == "histogram":
        return len(SIGNALS[signal].buckets) + len(("+Inf", "count", "sum"))
    return len(known_labels(signal))


def addition_rows() -> Rows:
    """Yield what adds series to a model, how many, and the maximum of it."""
    alone = _series(TAPPED, _of_tap())

    def added(**more: Any) -> str:
        return str(_series(TAPPED, _of_tap(**more)) - alone)

    goodput = GoodputObjective("chat/goodput", "", {"ttft": 0.8, "tpot": 0.06})
    yield "a latency threshold", added(thresholds={"ttft": (0.77,)}), "as many as in the SLO files"
    yield "a goodput objective of two clauses", added(objectives=[goodput]), "as above"
    yield "an objective on time slices", "2", "as above"
    classes = added(prompt_classes=CLASSES)
    yield f"prompt classes of {len(CLASSES)} bounds", classes, f"{MAX_BOUNDS} bounds"
    for name, label, most in (
        ("tenant", "tenants", f"{MAX_TENANTS} tenants in addition to those in SLO files"),
        ("reason of failures", "reasons", f"{MAX_REASONS} reasons of each model"),
    ):
        first, second = (int(added(**{label: values})) for values in (["a"], ["a", "b"]))
        yield f"the first {name}", str(first), "once"
        yield f"a further {name}", str(second - first), most


def limit_rows() -> Rows:
    """Yield the limits of a sidecar."""
    yield "models, versions counted", f"{MAX_MODELS}"
    yield "models of a tap with series before their first request", f"{MAX_INITIAL_MODELS}"
    yield "series that clients can create: unknown models, tenants, reasons", f"{MAX_SERIES:,}"
    name = f"series of a pod with {MODELS} models and {OBJECTIVES} objectives: its `sampleLimit`"
    yield name, f"{sample_limit(MODELS, OBJECTIVES, 0):,}"
    yield "the same with prompt classes", f"{sample_limit(MODELS, OBJECTIVES):,}"


# The rules


def _plan(*objectives: Objective) -> Plan:
    service = Service(
        "", "s", window=Decimal(28 * _DAY), selector={"model": "m"}, objectives=objectives,
        alerting=Alerting(),
    )  # fmt: skip
    return plan(service)


def _objective(indicator: str, target: str, *group_by: str) -> Objective:
    thresholds = {"seconds": Decimal("0.8"), "ratio": Decimal("0.9"), None: None}
    clauses = {"ttft": Decimal("0.8"), "tpot": Decimal("0.06")} if indicator == "goodput" else {}
    return Objective(
        "o", indicator, Decimal(target), thresholds[INDICATORS[indicator].threshold],
        clauses=clauses, group_by=group_by,
    )  # fmt: skip


def _recorded(made: Plan) -> list[Mapping[str, Any]]:
    """Return the recording rules of the objective."""
    groups: list[Mapping[str, Any]] = alerts.rules.groups(made)  # type: ignore[assignment]
    [rules] = [group["rules"] for group in groups if group["name"] == "s/o"]
    return [rule for rule in rules if "record" in rule]


def rule_rows() -> Rows:
    """Yield target and recorded series of an objective, without and with groups.

    Raises ValueError if they depend on the indicator.
    """
    for target in TARGETS:
        [row] = {_rule_row(target, indicator) for indicator in INDICATORS}
        yield row


def _rule_row(target: str, indicator: str) -> tuple[str, ...]:
    plain = _recorded(_plan(_objective(indicator, target)))
    grouped = _recorded(_plan(_objective(indicator, target, GROUP)))
    once = sum(rule["expr"].startswith("vector(") for rule in grouped)
    return (
        f"{100 * Decimal(target):f}".rstrip("0").rstrip(".") + "%",
        str(len(plain)),
        f"{once} + {len(grouped) - once} for each value",
    )


# An example


def fleet_rows() -> Rows:
    """Yield quantity, formula and value for a fleet of pods with one model each."""
    rows = dict(sidecar_rows())
    pod = int(rows["the sidecar itself, with one source"]) + int(rows[WITH_TAP])
    recorded = SERVICES * OBJECTIVES * int(next(rule_rows())[1])
    series, samples = PODS * pod + recorded, PODS * pod / SCRAPE_SECONDS + recorded / 60
    yield (
        "series",
        "pods × (the sidecar + models × series of a model) + objectives × recorded series",  # noqa: RUF001
        f"{series:,}",
    )
    yield (
        "samples per second",
        "series of sidecars / scrape interval + recorded series / 60 s",
        f"{samples:,.0f}",
    )
    least, most = (samples * DAYS * _DAY * size / 1e9 for size in SAMPLE_BYTES)
    yield (
        "disk",
        f"samples per second × retention × {SAMPLE_BYTES[0]} to {SAMPLE_BYTES[1]} bytes",  # noqa: RUF001
        f"{least:.0f} to {most:.0f} GB in {DAYS} days",
    )
    least, most = (series * size / 2**20 for size in SERIES_KIB)
    yield (
        "memory (estimate)",
        f"series × {SERIES_KIB[0]} to {SERIES_KIB[1]} KiB",  # noqa: RUF001
        f"{least:.1f} to {most:.1f} GiB",
    )
