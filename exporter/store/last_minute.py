"""Summaries of the last minute: rates of counters and percentiles of histograms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf

from exporter.samples import Distribution, Labels, Model, Value
from exporter.store.increase import add_values, increase_since, summed
from exporter.store.view import SignalState, View
from promql.histogram import histogram_quantile
from slos.signals import PROMPT_CLASS, SIGNALS, TENANT, Signal

SPAN = 60.0
"""Seconds covered by the summary."""

SHORTEST = 1.0
"""Minimum seconds of history for a summary."""
QUANTILES = (0.5, 0.95)

TimedSamples = tuple[float, Mapping[Labels, Value]]


History = tuple[float, Iterable[TimedSamples]]
"""The time of the last update, and snapshots of the last minute, oldest first."""


def with_summaries(view: View, histories: Mapping[Model, Mapping[str, History]]) -> View:
    """Return the view with the last minute of every state."""
    return replace(
        view,
        by_model={
            model: {
                signal: with_summary(state, history, counted_at)
                for signal, state in states.items()
                for counted_at, history in [histories[model][signal]]
            }
            for model, states in view.by_model.items()
        },
    )


def with_summary(
    state: SignalState, history: Iterable[TimedSamples], counted_at: float
) -> SignalState:
    """Return the state with text and increase of its last minute, unless it is a gauge."""
    signal = SIGNALS[state.signal]
    if signal.kind == "gauge" or not state.samples:
        return state
    latest = (counted_at, state.samples)
    return state._replace(
        recent=summary(signal, history, latest), last_minute=increase(history, latest)
    )


def summary(signal: Signal, history: Iterable[TimedSamples], latest: TimedSamples) -> str:
    """Summarize the change from the oldest snapshot of the last minute to ``latest`` as text.

    Percentiles are interpolated inside a bucket, as PromQL does, and marked "≈".  Empty if there
    is too little history.
    """
    at, values = latest
    then, earlier = next((one for one in history if at - one[0] <= SPAN), latest)
    seconds = at - then
    if seconds < SHORTEST:
        return ""
    if signal.kind == "histogram":
        return _percentiles(signal, earlier, values, seconds)
    return _rates(without_request_labels(earlier), without_request_labels(values), seconds)


def increase(history: Iterable[TimedSamples], latest: TimedSamples) -> Mapping[Labels, Value]:
    """Return the increase of every series since the oldest snapshot of the last minute."""
    at, values = latest
    _, earlier = next((one for one in history if at - one[0] <= SPAN), latest)
    return {labels: increase_since(earlier.get(labels), value) for labels, value in values.items()}


def without_request_labels(samples: Mapping[Labels, Value]) -> dict[Labels, Value]:
    """Return the samples summed over tenants and prompt classes, which are too many to read."""
    found: dict[Labels, Value] = {}
    for labels, value in samples.items():
        key = tuple(pair for pair in labels if pair[0] not in (TENANT, PROMPT_CLASS))
        found[key] = add_values(found.get(key), value)
    return found


def label_texts(labels: Labels) -> list[str]:
    """Return the label values to show, without a reason that only repeats the outcome."""
    given = dict(labels)
    same = given.get("reason", "").lower().replace("canceled", "cancelled")
    return [
        text
        for name, text in labels
        if text and not (name == "reason" and same == given.get("outcome"))
    ]


def _rates(earlier: Mapping[Labels, Value], values: Mapping[Labels, Value], seconds: float) -> str:
    rates = []
    for labels, value in sorted(values.items()):
        before = earlier.get(labels, 0.0)
        if isinstance(value, Distribution) or isinstance(before, Distribution):
            continue
        rate = (value - before) / seconds
        name = " ".join(label_texts(labels))
        if rate or not labels:
            rates.append(f"{name} {rate:.3g}/s".strip())
    return ", ".join(rates) or f"none in {seconds:.0f} s"


def _percentiles(
    signal: Signal,
    earlier: Mapping[Labels, Value],
    values: Mapping[Labels, Value],
    seconds: float,
) -> str:
    new, old = summed(values), summed(earlier)
    if not isinstance(new, Distribution):
        return ""
    if isinstance(old, Distribution) and old.boundaries == new.boundaries:
        counts = tuple(now - then for then, now in zip(old.counts, new.counts, strict=True))
        new = Distribution(new.boundaries, counts, new.sum - old.sum)
    if not new.count:
        return f"none in {seconds:.0f} s"
    if len(new.boundaries) == 1:
        return f"mean {_amount(new.sum / new.count, signal.unit)}"
    return ", ".join(_percentile(q, new, signal.unit) for q in QUANTILES)


def _percentile(q: float, distribution: Distribution, unit: str) -> str:
    value = histogram_quantile(q, distribution.boundaries, distribution.counts)
    text = (
        f">{_amount(distribution.boundaries[-2], unit)}"
        if value == inf
        else f"≈{_amount(value, unit)}"
    )
    return f"p{q * 100:.0f} {text}"


def _amount(value: float, unit: str) -> str:
    if unit == "s" and value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} {unit}"
