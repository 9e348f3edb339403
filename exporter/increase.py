"""The increase of a server's counters and histograms between two scrapes."""

from __future__ import annotations

from itertools import pairwise

from exporter.readings import Distribution, Value

# Summing floats may differ in the last digits from reading to reading: not a reset.
SUM_TOLERANCE = 1e-9


def since(previous: Value | None, value: Value) -> Value:
    """Return how much of a server's counter or histogram is new."""
    if isinstance(value, Distribution):
        if not isinstance(previous, Distribution) or _was_reset(previous, value):
            return value
        counts = tuple(new - old for old, new in zip(previous.counts, value.counts, strict=True))
        return Distribution(value.edges, counts, max(0.0, value.sum - previous.sum))
    if previous is None or isinstance(previous, Distribution) or value < previous:
        return value
    return value - previous


def plus(told: Value | None, added: Value) -> Value:
    """Add values; histograms of other edges begin anew."""
    if isinstance(added, Distribution):
        if not isinstance(told, Distribution) or told.edges != added.edges:
            return added
        counts = tuple(old + new for old, new in zip(told.counts, added.counts, strict=True))
        return Distribution(told.edges, counts, told.sum + added.sum)
    return added if told is None or isinstance(told, Distribution) else told + added


def _was_reset(previous: Distribution, value: Distribution) -> bool:
    """Tell whether no set of new observations leads from one to the other."""
    if previous.edges != value.edges:
        return True
    added = [new - old for old, new in zip(previous.counts, value.counts, strict=True)]
    return (
        added[0] < 0
        or any(upto < below for below, upto in pairwise(added))
        or value.sum < previous.sum - SUM_TOLERANCE * abs(previous.sum)
    )
