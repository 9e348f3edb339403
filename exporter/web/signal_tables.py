"""The signals of a model as tables by group, with method and quality."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from exporter.methods import METHODS
from exporter.samples import Distribution, Labels, ModelInfo, Value
from exporter.store.last_minute import label_texts, without_request_labels
from exporter.store.view import SignalState
from exporter.web.html_table import details, table, why
from exporter.web.signal_groups import GROUPS
from slos.signals import COMPANIONS, SIGNALS, Signal

_COLUMNS = ("Signal", "Now", "Since start", "Quality", "Method")
_PREFIXES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def signal_tables(model: ModelInfo, signals: Mapping[str, SignalState]) -> Iterator[str]:
    """Yield a disclosure with a table for each group of which the model has signals."""
    for group, keys in GROUPS.items():
        states = [signals[key] for key in keys if key in signals and _is_shown(signals[key])]
        if states:
            # What is measured comes first.
            states.sort(key=lambda state: not state.samples)
            caption = f"{group} of {model.model}"
            yield from details(
                f"{model.model}/{model.version}/{group}",
                f"{group}: {_counted(states)}",
                table(caption, _COLUMNS, map(_row, states), hidden=True),
            )


def _is_shown(state: SignalState) -> bool:
    return bool(state.samples) or state.signal not in COMPANIONS


def _counted(states: Sequence[SignalState]) -> str:
    """Return the number of signals of each quality: ``3 exact, 2 unavailable``."""
    counts = Counter(state.quality for state in states)
    return ", ".join(
        f"{counts[quality]} {quality}"
        for quality in ("exact", "estimate", "unavailable")
        if counts[quality]
    )


def _row(state: SignalState) -> tuple[str, ...]:
    signal = SIGNALS[state.signal]
    method = METHODS[state.method].description if state.method else ""
    name = f"{escape(signal.title)}<small><code>{escape(_series(signal))}</code></small>"
    return (
        name,
        escape(_now(signal, state)),
        escape("" if signal.kind == "gauge" else _amounts(signal, state.samples)),
        state.quality,
        escape(method) + why(state.note, state.fix),
    )


def _series(signal: Signal) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in signal.fixed.items())
    return f"{signal.metric}{{{labels}}}" if labels else signal.metric


def _now(signal: Signal, state: SignalState) -> str:
    """Return the current value of a gauge, or the last minute of any other signal."""
    if signal.kind == "gauge":
        return _amounts(signal, state.samples)
    return state.recent or ("no history yet" if state.samples else "")


def _amounts(signal: Signal, samples: Mapping[Labels, Value]) -> str:
    """Format samples: ``ok 120, error 3`` or ``0.62``; zeros are omitted unless all are 0."""
    shown = samples if signal.key == "prompt_class" else without_request_labels(samples)
    if len(shown) > 1 and signal.kind != "gauge":
        shown = {labels: value for labels, value in shown.items() if value}
        if not shown:
            return "0"
    return ", ".join(
        " ".join([*label_texts(labels), _amount(signal, value)])
        for labels, value in sorted(shown.items())
    )


def _amount(signal: Signal, value: Value) -> str:
    if isinstance(value, Distribution):
        return f"{value.count:,.0f} observed"
    if signal.unit == "ratio":
        return f"{value:.1%}"
    if signal.unit == "B":
        size, name = next((one for one in _PREFIXES if value >= one[0]), _PREFIXES[-1])
        return f"{value / size:.3g} {name}"
    return f"{value:,.15g}"
