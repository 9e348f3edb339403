"""Limit requests with a token bucket."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic


class RateLimiter:
    """Admits ``burst`` requests at once, and one more every ``interval`` seconds."""

    def __init__(self, interval: float, burst: int, clock: Callable[[], float] = monotonic) -> None:
        self._interval = interval
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._updated = clock()

    def admits(self) -> bool:
        """Take one token; return False without one."""
        now = self._clock()
        earned = (now - self._updated) / self._interval
        self._tokens = min(float(self._burst), self._tokens + earned)
        self._updated = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
