"""Metric families with their series, shared by ``/metrics`` and OTLP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from exporter.samples import Value
from slos.own_metrics import OWN_METRICS
from slos.signals import Kind

Series = tuple[Mapping[str, str], Value]
"""Labels and value."""


class LabelSet(dict[str, str]):
    """Read-only labels of a series, cached between scrapes; ``pairs`` are sorted by name.

    Lone surrogates, which JSON allows and UTF-8 does not, are replaced.
    """

    __slots__ = ("_hash", "pairs")

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__(labels)
        if not "".join(labels.values()).isascii():
            for name, value in labels.items():
                self[name] = value.encode(errors="replace").decode()
        self.pairs = tuple(sorted(self.items()))
        self._hash = hash(self.pairs)

    def __hash__(self) -> int:  # type: ignore[override]
        return self._hash


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A metric with its series; ``name`` is the name on ``/metrics`` without ``_total``."""

    name: str
    kind: Kind
    help: str
    series: tuple[Series, ...]


def own_family(name: str, series: Iterable[tuple[Mapping[str, str], float]]) -> MetricFamily:
    """Return a family of the exporter's own metrics, with type and help of OWN_METRICS."""
    kind, text, _ = OWN_METRICS[name]
    own = [one if isinstance(one[0], LabelSet) else (LabelSet(one[0]), one[1]) for one in series]
    return MetricFamily(name, kind, text, tuple(own))
