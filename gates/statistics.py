"""Confidence bounds of shares and of their differences, over classes of prompts.

Wilson's score interval bounds a share.  Bounds of a weighted sum, and of the difference of two of
them, combine the distances between each share and its bounds (MOVER; Newcombe's method where there
is one class).  All bounds are one-sided: each holds with the probability of its ``z``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import NormalDist

from slos.wilson import deviations

_MOST = 10**12
"""Largest sample size that is searched for."""


@dataclass(frozen=True, slots=True)
class Count:
    """Bad events and all events; both may be fractions, as Prometheus extrapolates increases."""

    bad: float
    total: float


Classes = Mapping[str, Count]
"""Counts by prompt class; without prompt classes, of the one class ``""``."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The share of bad events at the mix of production, with its one-sided bounds.

    ``low`` and ``high`` are the point estimate: they differ by the weight of the classes without
    events, whose share may be anything from 0 to 1.  ``lower`` and ``upper`` are the bounds.
    """

    low: float
    high: float
    lower: float
    upper: float


def z_of(alpha: float) -> float:
    """Return the normal quantile that a one-sided bound of error probability ``alpha`` has.

    Rounded up, because it is written into generated rules.
    """
    return ceil(NormalDist().inv_cdf(1 - alpha) * 10_000) / 10_000


def bounds(arm: Classes, mix: Mapping[str, float], z: float) -> Bounds | None:
    """Return the share of an arm at the ``mix``, the weight of each class; None without events."""
    known = {name: count for name, count in arm.items() if count.total > 0 and mix.get(name, 0) > 0}
    if not known:
        return None
    low = sum(mix[name] * count.bad / count.total for name, count in known.items())
    high = low + 1 - sum(mix[name] for name in known)
    squares = [0.0, 0.0]
    for name, count in known.items():
        for side, deviation in enumerate(deviations(count.bad, count.total, z)):
            squares[side] += (mix[name] * deviation) ** 2
    return Bounds(low, high, low - sqrt(squares[0]), high + sqrt(squares[1]))


def most_worse(canary: Bounds, baseline: Bounds) -> float:
    """Return the upper bound of the canary's share minus the baseline's."""
    apart = (canary.upper - canary.high) ** 2 + (baseline.low - baseline.lower) ** 2
    return canary.high - baseline.low + sqrt(apart)


def least_worse(canary: Bounds, baseline: Bounds) -> float:
    """Return the lower bound of the canary's share minus the baseline's."""
    apart = (canary.low - canary.lower) ** 2 + (baseline.upper - baseline.high) ** 2
    return canary.low - baseline.high - sqrt(apart)


def production_mix(total: Mapping[str, float]) -> dict[str, float]:
    """Return the weight of each class from the events of production; empty without events."""
    every = sum(total.values())
    return {name: count / every for name, count in total.items() if count > 0} if every > 0 else {}


def least_canary(baseline: Count, limit: float | None, margin: float, z: float) -> int | None:
    """Return the least events of a canary that can be promoted beside these of the baseline.

    The canary is assumed to have exactly the baseline's share of bad events, which is at most
    ``limit``; the arms are assumed to have one class.  None: no number of events is enough.
    """
    share = baseline.bad / baseline.total
    distance = deviations(baseline.bad, baseline.total, z)[0]

    def enough(events: int) -> bool:
        upper = deviations(share * events, events, z)[1]
        within = limit is None or share + upper <= limit
        return within and sqrt(upper**2 + distance**2) <= margin

    return _least(enough)


def least_baseline(share: float, margin: float, z: float) -> int | None:
    """Return the least events of a baseline beside which any canary can be promoted."""
    return _least(lambda events: deviations(share * events, events, z)[0] <= margin)


def _least(enough: Callable[[int], bool]) -> int | None:
    """Return the least number that is enough, if every larger one is as well."""
    if not enough(_MOST):
        return None
    low, high = 0, _MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
