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
