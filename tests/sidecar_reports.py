"""Sidecar reports with the signals of a few models, to compare scrapes of."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from exporter.doctor.sidecar_client import ReportedObjective, SidecarReport
from exporter.samples import Distribution, Labels, ModelInfo, Value
from exporter.store.view import SignalState, SourceState, View, grouped_by_model
from top.rows import Scrape

BOUNDARIES = (0.01, 0.1, 1.0, inf)


def histogram(*added: float) -> Distribution:
    """Return a histogram from the number of observations in each bucket."""
    counts, total = [], 0.0
    for number in added:
        total += number
        counts.append(total)
    return Distribution(BOUNDARIES, tuple(counts), total)


def state(
    signal: str, value: Value | None, model: str = "llama", version: str = "", **more: str
) -> SignalState:
    samples: dict[Labels, Value] = {} if value is None else {(): value}
    quality = "exact" if value is not None else "unavailable"
    quality = more.pop("quality", quality)
    return SignalState(signal, model, version, "wire", quality, samples, **more)  # type: ignore[arg-type]


def objective(name: str = "first-token", model: str = "llama", **more: object) -> ReportedObjective:
    fields = {
        "service": "chat", "objective": name, "model": model, "version": "", "target": "95%",
        "quality": "exact", "note": "", "fix": "", "met": True, "good_events": 9.0,
        "bad_events": 0.0,
    }  # fmt: skip
    return ReportedObjective(**{**fields, **more})  # type: ignore[arg-type]


def report(
    *signals: SignalState,
    objectives: Iterable[ReportedObjective] = (),
    sources: Iterable[SourceState] = (),
    unready: Iterable[str] = (),
) -> SidecarReport:
    found = dict.fromkeys((one.model, one.version) for one in signals)
    models = tuple(ModelInfo(*one) for one in found)
    view = View(grouped_by_model(signals), tuple(sources), models, {})
    return SidecarReport("0.1.0", view, 0, tuple(objectives), tuple(unready))


def busy(
    at: float,
    model: str = "llama",
    *,
    per_second: float = 2.0,
    kv: float = 0.5,
    waiting: float = 0.0,
    ttft: Distribution | None = None,
    objectives: Iterable[ReportedObjective] = (),
) -> list[SignalState]:
    """Return the signals of a model after ``at`` seconds of steady load."""
    return [
        state("requests", per_second * at, model),
        state("output_tokens", 100 * per_second * at, model),
        state("disconnects", 0.1 * per_second * at, model),
        state("ttft", ttft or histogram(0, per_second * at, 0, 0), model),
        state("itl", histogram(100 * per_second * at, 0, 0, 0), model, quality="estimate"),
        state("sequences_active", 12.0, model),
        state("sequences_max", 64.0, model),
        state("sequences_waiting", waiting, model),
        state("sequences_paused", 0.0, model),
        state("kv_utilization", kv, model),
    ]


def scrape(at: float, *signals: SignalState, **more: Iterable[object]) -> Scrape:
    return Scrape(at, report(*signals, **more))  # type: ignore[arg-type]
