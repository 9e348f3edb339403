"""The kernel's times of packets, in seconds of the monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Callable

QUICK = 20e-6
"""Two clocks read within so many seconds were read together; else the process was held up."""
ATTEMPTS = 3


class PacketClock:
    """Converts times of the wall clock, which is what packets are stamped with.

    The difference of the clocks is taken anew with each batch of packets, so it follows what
    becomes of the wall clock.  If that is set while a batch waits, the packets stamped before get
    times that cannot be; they are put between the batch before and now, which is off by
    the age of the batch at most.
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
        """Compare the clocks; to be called for each batch of packets, when it is there."""
        for _ in range(ATTEMPTS):
            before = self._monotonic()
            wall = self._wall()
            self._now = self._monotonic()
            if self._now - before < QUICK:
                break
        self._offset = wall - (before + self._now) / 2

    def convert(self, seconds: int, nanoseconds: int) -> float:
        """Return a packet's time; it is never before that of the packet before, nor after now."""
        time = seconds + nanoseconds * 1e-9 - self._offset
        if not self._latest <= time <= self._now:
            time = self._latest if time < self._latest else self._now
        self._latest = time
        return time
