"""Interpret a scrape of a Triton server: a measurement or a reason for every signal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from exporter.render_gate import RENDER_GATE
from exporter.samples import Measurement, Missing, Model, ModelInfo, SourceError
from exporter.sources.exposition.by_model import FamiliesByModel
from exporter.sources.model_kind import kind_of
from exporter.sources.request_outcomes import FinishedCount
from exporter.sources.triton import request_metrics, trtllm_backend, unavailable_signals
from exporter.sources.triton.model_selection import ModelSelection
from exporter.sources.triton.request_metrics import Origin, Tally
from exporter.sources.triton.trtllm_backend import EngineProgress
from exporter.sources.unavailable import Unavailable, refuse, with_missing_signals
from exporter.sources.vllm import vllm_metrics


@dataclass(frozen=True, slots=True)
class TritonScrape:
    """The metrics and statistics of one scrape, or the errors of reading them.

    Without an HTTP API the statistics are empty and their error is None.
    """

    metrics: FamiliesByModel | None
    metrics_error: SourceError | None
    statistics: Mapping[Model, Tally]
    statistics_error: SourceError | None


def interpret(
    scrape: TritonScrape,
    selection: ModelSelection,
    models: Sequence[ModelInfo],
    engines: Mapping[Model, EngineProgress],
    now: float,
    frozen_after: float,
) -> tuple[tuple[Measurement, ...], tuple[Missing, ...]]:
    """Return measurements, and a reason for every signal of the catalogue without one.

    ``models`` are those to report, ``engines`` the progress of their engines.
    """
    present = [
        info for info in models if info.ready or (info.model, info.version) in selection.counted
    ]
    found = RENDER_GATE.paced(_interpreted(scrape, present, engines, now, frozen_after))
    loaded = {(info.model, info.version) for info in present}
    reported = {selection.bare(info.model) for info in models}
    infos = {(info.model, info.version): info for info in models}
    steps = {
        info.model: [step for step in selection.steps(info.model) if step in reported]
        for info in models
    }

    def why(model: Model, signal: str) -> Missing:
        info = infos[model]
        if model not in loaded:
            return _not_loaded(signal, info, scrape)
        unread = _unread(signal, info, selection, scrape)
        return unavailable_signals.missing(signal, info, steps[info.model], unread)

    def known(model: Model, measured: frozenset[str]) -> Sequence[Missing] | None:
        info = infos[model]
        if scrape.metrics is None or kind_of(info) == "unknown" or model not in loaded:
            return None
        return unavailable_signals.all_missing(info, tuple(steps[info.model]), measured)

    return with_missing_signals(found, RENDER_GATE.paced(infos), why, known)


def _interpreted(
    scrape: TritonScrape,
    models: Sequence[ModelInfo],
    engines: Mapping[Model, EngineProgress],
    now: float,
    frozen_after: float,
) -> Iterator[Measurement | Missing]:
    metrics, statistics = scrape.metrics, scrape.statistics
    if metrics is None:
        yield from _counted(models, statistics, "statistics")
        return
    done = {**trtllm_backend.finished(metrics), **vllm_metrics.finished(metrics)}
    counters = request_metrics.tallies(metrics, models)
    if request_metrics.frozen(metrics, statistics):
        note = f"{request_metrics.FROZEN}; {request_metrics.FROZEN_FIX}"
        yield from _counted(models, statistics, "statistics", note)
        yield from _finished(models, statistics, done, "statistics", note)
        unusable = (
            *_counted(models, counters, "counters"),
            *_finished(models, counters, done, "counters"),
        )
        yield from _refused(unusable, unread=bool(scrape.statistics_error))
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
    """Yield requests by the engines' counts where Triton counts successes too early.

    Failures come from Triton.  Without them all requests would count as good, so there is no
    measurement then.
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


def _ambiguous(metrics: FamiliesByModel, models: Sequence[ModelInfo]) -> Iterator[Missing]:
    for info in models:
        if (info.model, info.version) in metrics.ambiguous:
            yield from refuse(
                (*trtllm_backend.GAUGES, "kv_reused_blocks", *unavailable_signals.TOKENS),
                (info.model, info.version),
                "another namespace has a model of this name, and engine metrics carry no namespace",
                "give the models different names",
            )


def _unread(
    signal: str, info: ModelInfo, selection: ModelSelection, scrape: TritonScrape
) -> Unavailable | None:
    """Return the reason if an unread part could have had the signal, else None."""
    if scrape.metrics is None:
        return Unavailable(
            f"the metrics could not be read: {scrape.metrics_error}",
            "check that Triton runs with --allow-metrics=true and --triton-metrics is its address",
            unread=True,
        )
    if (
        signal in unavailable_signals.COUNTED
        and kind_of(info) == "unknown"
        and selection.index is not None
    ):
        return Unavailable(
            f"{selection.why_unknown(info.model)}, and without its backend what Triton counts has "
            "no meaning",
            "check that --triton is the address of Triton's HTTP API",
            unread=True,
        )
    return None


def _not_loaded(signal: str, info: ModelInfo, scrape: TritonScrape) -> Missing:
    """Report a model that is not loaded; unread metrics may still have its last series."""
    return Missing(
        signal,
        info.model,
        info.version,
        f"the model is not loaded ({info.reason})",
        "load the model",
        unread=scrape.metrics is None,
    )
