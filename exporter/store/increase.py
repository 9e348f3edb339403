"""The increase of a server's counters and histograms between two scrapes."""

from __future__ import annotations

from operator import add, gt, sub

from exporter.samples import Distribution, Value

# Summing floats may differ in the last digits from reading to reading: not a reset.
SUM_TOLERANCE = 1e-9


def since(previous: Value | None, value: Value) -> Value:
    """Return how much of a server's counter or histogram is new."""
    if isinstance(value, Distribution):
        if not isinstance(previous, Distribution) or previous.edges != value.edges:
            return value
        added = tuple(map(sub, value.counts, previous.counts))
        if _was_reset(added, previous.sum, value.sum):
            return value
        return Distribution(value.edges, added, max(0.0, value.sum - previous.sum))
    if previous is None or isinstance(previous, Distribution) or value < previous:
        return value
    return value - previous


def plus(told: Value | None, added: Value) -> Value:
    """Add values; histograms of other edges begin anew."""
    if isinstance(added, Distribution):
        if not isinstance(told, Distribution) or told.edges != added.edges:
            return added
        counts = tuple(map(add, told.counts, added.counts))
        return Distribution(told.edges, counts, told.sum + added.sum)
    return added if told is None or isinstance(told, Distribution) else told + added


def _was_reset(added: tuple[float, ...], before: float, total: float) -> bool:
    """Tell whether no set of new observations explains these buckets and sums."""
    return (
        added[0] < 0
        or any(map(gt, added, added[1:]))
        or total < before - SUM_TOLERANCE * abs(before)
    )
