"""Detect a late event loop, and find the arrival times of the bytes that it reads late."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from time import monotonic

TICK_SECONDS = 0.01
LATE_SECONDS = 0.02
"""Largest delay of a tick; with TICK_SECONDS it bounds the error of exact times."""
_LAST_DATA_RECEIVED = struct.Struct("=52xI")
"""``tcpi_last_data_recv`` of ``struct tcp_info``: milliseconds since data last arrived."""


class LoopLag:
    """Measures the lag of the event loop with a timer, from `open` to `close`.

    Bytes that are read after ``fresh_until`` are late: the loop was blocked while they waited in
    the kernel.  This ends with the first tick on time.  Late bytes get the kernel's arrival time of
    the last of them.  ``late`` is set while an observer is fed with them, and ``late_reads`` counts
    their reads.  ``each_tick`` is called with each tick.
    """

    __slots__ = ("_due", "_each_tick", "_fresh_at", "_timer", "fresh_until", "late", "late_reads")

    def __init__(self, each_tick: Callable[[], None] = lambda: None) -> None:
        self.fresh_until = float("inf")
        self.late = False
        self.late_reads = 0
        self._each_tick = each_tick
        self._due = self._fresh_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Start the timer, in the running loop."""
        self._due = monotonic() + TICK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer:
            self._timer.cancel()

    def seen_until(self) -> float:
        """Return the time in seconds up to which all bytes have been read."""
        now = monotonic()
        return now if now <= self.fresh_until else self._fresh_at

    def observe_late(
        self, observe: Callable[[bytes, float], None], data: bytes, time: float
    ) -> None:
        """Feed an observer with late bytes, which arrived at ``time``."""
        self.late = True
        try:
            observe(data, time)
        finally:
            self.late = False

    def arrival_time(self, now: float, transport: asyncio.Transport) -> float:
        """Return the arrival time of late bytes that were read at ``now``."""
        self.late_reads += 1
        return now - _waited(transport)

    def _tick(self) -> None:
        now = monotonic()
        if now - self._due <= LATE_SECONDS:
            self._fresh_at = now
            self.fresh_until = now + TICK_SECONDS + LATE_SECONDS
        else:
            self.fresh_until = self._fresh_at
        self.open()
        self._each_tick()


def _waited(transport: asyncio.Transport) -> float:
    """Return the seconds since the last data of a TCP connection arrived."""
    try:
        connection = transport.get_extra_info("socket")
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.size)
        milliseconds: int = _LAST_DATA_RECEIVED.unpack(info)[0]
    except (OSError, ValueError, AttributeError, struct.error):  # already closed
        return 0.0
    return milliseconds / 1000
