"""Convert the kernel's packet timestamps to the monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_READ_SECONDS = 20e-6
"""Longest time to read both clocks; if it takes longer, the process was preempted."""
ATTEMPTS = 3


class PacketClock:
    """Converts wall-clock timestamps of packets.

    The offset between the clocks is measured for each batch of packets, so it follows adjustments
    of the wall clock.  If the wall clock is set while a batch waits, the batch's times are clamped
    between the previous batch and now; their error is at most the age of the batch.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._offset = 0.0
        self._latest = float("-inf")
        self._now = 0.0

    def synchronize(self) -> None:
        """Measure the offset of the clocks; call it after each batch of packets arrives."""
        for _ in range(ATTEMPTS):
            before = self._monotonic()
            wall = self._wall()
            self._now = self._monotonic()
            if self._now - before < MAX_READ_SECONDS:
                break
        self._offset = wall - (before + self._now) / 2

    def convert(self, seconds: int, nanoseconds: int) -> float:
        """Return a packet's time, clamped between the previous packet's time and now."""
        time = seconds + nanoseconds * 1e-9 - self._offset
        if not self._latest <= time <= self._now:
            time = self._latest if time < self._latest else self._now
        self._latest = time
        return time
