"""Every metric and every method, as a page for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from exporter.methods import METHODS
from slos.signals import MODEL_LABELS, OWN_METRICS, SIGNALS, Signal

_INTRODUCTION = """\
# Signals and metrics

What the sidecar serves on `/metrics`, and how it is obtained. `tokenslo signals` prints this page.

Every serving metric carries the labels `model` and `version`. Units are seconds, bytes and ratios
from 0 to 1. A signal that cannot be had has no series: `tokenslo_signal_info` says
`quality="unavailable"`, and the status page says why and what would bring it.

Counters and histograms are the sidecar's own: they start at 0 when it starts and only add what came
in since, so neither a model's reload nor a change of method is ever counted twice.
"""

_METHODS = """\
One method at a time gives a signal of a model: the one with the lowest rank of those that answer.
Ranks: 10 the bytes on the wire, 20 the engine or server per request, 30 the engine's own metrics,
35 a sample of requests, 40 derived from something else. An *estimate* is near the truth in the way
its note says; *exact* means measured, not derived.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    return "\n".join(
        (
            _INTRODUCTION,
            "## Serving metrics\n",
            _table(("signal", "metric", "type", "labels", "what it is"), map(_signal, _signals())),
            "## The sidecar's own metrics\n",
            _table(("metric", "type", "labels", "what it is"), _own()),
            "## Methods\n",
            _METHODS,
            _table(("method", "rank", "quality", "what it is", "to keep in mind"), _methods()),
        )
    )


def _signals() -> Iterable[Signal]:
    return SIGNALS.values()


def _signal(signal: Signal) -> Sequence[str]:
    fixed = (f'`{label}="{value}"`' for label, value in signal.fixed.items())
    labels = ", ".join((*fixed, *(f"`{label}`" for label in signal.labels)))
    return f"`{signal.key}`", f"`{signal.metric}`", signal.kind, labels, signal.help


def _own() -> Iterable[Sequence[str]]:
    for name, (kind, text, labels) in OWN_METRICS.items():
        series = f"{name}_total" if kind == "counter" else name
        shown = (f"`{label}`" for label in labels if label not in MODEL_LABELS)
        model = ("model, version",) if set(MODEL_LABELS) <= set(labels) else ()
        yield f"`{series}`", kind, ", ".join((*model, *shown)), text


def _methods() -> Iterable[Sequence[str]]:
    ranked = sorted(METHODS.items(), key=lambda item: (item[1].rank, item[0]))
    for name, method in ranked:
        yield f"`{name}`", str(method.rank), method.quality, method.description, method.note


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
