"""Thresholds that user-defined queries name as bucket boundaries of tokenslo's histograms."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from promql.parse import parse
from promql.tree import selectors
from slos.events import matched_boundary
from slos.generic import WINDOW
from slos.indicators import INDICATORS
from slos.model import Objective
from slos.names import BASE_WINDOW
from slos.signals import SIGNALS

_SIGNALS = {
    SIGNALS[each.signals[0]].metric: each.signals[0]
    for each in INDICATORS.values()
    if each.threshold == "seconds"
}
"""Signals by histogram of tokenslo."""


def queried_thresholds(objective: Objective) -> Iterator[tuple[str, Decimal]]:
    """Yield signals with the bucket boundaries in seconds that the queries of an objective read."""
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
