"""Detect a late event loop, and find the arrival times of the bytes that it reads late."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from time import monotonic

TICK_SECONDS = 0.02
"""Time after a tick until the timer causes the next one."""
READ_TICK_SECONDS = 0.008
"""Time after a tick until the next read causes one, at less cost than a wake-up by the timer."""
LATE_SECONDS = 0.03
"""Largest time between ticks on time; it bounds the error of exact times."""
_LAST_DATA_RECEIVED = struct.Struct("=52xI")
"""``tcpi_last_data_recv`` of ``struct tcp_info``: milliseconds since data last arrived."""


class LoopLag:
    """Measures the lag of the event loop by ticks, from `open` to `close`.

    A tick is a callback before the loop polls: bytes that are read later arrived after it.  Reads
    from ``due`` on call `request_tick`; without reads a timer causes the ticks.  ``due`` is at most
    ``fresh_until``.

    Bytes that are read after ``fresh_until`` are late: the loop was blocked while they waited in
    the kernel.  This ends with the first tick on time.  Late bytes get the kernel's arrival time of
    the last of them.  ``late`` is set while an observer is fed with them, and ``late_reads`` counts
    their reads.  ``each_tick`` is called with each tick.
    """

    __slots__ = (
        "_each_tick",
        "_fresh_at",
        "_loop",
        "_requested",
        "_ticked",
        "_timer",
        "due",
        "fresh_until",
        "late",
        "late_reads",
    )

    def __init__(self, each_tick: Callable[[], None] = lambda: None) -> None:
        self.due = self.fresh_until = float("inf")
        self.late = False
        self.late_reads = 0
        self._each_tick = each_tick
        self._ticked = self._fresh_at = 0.0
        self._requested = False
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.Handle | None = None

    def open(self) -> None:
        """Start the ticks, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._ticked = monotonic()
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    def close(self) -> None:
        """Stop the ticks."""
        self.due = 0.0
        self._requested = True
        if self._timer:
            self._timer.cancel()

    def request_tick(self) -> None:
        """Tick before the next poll, instead of by the timer."""
        self.due = self.fresh_until
        if self._timer and not self._requested:
            self._requested = True
            self._timer.cancel()
            self._timer = self._loop.call_soon(self._tick)

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
        if now - self._ticked <= LATE_SECONDS:
            self._fresh_at = now
            self.fresh_until = now + LATE_SECONDS
            self.due = now + READ_TICK_SECONDS
        else:
            self.due = self.fresh_until = self._fresh_at
        self._ticked = now
        self._requested = False
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
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
