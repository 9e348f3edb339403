"""Quantiles of exact samples."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil


def nearest_rank(q: float, ordered: Sequence[float]) -> float:
    """Return the nearest-rank quantile of samples in ascending order, of which there is one."""
    return ordered[ceil(q * len(ordered)) - 1]
