"""The capture tap: feed observers from captured packets, without touching the connections.

The tap is not in the path of a request, so its failure affects no stream.  The kernel timestamps
packets, so reading them late does not change any time.
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
from exporter.log import ProblemLog
from exporter.taps.capture.connection_table import ConnectionTable
from exporter.taps.capture.packet_clock import PacketClock
from exporter.taps.capture.packet_filter import MAX_PORTS, packet_filter
from exporter.taps.capture.packet_ring import (
    ANY,
    BLOCK_MILLISECONDS,
    CHECKSUM_PENDING,
    CHECKSUM_VALID,
    PacketRing,
)
from exporter.taps.capture.packets import RST, SYN, Segment, is_intact, parse_segment
from exporter.taps.loop_lag import LoopLag
from exporter.taps.tap import CaptureSpec, NewObserver, TapTraffic
from slos.errors import InvalidFile, Problem

MAX_PACKETS_PER_TURN = 128
"""Packets per turn of the event loop: about a millisecond."""
SWEEP_SECONDS = 1.0
ALWAYS_VERIFIED = SYN | RST
"""Flags of segments that offloading never merges; merged segments have no valid checksum."""
LAG = 2 * BLOCK_MILLISECONDS / 1000
"""Upper bound in seconds of a packet's wait in the ring."""


class CaptureTap:
    """Captures the connections to the ports of servers on one interface, or on ``any``.

    ``skipped`` gets the reason for each skipped connection or packet: ``joined`` and ``forgotten``
    (see ConnectionTable), ``fragment``, ``malformed``, ``checksum``.

    The kernel hands packets over before it verifies them, and a device may mark checksums as valid
    without verifying them.  So the tap verifies checksums without that mark, and always those of
    SYN and RST.  Packets that this machine sends have no checksum yet.
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
        self.lag = LoopLag()  # never opened: kernel timestamps are never late
        self._down = False
        self._read_until = 0.0
        self._problem_log = ProblemLog()

    async def start(self) -> None:
        """Start capturing; raises InvalidFile with setting ``tap`` if that fails.

        Only this method needs the privilege.
        """
        if len(self.spec.ports) > MAX_PORTS:
            raise self._refused(f"names more than {MAX_PORTS} ports", "name only the servers'")
        try:
            self._ring = PacketRing(self.spec.interface, packet_filter(self.spec.ports))
        except OSError as error:
            raise self._refused(*self._reason(error)) from None
        self._listen(self._ring)
        self._supervisor.start(f"sweep {self.spec}", partial(self._sweep, self._ring))

    async def drain(self, seconds: float) -> None:
        """Track no new connections; return after the last stream ends or after ``seconds``."""
        self._connections.accepting = False
        deadline = monotonic() + seconds
        while monotonic() < deadline:
            await asyncio.sleep(LAG)  # until earlier packets have been read
            if not self._connections.live:
                return

    async def close(self) -> None:
        """Stop capturing; streams in flight are lost."""
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

    def flush(self) -> None:
        """Do nothing: observers get packets as they are read."""

    def seen_until(self) -> float:
        """Return the time up to which all packets have been read."""
        return self._read_until - LAG

    def traffic(self) -> TapTraffic:
        """Return the counters."""
        dropped = self._ring.dropped if self._ring else 0
        connections = self._connections
        return TapTraffic(
            connections.watched,
            connections.opened,
            dropped=dropped,
            unseen=connections.capture_state.unseen,
        )

    def _listen(self, ring: PacketRing) -> None:
        asyncio.get_running_loop().add_reader(ring.fileno(), self._read, ring)

    def _read(self, ring: PacketRing) -> bool:
        """Process pending packets; return whether none remain."""
        clock, connections, buffer = self._clock, self._connections, ring.buffer
        budget = MAX_PACKETS_PER_TURN
        while budget > 0:
            now = monotonic()
            packets, losing = ring.read(budget)
            if not packets:
                self._read_until = now
                if budget == MAX_PACKETS_PER_TURN:  # woken without packets
                    self._check_interface(ring)
                return True
            budget -= len(packets)
            clock.synchronize()
            if losing:
                connections.capture_state.dropped_at = clock.convert(*packets[0][:2])
            for seconds, nanoseconds, start, end, status in packets:
                time = clock.convert(seconds, nanoseconds)
                read = parse_segment(buffer, start, end)
                if not isinstance(read, Segment):
                    self._skipped(read or "malformed")
                elif (
                    not status & CHECKSUM_PENDING
                    and (not status & CHECKSUM_VALID or read.flags & ALWAYS_VERIFIED)
                    and not is_intact(buffer, start, read)
                ):
                    self._skipped("checksum")
                else:
                    connections.handle_segment(read, buffer[read.start : read.end], time)
        return False

    def _check_interface(self, ring: PacketRing) -> None:
        """Stop reading while the interface is down; `_sweep` retries."""
        failure = ring.failure()
        if failure:
            self._down = True
            self._problem_log.failed(str(self.spec), os.strerror(failure), monotonic())
            asyncio.get_running_loop().remove_reader(ring.fileno())

    def _rebind(self, ring: PacketRing) -> None:
        with suppress(OSError):
            ring.bind()
            if not ring.failure():
                self._down = False
                self._problem_log.recovered(str(self.spec), monotonic())
                self._listen(ring)

    async def _sweep(self, ring: PacketRing) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            if self._down:
                self._rebind(ring)
            if self._read(ring):
                self._connections.sweep(monotonic() - LAG)

    def _reason(self, error: OSError) -> tuple[str, str]:
        """Return the problem and its fix."""
        if isinstance(error, PermissionError):
            return (
                "needs the capability CAP_NET_RAW",
                "run the container as root with securityContext.capabilities.add: [NET_RAW], or "
                f"run `setcap cap_net_raw+ep {Path(sys.executable).resolve()}`, or use a tap "
                "without privileges: --tap proxy=LISTEN=UPSTREAM",
            )
        if error.errno == ENODEV:
            names = ", ".join(name for _, name in socket.if_nameindex())
            return "is on no interface of this machine", f"choose one of {names}, {ANY}"
        return f"is not available: {error.strerror}", "use --tap proxy=LISTEN=UPSTREAM instead"

    def _refused(self, message: str, fix: str) -> InvalidFile:
        return InvalidFile([Problem("tokenslo exporter", 0, "tap", f"{self.spec} {message}", fix)])
