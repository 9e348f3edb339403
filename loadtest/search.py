"""Search for the highest rate that keeps every objective, without I/O."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

_HALVINGS = 6
"""Halvings of a first rate that is too high, before the search gives up."""


@dataclass(frozen=True, slots=True)
class FoundRate:
    """The highest rate that kept every objective, and the lowest above it that did not.

    ``kept`` is None if no rate did, ``missed`` if the highest allowed rate did.
    """

    kept: float | None
    missed: float | None


def rate_search(
    first: float, highest: float, resolution: float
) -> Generator[float, bool, FoundRate]:
    """Yield rates to measure, and receive whether each kept every objective.

    Rates double from ``first`` up to ``highest``, then bisection narrows the range until the rate
    that missed is at most the share ``resolution`` above the one that kept.
    """
    rate, kept, missed = min(first, highest), None, None
    while missed is None:
        if not (yield rate):
            missed = rate
        elif rate >= highest:
            return FoundRate(rate, None)
        else:
            kept, rate = rate, min(2 * rate, highest)
    for _ in range(_HALVINGS):
        if kept is not None:
            break
        if (yield missed / 2):
            kept = missed / 2
        else:
            missed /= 2
    while kept is not None and missed > kept * (1 + resolution):
        middle = (kept + missed) / 2
        if (yield middle):
            kept = middle
        else:
            missed = middle
    return FoundRate(kept, missed)
