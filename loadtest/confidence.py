"""Confidence bounds of shares."""

from __future__ import annotations

from math import ceil
from statistics import NormalDist
from typing import NamedTuple

from slos.wilson import deviations


class ShareBounds(NamedTuple):
    """Bounds of a share, each at the one-sided confidence."""

    lower: float
    upper: float


def wilson(share: float, count: float, confidence: float) -> ShareBounds:
    """Return the Wilson score bounds of a share of ``count`` independent events."""
    if count <= 0:
        return ShareBounds(0.0, 1.0)
    down, up = deviations(share * count, count, NormalDist().inv_cdf(confidence))
    return ShareBounds(max(0.0, share - down), min(1.0, share + up))


def least_count(target: float, confidence: float) -> int:
    """Return how many events, all good, prove a share of ``target`` below 1."""
    z2 = NormalDist().inv_cdf(confidence) ** 2
    return ceil(z2 * target / (1 - target) - 1e-9)
