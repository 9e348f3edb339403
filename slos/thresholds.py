"""Thresholds of SLO files by signal, which histograms need as bucket boundaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

from promql.parse import parse
from promql.tree import selectors
from slos.events import matched_boundary
from slos.generic import WINDOW
from slos.indicators import INDICATORS, indicator_of
from slos.model import Objective, Service
from slos.names import BASE_WINDOW
from slos.signals import SIGNALS

_SIGNALS = {
    SIGNALS[each.signals[0]].metric: each.signals[0]
    for each in INDICATORS.values()
    if each.threshold == "seconds"
}
"""Signals by histogram of tokenslo."""


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
        yield from _queried(objective)
        return
    indicator = indicator_of(objective)
    if indicator.threshold == "seconds" and objective.threshold is not None:
        yield indicator.signals[0], objective.threshold
    for clause, threshold in objective.clauses.items():
        yield INDICATORS[clause].signals[0], threshold


def _queried(objective: Objective) -> Iterator[tuple[str, Decimal]]:
    for query in objective.queries.values():
        for selector in selectors(parse(query.replace(WINDOW, BASE_WINDOW))):
            metric = selector.name
            if metric in _SIGNALS and objective.threshold is not None:
                yield _SIGNALS[metric], objective.threshold
            elif (signal := _SIGNALS.get(metric.removesuffix("_bucket"))) is not None:
                for matcher in selector.matchers:
                    boundary = matched_boundary(matcher.op, str(matcher.value))
                    if matcher.label == "le" and boundary is not None:
                        yield signal, boundary
