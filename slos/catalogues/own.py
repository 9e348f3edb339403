"""Catalogue of the sidecar's own metrics."""

from __future__ import annotations

from collections.abc import Iterable

from promql.lint.catalogue import Catalogue, Metric, Unit
from slos.outcomes import OUTCOMES
from slos.own_metrics import OWN_METRICS
from slos.signals import MODEL_LABELS, PHASES, SIGNALS

PREFIXES = ("llm_", "tokenslo_")
_UNITS: dict[str, Unit] = {"s": "s", "B": "bytes", "ratio": "ratio"}
_VALUES = {"outcome": frozenset(OUTCOMES), "phase": frozenset(PHASES)}
# Active sequences include the decoding ones, input tokens the cached ones, all blocks the used.
_KINDS = {"llm_sequences": "state", "llm_kv_cache_blocks": "state", "llm_tokens_total": "direction"}


def _serving() -> Iterable[Metric]:
    families = {signal.metric: signal for signal in SIGNALS.values()}
    for name, signal in families.items():
        members = [each for each in SIGNALS.values() if each.metric == name]
        fixed = {label: {each.fixed[label] for each in members} for label in signal.fixed}
        possible = {label for each in members for label in each.possible_labels}
        labels = {*MODEL_LABELS, *possible, *fixed, *(["le"] if signal.buckets else [])}
        yield Metric(
            name,
            signal.kind,
            frozenset(labels),
            {
                **{label: frozenset(values) for label, values in fixed.items()},
                **{label: _VALUES[label] for label in signal.labels if label in _VALUES},
            },
            _KINDS.get(name, ""),
            # Every threshold of an SLO file adds a boundary, so they are unknown here.
            unit=_UNITS.get(signal.unit, ""),
            whole_boundaries="1.0" if signal.buckets else "",
        )


def _of_the_exporter() -> Iterable[Metric]:
    for name, (kind, _, labels) in OWN_METRICS.items():
        full = f"{name}_total" if kind == "counter" else name
        yield Metric(full, kind, frozenset(labels), unit="s" if name.endswith("_seconds") else "")


def own() -> Catalogue:
    """Return all metrics that the sidecar can emit."""
    metrics = {metric.name: metric for metric in (*_serving(), *_of_the_exporter())}
    return Catalogue("tokenslo", metrics, PREFIXES)
