"""From what was read of a Triton server to readings and gaps: every signal of every model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from exporter.render_gate import RENDER_GATE
from exporter.samples import Measurement, Missing, Model, ModelInfo, SourceError
from exporter.sources import unavailable
from exporter.sources.exposition.by_model import ByModel
from exporter.sources.model_kind import kind_of
from exporter.sources.request_outcomes import FinishedCount
from exporter.sources.triton import request_metrics, trtllm_backend
from exporter.sources.triton.model_selection import ModelSelection
from exporter.sources.triton.request_metrics import Origin, Tally
from exporter.sources.triton.trtllm_backend import Engine
from exporter.sources.unavailable import Gap
from exporter.sources.vllm import vllm_metrics
from slos.signals import MAIN_SIGNALS


@dataclass(frozen=True, slots=True)
class Seen:
    """One look: what the metrics and the statistics said, or why they said nothing.

    Without an HTTP API the statistics are empty and their error is None.
    """

    metrics: ByModel | None
    metrics_error: SourceError | None
    statistics: Mapping[Model, Tally]
    statistics_error: SourceError | None


def interpret(
    seen: Seen,
    roster: ModelSelection,
    models: Sequence[ModelInfo],
    engines: Mapping[Model, Engine],
    now: float,
    frozen_after: float,
) -> tuple[list[Measurement], list[Missing]]:
    """Return readings, and a gap for every signal of the catalogue that has none.

    ``models`` are those to report on, ``engines`` what is remembered of their engines.
    """
    here = [info for info in models if info.ready or (info.model, info.version) in roster.counted]
    found = list(RENDER_GATE.paced(_interpreted(seen, here, engines, now, frozen_after)))
    measurements = [item for item in found if isinstance(item, Measurement)]
    given: dict[Model, set[str]] = {}
    for measurement in measurements:
        given.setdefault((measurement.model, measurement.version), set()).add(measurement.signal)
    refused: dict[Model, dict[str, Missing]] = {}
    for item in found:
        if isinstance(item, Missing):
            refused.setdefault((item.model, item.version), {}).setdefault(item.signal, item)
    loaded = {(info.model, info.version) for info in here}
    reported = {roster.bare(info.model) for info in models}
    missing: list[Missing] = []
    for info in RENDER_GATE.paced(models):
        model = (info.model, info.version)
        if model not in loaded:
            missing += [_not_loaded(signal, info, seen) for signal in MAIN_SIGNALS]
            continue
        steps = [step for step in roster.steps(info.model) if step in reported]
        refusals = refused.get(model, {})
        for signal in MAIN_SIGNALS:
            if signal in given.get(model, ()):
                continue
            if signal in refusals:
                missing.append(refusals[signal])
            else:
                unread = _unread(signal, info, roster, seen)
                missing.append(unavailable.missing(signal, info, steps, unread))
    return measurements, missing


def _interpreted(
    seen: Seen,
    models: Sequence[ModelInfo],
    engines: Mapping[Model, Engine],
    now: float,
    frozen_after: float,
) -> Iterator[Measurement | Missing]:
    metrics, statistics = seen.metrics, seen.statistics
    if metrics is None:
        yield from _counted(models, statistics, "statistics")
        return
    done = {**trtllm_backend.finished(metrics), **vllm_metrics.finished(metrics)}
    counters = request_metrics.tallies(metrics, models)
    if request_metrics.frozen(metrics, statistics):
        note = f"{request_metrics.FROZEN}; {request_metrics.FROZEN_FIX}"
        yield from _counted(models, statistics, "statistics", note)
        yield from _finished(models, statistics, done, "statistics", note)
        would_be = (
            *_counted(models, counters, "counters"),
            *_finished(models, counters, done, "counters"),
        )
        yield from _refused(would_be, unread=bool(seen.statistics_error))
    else:
        yield from _counted(models, counters, "counters")
        yield from _counted(models, statistics, "statistics")
        yield from _finished(models, counters, done, "counters")
    yield from request_metrics.first_responses(metrics, models)
    yield from trtllm_backend.interpret(metrics, models, engines, now, frozen_after)
    yield from vllm_metrics.interpret(metrics, models)
    yield from _ambiguous(metrics, models)


def _counted(
    models: Sequence[ModelInfo],
    tallies: Mapping[Model, Tally],
    origin: Origin,
    note: str = "",
) -> Iterator[Measurement]:
    for info in models:
        tally = tallies.get((info.model, info.version))
        if tally:
            yield from request_metrics.counted(info, tally, origin, note)


def _finished(
    models: Sequence[ModelInfo],
    tallies: Mapping[Model, Tally],
    done: Mapping[Model, FinishedCount],
    origin: Origin,
    note: str = "",
) -> Iterator[Measurement]:
    """Tell requests by what engines finished, where Triton counts successes too early.

    Failures are Triton's; without them all requests would look good, so there is no reading.
    """
    for info in models:
        model = (info.model, info.version)
        if kind_of(info) in ("decoupled", "vllm", "unknown") and model in done and model in tallies:
            yield from request_metrics.finished(info, done[model], tallies[model], origin, note)


def _refused(measurements: Iterable[Measurement], *, unread: bool) -> Iterator[Missing]:
    for measurement in measurements:
        yield Missing(
            measurement.signal,
            measurement.model,
            measurement.version,
            request_metrics.FROZEN,
            request_metrics.FROZEN_FIX,
            unread=unread,
        )


def _ambiguous(metrics: ByModel, models: Sequence[ModelInfo]) -> Iterator[Missing]:
    for info in models:
        if (info.model, info.version) in metrics.ambiguous:
            for signal in (*trtllm_backend.GAUGES, "kv_reused_blocks", *unavailable.TOKENS):
                yield Missing(
                    signal,
                    info.model,
                    info.version,
                    "another namespace has a model of this name, and engine metrics carry no "
                    "namespace",
                    "give the models different names",
                )


def _unread(signal: str, info: ModelInfo, roster: ModelSelection, seen: Seen) -> Gap | None:
    """Say which part that did not answer could have had the signal."""
    if seen.metrics is None:
        return Gap(
            f"the metrics could not be read: {seen.metrics_error}",
            "see that Triton runs with --allow-metrics=true and --triton-metrics is its address",
        )
    if signal in unavailable.COUNTED and kind_of(info) == "unknown" and roster.index is not None:
        return Gap(
            f"{roster.why_unknown(info.model)}, and without its backend what Triton counts has "
            "no meaning",
            "see that --triton is the address of Triton's HTTP API",
        )
    return None


def _not_loaded(signal: str, info: ModelInfo, seen: Seen) -> Missing:
    """Say that a model is gone; not for sure if its last series may still be there."""
    gap = Missing(
        signal,
        info.model,
        info.version,
        f"the model is not loaded ({info.reason})",
        "load the model",
    )
    return replace(gap, unread=seen.metrics is None)
