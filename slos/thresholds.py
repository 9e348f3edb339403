"""Thresholds of SLO files by signal, which histograms need as bucket boundaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

from slos.indicators import INDICATORS, indicator_of
from slos.model import Objective, Service


def thresholds(services: Iterable[Service]) -> Mapping[str, tuple[float, ...]]:
    """Return all latency thresholds in seconds, ascending, by signal.

    User-defined queries may read the same histograms.
    """
    found: dict[str, set[float]] = {}
    for service in services:
        for objective in service.objectives:
            for signal, threshold in _thresholds(objective):
                found.setdefault(signal, set()).add(float(threshold))
    return {signal: tuple(sorted(boundaries)) for signal, boundaries in found.items()}


def _thresholds(objective: Objective) -> Iterator[tuple[str, Decimal]]:
    if objective.queries:
        # A parser of PromQL takes memory that most sidecars need not have.
        from slos.queried_thresholds import queried_thresholds

        yield from queried_thresholds(objective)
        return
    indicator = indicator_of(objective)
    if indicator.threshold == "seconds" and objective.threshold is not None:
        yield indicator.signals[0], objective.threshold
    for clause, threshold in objective.clauses.items():
        yield INDICATORS[clause].signals[0], threshold
