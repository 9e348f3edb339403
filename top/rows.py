"""Turn two scrapes of a sidecar into one row per model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from exporter.doctor.sidecar_client import ReportedObjective, SidecarReport
from exporter.samples import Distribution, ModelInfo, Value
from exporter.store.increase import add_values, increase_since
from exporter.store.view import SignalState
from promql.histogram import histogram_quantile
from slos.signals import SIGNALS

RATES = {"requests": "requests", "tokens": "output_tokens", "disconnects": "disconnects"}
"""Cells that are rates per second, and their signals."""
QUANTILES = {
    "ttft_p50": ("ttft", 0.5),
    "ttft_p95": ("ttft", 0.95),
    "itl_p50": ("itl", 0.5),
    "itl_p95": ("itl", 0.95),
}
"""Cells that are quantiles, their signals and quantiles."""
GAUGES = {
    "running": "sequences_active",
    "maximum": "sequences_max",
    "waiting": "sequences_waiting",
    "paused": "sequences_paused",
    "kv": "kv_utilization",
}
"""Cells that are current values, and their signals."""

NO_FILE = "the sidecar has no SLO file for this model"
GIVE_FILE = "give it --slo FILE"

State = Literal["value", "above", "collecting", "idle", "unavailable"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of a row.

    A ``value`` is the number, ``above`` a quantile beyond that bucket boundary.  ``collecting``
    waits for a second scrape, ``idle`` had nothing to measure.  An ``unavailable`` cell has the
    reason and the fix.  ``estimate`` is the quality of the signal.
    """

    state: State
    value: float = 0.0
    estimate: bool = False
    reason: str = ""
    fix: str = ""


COLLECTING = Cell("collecting")
IDLE = Cell("idle")


@dataclass(frozen=True, slots=True)
class Scrape:
    """A successful scrape and its time in seconds on a monotonic clock."""

    at: float
    report: SidecarReport


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model of one sidecar; ``objectives`` counts the missed ones."""

    sidecar: str
    model: str
    version: str
    cells: Mapping[str, Cell]
    missed: tuple[ReportedObjective, ...] = ()
    evaluated: int = 0

    @property
    def name(self) -> str:
        """The model and its version."""
        return f"{self.model}/{self.version}" if self.version else self.model


@dataclass(frozen=True, slots=True)
class SidecarRows:
    """The rows of one sidecar, or the error of its last scrape; neither before the first.

    ``seconds`` is the span of rates and quantiles, 0 after one scrape.  ``problems`` are reasons
    why the sidecar is not ready, and sources that fail.
    """

    sidecar: str
    rows: tuple[ModelRow, ...] = ()
    error: str = ""
    seconds: float = 0.0
    problems: tuple[str, ...] = ()
    answered: bool = False


def sidecar_rows(sidecar: str, then: Scrape | None, now: Scrape) -> SidecarRows:
    """Return one row per model from the change between two scrapes; ``then`` may be missing.

    A counter that fell has restarted from zero.
    """
    seconds = now.at - then.at if then else 0.0
    before = then.report.view.by_model if then and seconds > 0 else {}
    report = now.report
    states = report.view.by_model
    rows = tuple(
        _row(
            sidecar,
            (info.model, info.version),
            before.get((info.model, info.version)),
            states.get((info.model, info.version), {}),
            seconds,
            report.objectives,
        )
        for info in _shown(report.view.models)
    )
    return SidecarRows(sidecar, rows, "", seconds, tuple(_problems(report)), answered=True)


def _shown(models: Sequence[ModelInfo]) -> list[ModelInfo]:
    """Return the models to show, each without a version only if it has no other."""
    shown = [info for info in models if not info.excluded]
    with_version = {info.model for info in shown if info.version}
    return [info for info in shown if info.version or info.model not in with_version]


def _problems(report: SidecarReport) -> Iterable[str]:
    yield from (f"not ready: {reason}" for reason in report.unready)
    failing = (source for source in report.view.sources if not source.up and source.error)
    yield from (f"source {source.source}: {source.error}" for source in failing)


def _row(
    sidecar: str,
    model: tuple[str, str],
    before: Mapping[str, SignalState] | None,
    states: Mapping[str, SignalState],
    seconds: float,
    objectives: Iterable[ReportedObjective],
) -> ModelRow:
    own = [one for one in objectives if (one.model, one.version) == model]
    cells = {
        **{key: _rate(signal, before, states, seconds) for key, signal in RATES.items()},
        **{key: _quantile(*of, before, states, seconds) for key, of in QUANTILES.items()},
        **{key: _gauge(signal, states) for key, signal in GAUGES.items()},
        "objectives": _objectives(own),
    }
    missed = tuple(one for one in own if one.met is False)
    evaluated = sum(one.met is not None for one in own)
    return ModelRow(sidecar, *model, cells, missed, evaluated)


def _rate(
    signal: str,
    before: Mapping[str, SignalState] | None,
    states: Mapping[str, SignalState],
    seconds: float,
) -> Cell:
    state = states.get(signal)
    if state is None or not state.samples:
        return _unavailable(signal, state)
    increase = _increase(signal, before, state)
    if increase is None:
        return COLLECTING
    if isinstance(increase, Distribution):
        return IDLE
    return Cell("value", increase / seconds, state.quality == "estimate")


def _quantile(
    signal: str,
    q: float,
    before: Mapping[str, SignalState] | None,
    states: Mapping[str, SignalState],
    seconds: float,
) -> Cell:
    state = states.get(signal)
    if state is None or not state.samples:
        return _unavailable(signal, state)
    increase = _increase(signal, before, state)
    if increase is None or not seconds:
        return COLLECTING
    if not isinstance(increase, Distribution) or not increase.count:
        return IDLE
    if len(increase.boundaries) == 1:
        reason = "its source has no buckets, only a sum and a count"
        return Cell("unavailable", reason=reason, fix="observe the streams with --tap")
    value = histogram_quantile(q, increase.boundaries, increase.counts)
    estimate = state.quality == "estimate"
    if value == float("inf"):
        return Cell("above", increase.boundaries[-2], estimate)
    return Cell("value", value, estimate)


def _increase(
    signal: str, before: Mapping[str, SignalState] | None, state: SignalState
) -> Value | None:
    """Return the increase summed over all series, None if there is no earlier scrape."""
    earlier = before.get(signal) if before else None
    if earlier is None or not earlier.samples:
        return None
    total: Value | None = None
    for labels, value in state.samples.items():
        total = add_values(total, increase_since(earlier.samples.get(labels), value))
    return total


def _gauge(signal: str, states: Mapping[str, SignalState]) -> Cell:
    state = states.get(signal)
    samples = state.samples.values() if state else ()
    values = [value for value in samples if not isinstance(value, Distribution)]
    if state is None or not values:
        return _unavailable(signal, state)
    return Cell("value", max(values), state.quality == "estimate")


def _objectives(own: Sequence[ReportedObjective]) -> Cell:
    """Return the number of missed objectives."""
    if not own:
        return Cell("unavailable", reason=NO_FILE, fix=GIVE_FILE)
    measured = [one for one in own if one.quality != "unavailable"]
    if not measured:
        return Cell("unavailable", reason=own[0].note, fix=own[0].fix)
    if all(one.met is None for one in measured):
        return IDLE
    return Cell("value", float(sum(one.met is False for one in measured)))


def _unavailable(signal: str, state: SignalState | None) -> Cell:
    if state is None:
        title = SIGNALS[signal].title
        return Cell("unavailable", reason=f"the sidecar does not report it: {title}")
    return Cell("unavailable", reason=state.note, fix=state.fix)
