"""Quantiles of bucketed distributions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf


def histogram_quantile(q: float, bounds: Sequence[float], counts: Sequence[float]) -> float:
    """Return a quantile, interpolated inside its bucket as PromQL's ``histogram_quantile`` does.

    ``counts[i]`` observations were at most ``bounds[i]``; both ascend, and the last bound is
    ``inf``.  Returns ``inf`` beyond the last finite bound, where PromQL returns that bound, and
    without observations.
    """
    rank = q * counts[-1]
    buckets = pairwise(zip((0.0, *bounds), (0.0, *counts), strict=True))
    for (low, before), (high, through) in buckets:
        if through >= rank and through > before:
            return inf if high == inf else low + (high - low) * (rank - before) / (through - before)
    return inf
