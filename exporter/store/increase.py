"""The increase of a server's counters and histograms between two scrapes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import add, gt, sub

from exporter.samples import Distribution, Labels, Value

# The last digits of a sum of floats may differ between two scrapes: not a reset.
SUM_TOLERANCE = 1e-9


def increase_since(previous: Value | None, value: Value) -> Value:
    """Return the increase of a counter or histogram; a value after a reset counts in full."""
    if isinstance(value, Distribution):
        if not isinstance(previous, Distribution) or previous.boundaries != value.boundaries:
            return value
        added = tuple(map(sub, value.counts, previous.counts))
        if _was_reset(added, previous.sum, value.sum):
            return value
        return Distribution(value.boundaries, added, max(0.0, value.sum - previous.sum))
    if previous is None or isinstance(previous, Distribution) or value < previous:
        return value
    return value - previous


def add_values(total: Value | None, increase: Value) -> Value:
    """Add an increase to a total; a histogram with other bucket boundaries replaces it."""
    if isinstance(increase, Distribution):
        if not isinstance(total, Distribution) or total.boundaries != increase.boundaries:
            return increase
        counts = tuple(map(add, total.counts, increase.counts))
        return Distribution(total.boundaries, counts, total.sum + increase.sum)
    return increase if total is None or isinstance(total, Distribution) else total + increase


def continued(total: Value | None, previous: Value | None, value: Value) -> Value:
    """Return ``total`` and the increase since ``previous``: one histogram less than both steps."""
    if (
        isinstance(value, Distribution)
        and isinstance(previous, Distribution)
        and isinstance(total, Distribution)
        and previous.boundaries == value.boundaries == total.boundaries
    ):
        added = tuple(map(sub, value.counts, previous.counts))
        if not _was_reset(added, previous.sum, value.sum):
            counts = tuple(map(add, total.counts, added))
            return Distribution(
                value.boundaries, counts, total.sum + max(0.0, value.sum - previous.sum)
            )
    return add_values(total, increase_since(previous, value))


def summed(samples: Mapping[Labels, Value]) -> Value | None:
    """Return the sum of all series, None without any."""
    if len(samples) == 1:
        return next(iter(samples.values()))
    return reduce(add_values, samples.values(), None)


def _was_reset(added: tuple[float, ...], before: float, total: float) -> bool:
    """Whether no set of new observations explains these buckets and sums."""
    return (
        added[0] < 0
        or any(map(gt, added, added[1:]))
        or total < before - SUM_TOLERANCE * abs(before)
    )
