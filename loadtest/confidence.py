"""Confidence bounds of shares."""

from __future__ import annotations

from math import ceil, sqrt
from statistics import NormalDist
from typing import NamedTuple


class ShareBounds(NamedTuple):
    """Bounds of a share, each at the one-sided confidence."""

    lower: float
    upper: float


def wilson(share: float, count: float, confidence: float) -> ShareBounds:
    """Return the Wilson score bounds of a share of ``count`` independent events."""
    if count <= 0:
        return ShareBounds(0.0, 1.0)
    z2 = NormalDist().inv_cdf(confidence) ** 2
    middle = share + z2 / (2 * count)
    spread = sqrt(z2 * (share * (1 - share) / count + z2 / (4 * count * count)))
    scale = 1 + z2 / count
    return ShareBounds(max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def least_count(target: float, confidence: float) -> int:
    """Return how many events, all good, prove a share of ``target`` below 1."""
    z2 = NormalDist().inv_cdf(confidence) ** 2
    return ceil(z2 * target / (1 - target) - 1e-9)
