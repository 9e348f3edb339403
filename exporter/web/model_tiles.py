"""Tiles of one model: latency with a chart, sequences and KV cache as bars, disconnects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from math import inf, isfinite, isnan

from exporter.objectives.objective_status import ObjectiveState
from exporter.samples import Distribution, Model, ModelInfo
from exporter.store.increase import summed
from exporter.store.last_minute import label_texts, without_request_labels
from exporter.store.latency_history import QUANTILES, LatencyHistory
from exporter.store.view import SignalState
from exporter.web.html_table import colored, small
from exporter.web.line_chart import ChartLine, line_chart, scale_top
from exporter.web.model_load import Limit, ModelLoad, last_minute, model_load
from promql.histogram import histogram_quantile

PACE = ("itl", "tpot")
"""Signals of the pace of tokens, the preferred one first."""
TILE_SIGNALS = ("ttft", *PACE, "sequences_active", "sequences_waiting", "kv_utilization")
_SHORT = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT"}
_NOT_REPORTED = "not reported for this model"

Signals = Mapping[str, SignalState]


@dataclass(frozen=True, slots=True)
class TileModel:
    """A model with the content of its tiles."""

    info: ModelInfo
    signals: Signals
    objectives: tuple[ObjectiveState, ...]

    @property
    def key(self) -> Model:
        """Name and version."""
        return self.info.model, self.info.version

    @property
    def name(self) -> str:
        """The name, with the version if there is one."""
        version = f" version {self.info.version}" if self.info.version else ""
        return self.info.model + version

    @property
    def load(self) -> ModelLoad:
        """The load that the signals show."""
        return model_load(self.signals)

    def is_measured(self) -> bool:
        """Whether any signal of a tile has a value."""
        return any(self.signals[key].samples for key in TILE_SIGNALS if key in self.signals)

    def rank(self) -> tuple[int, str, str]:
        """Return the sort key: failing objectives first, then limits, then traffic."""
        failing = any(state.met is False for state in self.objectives)
        urgency = 0 if failing else 1 if self.load.limit() else 2 if self.is_measured() else 3
        return urgency, self.info.model, self.info.version

    def threshold(self, signal: str) -> float | None:
        """Return the tightest threshold of the objectives on a signal."""
        found = [one.threshold for one in self.objectives if one.indicator == signal]
        return min((one for one in found if one is not None), default=None)

    def is_failing(self, signal: str) -> bool:
        """Whether an objective on a signal is not met."""
        return any(one.met is False for one in self.objectives if one.indicator == signal)


def tiles(model: TileModel, history: LatencyHistory) -> Iterator[str]:
    """Yield the tiles as a description list."""
    signals = model.signals
    pace = next((key for key in PACE if key in signals and signals[key].samples), PACE[0])
    load = model.load
    limit = load.limit()
    yield '<dl class="tiles">'
    yield from _tile(_SHORT["ttft"], _latency(model, "ttft", history), bad=model.is_failing("ttft"))
    yield from _tile(_SHORT[pace], _latency(model, pace, history), bad=model.is_failing(pace))
    yield from _tile("Sequences", _sequences(model, load, limit))
    yield from _tile("KV cache", _cache(model, load, limit))
    yield from _tile("Disconnects", _disconnects(model))
    yield "</dl>"


def _tile(title: str, content: Iterable[str], *, bad: bool = False) -> Iterator[str]:
    yield f'<div class="tile{" failing" if bad else ""}"><dt>{title}</dt><dd>'
    yield from content
    yield "</dd></div>"


def _unavailable(state: SignalState | None) -> str:
    reason = state.note if state else _NOT_REPORTED
    return f'<p class="value soft">unavailable</p>{small(reason)}'


def _latency(model: TileModel, signal: str, history: LatencyHistory) -> Iterator[str]:
    state = model.signals.get(signal)
    if state is None or not state.samples:
        yield _unavailable(state)
        yield from _chart(model, signal, history, "")
        return
    observed = summed(state.last_minute)
    if not isinstance(observed, Distribution) or not observed.count:
        yield '<p class="value soft">no traffic in the last minute</p>'
    elif len(observed.boundaries) == 1:
        yield f'<p class="value">{_seconds(observed.sum / observed.count)} <small>mean</small></p>'
    else:
        quantiles = " ".join(
            f'<span class="{_quantile_name(q)}"><b>{_bounded(q, observed)}</b> '
            f"{_quantile_name(q)}</span>"
            for q in reversed(QUANTILES)
        )
        yield f'<p class="value">{quantiles}</p>'
    estimate = " (estimate)" if state.quality == "estimate" else ""
    yield from _chart(model, signal, history, estimate)


def _chart(model: TileModel, signal: str, history: LatencyHistory, estimate: str) -> Iterator[str]:
    kept = history.lines.get(model.key, {}).get(signal)
    if not kept:
        return
    lines = [
        ChartLine(_quantile_name(q), values) for q, values in zip(QUANTILES, kept, strict=True)
    ]
    threshold = model.threshold(signal)
    top = scale_top(lines, threshold)
    limit = ""
    if threshold is not None and threshold <= top:
        limit = f'<span class="limit">objective {_seconds(threshold)}</span>'
    label = f"{_SHORT[signal]}{estimate} of {model.name}, last ten minutes: {_range(lines[-1])}"
    yield f'<div class="plot">{line_chart(lines, label, threshold)}'
    yield f'<span class="top">{_seconds(top)}</span></div>'
    yield f'<p class="axis"><span>10 min ago</span>{limit}<span>now</span></p>'


def _range(line: ChartLine) -> str:
    """Describe a line: ``p95 from 0.2 s to 1.2 s, now 0.5 s``."""
    values = [value for value in line.values if isfinite(value)]
    if not values:
        return f"{line.name} beyond the last bucket boundary"
    now = line.values[-1]
    latest = "" if isnan(now) or now == inf else f", now {_seconds(now)}"
    return f"{line.name} from {_seconds(min(values))} to {_seconds(max(values))}{latest}"


def _quantile_name(q: float) -> str:
    return f"p{q * 100:.0f}"


def _bounded(q: float, observed: Distribution) -> str:
    value = histogram_quantile(q, observed.boundaries, observed.counts)
    return f"&gt;{_seconds(observed.boundaries[-2])}" if value == inf else _seconds(value)


def _seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def _sequences(model: TileModel, load: ModelLoad, limit: Limit | None) -> Iterator[str]:
    states = model.signals
    if load.active is None and load.waiting is None:
        yield _unavailable(states.get("sequences_active"))
        return
    of = f" of {load.maximum:,.0f}" if load.maximum else ""
    active = "unavailable" if load.active is None else f"<b>{load.active:,.0f}</b>{of} active"
    yield f'<p class="value">{active}</p>'
    is_limit = limit is not None and limit.resource == "sequences"
    if load.busy_share is not None:
        yield _meter(
            f"Active sequences of {model.name}",
            load.busy_share,
            fair=is_limit,
            threshold=model.threshold("sequence_headroom"),
        )
    if load.waiting is None:
        waiting = states.get("sequences_waiting")
        yield small(f"waiting: unavailable, {waiting.note if waiting else _NOT_REPORTED}")
    else:
        text = f"{load.waiting:,.0f} waiting"
        yield f"<p>{colored('fair', text) if load.waiting else text}</p>"
    if not load.maximum:
        maximum = states.get("sequences_max")
        yield small(f"maximum: {maximum.note if maximum and maximum.note else _NOT_REPORTED}")


def _cache(model: TileModel, load: ModelLoad, limit: Limit | None) -> Iterator[str]:
    if load.kv_utilization is None:
        yield _unavailable(model.signals.get("kv_utilization"))
        return
    yield f'<p class="value"><b>{load.kv_utilization:.0%}</b> used</p>'
    is_limit = limit is not None and limit.resource == "kv_cache"
    yield _meter(
        f"KV cache of {model.name}",
        load.kv_utilization,
        fair=is_limit,
        threshold=model.threshold("kv_headroom"),
    )
    if load.preemptions:
        yield f"<p>{colored('fair', f'{load.preemptions:,.0f} preempted in the last minute')}</p>"


def _disconnects(model: TileModel) -> Iterator[str]:
    state = model.signals.get("disconnects")
    total = last_minute(state)
    if state is None or total is None:
        yield _unavailable(state)
        return
    yield f'<p class="value"><b>{total:,.0f}</b> in the last minute</p>'
    phases = [
        f"{value:,.0f} {' '.join(label_texts(labels)).replace('_', ' ')}"
        for labels, value in sorted(without_request_labels(state.last_minute).items())
        if isinstance(value, float | int) and value
    ]
    yield f"<p>{escape(', '.join(phases))}</p>" if phases else ""


def _meter(label: str, share: float, *, fair: bool, threshold: float | None) -> str:
    """Return a bar; ``threshold``, a share too, is a mark on it."""
    width = 100 * min(1.0, max(0.0, share))
    mark = ""
    if threshold is not None and 0 < threshold < 1:
        mark = f'<path class="limit" d="M{100 * threshold:.1f} 0V8"/>'
    return (
        f'<div role="meter" aria-label="{escape(label)}" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{width:.0f}" aria-valuetext="{share:.0%}">'
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="8"/>'
        f'<rect class="{"full" if fair else "fill"}" width="{width:.1f}" height="8"/>'
        f"{mark}</svg></div>"
    )
