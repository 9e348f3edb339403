"""The capture tap: watches TCP connections as their packets pass, and touches none of them.

Nothing is added to the path of a request, and whatever becomes of this process, no stream notices.
Packets are stamped by the kernel, so it matters for no time when they are read.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import ENODEV
from functools import partial
from pathlib import Path
from time import monotonic

from exporter.background import Supervisor, TaskState
from exporter.log import Episodes
from exporter.taps.capture.connection_table import ConnectionTable
from exporter.taps.capture.packet_clock import PacketClock
from exporter.taps.capture.packet_filter import MOST_PORTS, packet_filter
from exporter.taps.capture.packet_ring import (
    ANY,
    BLOCK_MILLISECONDS,
    CHECKSUM_PENDING,
    CHECKSUM_VALID,
    PacketRing,
)
from exporter.taps.capture.packets import RST, SYN, Segment, is_intact, segment
from exporter.taps.loop_lag import LoopLag
from exporter.taps.tap import CaptureSpec, NewObserver, TapTraffic
from slos.errors import InvalidFile, Problem

PACKETS_AT_ONCE = 128
"""Packets after which others on the event loop have their turn: about a millisecond."""
SWEEP_SECONDS = 1.0
ALWAYS_VERIFIED = SYN | RST
"""Never part of what a device or the kernel has merged, which has no checksum of its own."""
LAG = 2 * BLOCK_MILLISECONDS / 1000
"""Seconds that a packet may wait before it is handed over, amply."""


class CaptureTap:
    """Watches the connections to the ports of servers on one interface, or on ``any``.

    ``skipped`` gets one word for each connection or packet that is left out: ``joined`` and
    ``forgotten`` (see Connections), ``fragment``, ``malformed``, ``checksum``.

    The kernel hands packets over before it verifies them, and a device may mark checksums as valid
    that it did not compare.  So checksums without that mark are verified, and always those of SYN
    and RST; what this machine sends has none yet.
    """

    def __init__(
        self, spec: CaptureSpec, new_observer: NewObserver, skipped: Callable[[str], None]
    ) -> None:
        self.spec = spec
        self._skipped = skipped
        self._connections = ConnectionTable(spec.ports, new_observer, skipped)
        self._clock = PacketClock()
        self._ring: PacketRing | None = None
        self._supervisor = Supervisor()
        self.lag = LoopLag()  # not opened: the kernel's times are never late
        self._away = False
        self._caught_up = 0.0
        self._troubles = Episodes()

    async def start(self) -> None:
        """Begin; raises InvalidFile with setting ``tap`` if it cannot be done.

        The privilege is needed for this only, and not any more once it has returned.
        """
        if len(self.spec.ports) > MOST_PORTS:
            raise self._refused(f"names more than {MOST_PORTS} ports", "name only the servers'")
        try:
            self._ring = PacketRing(self.spec.interface, packet_filter(self.spec.ports))
        except OSError as error:
            raise self._refused(*self._reason(error)) from None
        self._listen(self._ring)
        self._supervisor.start(f"sweep {self.spec}", partial(self._sweep, self._ring))

    async def drain(self, seconds: float) -> None:
        """Take no new connections, and return when the last stream has ended or time is up."""
        self._connections.accepting = False
        deadline = monotonic() + seconds
        while monotonic() < deadline:
            await asyncio.sleep(LAG)  # so that all that came before is known
            if not self._connections.live:
                return

    async def close(self) -> None:
        """End everything at once; streams under way are lost."""
        self._supervisor.cancel()
        if self._ring:
            asyncio.get_running_loop().remove_reader(self._ring.fileno())
            self._ring.close()
            self._ring = None
        self._connections.forget_all(monotonic())

    @property
    def tasks(self) -> Sequence[TaskState]:
        """The task that expires connections."""
        return self._supervisor.states

    def seen_until(self) -> float:
        """Return up to when all packets have been read."""
        return self._caught_up - LAG

    def traffic(self) -> TapTraffic:
        """Return what it has counted so far."""
        dropped = self._ring.dropped if self._ring else 0
        connections = self._connections
        return TapTraffic(
            connections.watched,
            connections.opened,
            dropped=dropped,
            unseen=connections.circumstances.unseen,
        )

    def _listen(self, ring: PacketRing) -> None:
        asyncio.get_running_loop().add_reader(ring.fileno(), self._read, ring)

    def _read(self, ring: PacketRing) -> bool:
        """Take in what has come; returns whether that was all of it."""
        clock, connections, buffer = self._clock, self._connections, ring.buffer
        left = PACKETS_AT_ONCE
        while left > 0:
            now = monotonic()
            packets, losing = ring.read(left)
            if not packets:
                self._caught_up = now
                self._look_after(ring)
                return True
            left -= len(packets)
            clock.synchronize()
            if losing:
                connections.circumstances.dropped_at = clock.convert(*packets[0][:2])
            for seconds, nanoseconds, start, end, status in packets:
                time = clock.convert(seconds, nanoseconds)
                read = segment(buffer, start, end)
                if not isinstance(read, Segment):
                    self._skipped(read or "malformed")
                elif (
                    not status & CHECKSUM_PENDING
                    and (not status & CHECKSUM_VALID or read.flags & ALWAYS_VERIFIED)
                    and not is_intact(buffer, start, read)
                ):
                    self._skipped("checksum")
                else:
                    connections.take(read, buffer[read.start : read.end], time)
        return False

    def _look_after(self, ring: PacketRing) -> None:
        """Ask what befell the interface; until that is over there is nothing to wait for."""
        failure = ring.failure()
        if failure:
            self._away = True
            self._troubles.went_wrong(str(self.spec), os.strerror(failure), monotonic())
            asyncio.get_running_loop().remove_reader(ring.fileno())

    def _try_again(self, ring: PacketRing) -> None:
        with suppress(OSError):
            ring.bind()
            if not ring.failure():
                self._away = False
                self._troubles.went_well(str(self.spec), monotonic())
                self._listen(ring)

    async def _sweep(self, ring: PacketRing) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            if self._away:
                self._try_again(ring)
            if self._read(ring):
                self._connections.sweep(monotonic() - LAG)

    def _reason(self, error: OSError) -> tuple[str, str]:
        """Return what is wrong and how to mend it."""
        if isinstance(error, PermissionError):
            return (
                "needs the capability CAP_NET_RAW",
                "run the container as root with securityContext.capabilities.add: [NET_RAW], or "
                f"run `setcap cap_net_raw+ep {Path(sys.executable).resolve()}`, or watch without "
                "privileges by --tap proxy=LISTEN=UPSTREAM",
            )
        if error.errno == ENODEV:
            names = ", ".join(name for _, name in socket.if_nameindex())
            return "is on no interface of this machine", f"choose one of {names}, {ANY}"
        return f"cannot be had: {error.strerror}", "use --tap proxy=LISTEN=UPSTREAM instead"

    def _refused(self, message: str, fix: str) -> InvalidFile:
        return InvalidFile([Problem("tokenslo exporter", 0, "tap", f"{self.spec} {message}", fix)])
