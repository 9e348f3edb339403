"""Wilson score bounds of a share of independent events."""

from __future__ import annotations

from math import sqrt


def deviations(bad: float, total: float, z: float) -> tuple[float, float]:
    """Return the distances from the share ``bad / total`` down and up to its bounds.

    Each bound is one-sided and holds with the probability of the normal quantile ``z``.  Numbers of
    events may be fractions; ``total`` is above 0.
    """
    share, k = bad / total, z * z
    width = z * sqrt(max(bad - bad * share + k / 4, 0))
    shift = k * (0.5 - share)
    return (width - shift) / (total + k), (width + shift) / (total + k)
