"""The thresholds of SLO files by signal: edges that histograms need to answer exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slos.indicators import INDICATORS, indicator_of
from slos.model import Service


def thresholds(services: Iterable[Service]) -> Mapping[str, tuple[float, ...]]:
    """Return every latency threshold in seconds, ascending, by the signal it is about."""
    found: dict[str, set[float]] = {}
    for service in services:
        for objective in service.objectives:
            indicator = indicator_of(objective)
            if indicator.threshold == "seconds" and objective.threshold is not None:
                found.setdefault(indicator.signals[0], set()).add(float(objective.threshold))
            for clause, threshold in objective.clauses.items():
                found.setdefault(INDICATORS[clause].signals[0], set()).add(float(threshold))
    return {signal: tuple(sorted(edges)) for signal, edges in found.items()}
