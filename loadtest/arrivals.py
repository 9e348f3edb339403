"""Arrivals of an open loop."""

from __future__ import annotations

import random
from collections.abc import Iterator


def poisson_arrivals(rate: float, seconds: float, seed: int | str) -> Iterator[float]:
    """Yield the times of a Poisson process of ``rate`` per second, from 0 to ``seconds``."""
    pick = random.Random(f"arrivals/{seed}")
    at = pick.expovariate(rate)
    while at < seconds:
        yield at
        at += pick.expovariate(rate)
