"""Reassemble a TCP connection: each direction's bytes in order, once, with their times.

A byte's time is when it and all bytes before it had arrived: no receiver can read it earlier.  So
bytes after a hole get the time of the segment that fills it.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import NamedTuple

from exporter.protocol.events import CLIENT, SERVER, Direction, Observer
from exporter.taps.capture.packets import ACK, FIN, RST

MASK = 0xFFFFFFFF
"""Sequence numbers are modulo 2 ** 32."""
UNKNOWN = -1
MAX_WINDOW = 1 << 30
"""The largest TCP window; a segment further ahead or behind belongs to another connection."""
CLOSING = FIN | RST

MAX_HELD_SEGMENTS = 256
"""Segments held behind holes, per direction."""
MAX_HELD_BYTES = 1 << 20
"""Bytes held behind holes, per direction."""
MAX_TOTAL_HELD_BYTES = 8 << 20
"""Bytes held behind holes, in all connections together."""
OVERHEAD = 256
"""Approximate memory in bytes of a held segment without its payload."""
HOLE_SECONDS = 3.0
"""Time after which TCP has retransmitted a lost segment several times."""
SILENCE_SECONDS = 5.0
"""How long a connection may be silent after dropped packets before its streams count as lossy."""


@dataclass(slots=True)
class CaptureState:
    """State that all connections of a capture share.

    ``held`` counts the bytes that they hold together.  ``dropped_at`` is the time of the last
    packets that the kernel dropped, or of the first packet after them: their bytes do not arrive
    later.  ``unseen`` counts requests whose beginning was dropped.
    """

    held: int = 0
    dropped_at: float = float("-inf")
    unseen: int = 0


class BufferedSegment(NamedTuple):
    """A segment that arrived out of order."""

    seq: int
    data: bytes
    fin: bool
    time: float


class TcpHalf:
    """One direction of a connection.

    ``first`` and ``expected`` are the sequence numbers of its first and its next byte.  ``seen`` is
    the last time without a hole before ``expected``.
    """

    __slots__ = (
        "capture_state",
        "connection",
        "direction",
        "expected",
        "finished",
        "first",
        "held",
        "held_bytes",
        "peer",
        "seen",
    )
    peer: TcpHalf

    def __init__(
        self, connection: TcpConnection, direction: Direction, capture_state: CaptureState
    ) -> None:
        self.connection = connection
        self.direction: Direction = direction
        self.capture_state = capture_state
        self.first = self.expected = UNKNOWN
        self.seen = float("-inf")
        self.finished = False
        self.held: list[BufferedSegment] = []
        self.held_bytes = 0

    def begin(self, seq: int, time: float) -> None:
        """Set the sequence number of the first byte."""
        self.first = self.expected = seq
        self.seen = time

    def handle_segment(
        self, seq: int, ack: int, flags: int, window: int, data: bytes, time: float
    ) -> None:
        """Handle a segment of this direction without SYN."""
        connection, peer = self.connection, self.peer
        if (
            seq == self.expected
            and ack == peer.expected
            and connection.fast_path
            and window
            and data
            and not flags & CLOSING
        ):
            self.seen = time
            self.expected = (seq + len(data)) & MASK
            connection.observer.feed(self.direction, data, time)
        elif not connection.closed:
            self._handle_segment(seq, ack, flags, window, data, time)
            connection.fast_path = connection.allows_fast_path()

    def _handle_segment(
        self, seq: int, ack: int, flags: int, window: int, data: bytes, time: float
    ) -> None:
        connection = self.connection
        if flags & RST:
            self._reset(seq, ack, flags, time)
            return
        if flags & ACK:
            self.peer._handle_ack(ack, time)
        if self.expected == UNKNOWN:
            self.begin(seq, time)
        if self.direction == CLIENT:
            connection.window_announced(window, time)
        self._handle_data(seq, data, bool(flags & FIN), time)
        if not self.held:
            self.seen = time

    def _reset(self, seq: int, ack: int, flags: int, time: float) -> None:
        """Handle a RST by RFC 5961: only the exact sequence number ends a connection.

        The receiver answers any other RST in the window with a challenge ACK, and a genuine sender
        repeats the RST with the exact number.
        """
        connection = self.connection
        if self._is_exact(seq, ack, flags):
            if flags & ACK:
                self.peer._handle_ack(ack, time)
            connection.reset(self.direction, time)
        elif (
            self.expected != UNKNOWN
            and self.seen < self.capture_state.dropped_at
            and (seq - self.expected) & MASK < MAX_WINDOW
        ):
            # The dropped packets may have moved the exact number.
            connection.forget(time)

    def _is_exact(self, seq: int, ack: int, flags: int) -> bool:
        if self.expected == UNKNOWN:
            # No segment of this side yet; RFC 9293 requires that the RST acknowledges the SYN.
            return bool(flags & ACK) and ack == self.peer.expected
        if self.held and seq == _end(self.held[-1]):
            return True  # Linux also accepts the end of the data after a hole
        ahead = (seq - self.expected) & MASK
        return ahead == 0 or (self.finished and ahead == 1)

    def _handle_ack(self, ack: int, time: float) -> None:
        """Handle an ACK: the other side has all bytes before ``ack``, captured or not."""
        if self.expected == UNKNOWN:
            self.begin(ack, time)
        while 0 < (ack - self.expected) & MASK < MAX_WINDOW and not self.finished:
            if not self.held:
                self._record_loss(ack, time)
            elif (ack - self.held[0].seq) & MASK < MAX_WINDOW:
                self.skip_hole()
            else:
                return

    def _handle_data(self, seq: int, data: bytes, fin: bool, time: float) -> None:
        if self.finished or not (data or fin):
            return
        ahead = (seq - self.expected) & MASK
        if ahead == 0:
            self._deliver(data, fin, time)
            self._deliver_held(time)
        elif ahead < MAX_WINDOW:
            if self.seen < self.capture_state.dropped_at and not self.held:
                self._record_loss(seq, time)
                self._deliver(data, fin, time)
            else:
                self._hold(BufferedSegment(seq, data, fin, time))
        elif (behind := MASK + 1 - ahead) < len(data) + fin:
            self._deliver(data[behind:], fin, time)
            self._deliver_held(time)

    def _deliver(self, data: bytes, fin: bool, time: float) -> None:
        """Feed the next bytes to the observer."""
        connection = self.connection
        self.seen = time
        if data:
            self.expected = (self.expected + len(data)) & MASK
            if self.direction == SERVER:
                connection.unblocked(time)
            connection.observer.feed(self.direction, data, time)
        if fin:
            self.finished = True
            connection.finished(self, time)

    def _hold(self, arrived: BufferedSegment) -> None:
        """Hold an out-of-order segment, unless it repeats a held one.

        Above the limits, count the first hole as lost.
        """
        expected, capture_state = self.expected, self.capture_state
        for held in self.held:
            if (
                held.seq == arrived.seq
                and len(held.data) + held.fin >= len(arrived.data) + arrived.fin
            ):
                return
        insort(self.held, arrived, key=lambda held: (held.seq - expected) & MASK)
        self.held_bytes += OVERHEAD + len(arrived.data)
        capture_state.held += OVERHEAD + len(arrived.data)
        while self.held and (
            len(self.held) > MAX_HELD_SEGMENTS
            or self.held_bytes > MAX_HELD_BYTES
            or capture_state.held > MAX_TOTAL_HELD_BYTES
        ):
            self.skip_hole()

    def _deliver_held(self, time: float) -> None:
        """Deliver held segments up to the next hole, with times of at least ``time``."""
        while self.held:
            seq, data, fin, came = self.held[0]
            behind = (self.expected - seq) & MASK
            if behind >= MAX_WINDOW:
                return
            del self.held[0]
            self.held_bytes -= OVERHEAD + len(data)
            self.capture_state.held -= OVERHEAD + len(data)
            time = max(time, came)
            if behind < len(data) + fin and not self.finished:
                self._deliver(data[behind:], fin, time)

    def skip_hole(self) -> None:
        """Count the first hole as lost, and continue after it."""
        time = max(self.held[0].time, self.seen, self.peer.seen)
        self._record_loss(self.held[0].seq, time)
        self._deliver_held(time)

    def _record_loss(self, seq: int, time: float) -> None:
        dropped = self.seen < self.capture_state.dropped_at
        if dropped and self.direction == CLIENT and not self.connection.observer.live:
            self.capture_state.unseen += 1
        self.expected, self.seen = seq, time
        self.connection.observer.gap(self.direction, time)

    def discard_held(self) -> None:
        """Discard all held segments."""
        self.capture_state.held -= self.held_bytes
        self.held_bytes = 0
        self.held.clear()


def _end(segment: BufferedSegment) -> int:
    return (segment.seq + len(segment.data) + segment.fin) & MASK


class TcpConnection:
    """Both directions of a TCP connection, which feed one ``observer``.

    ``fast_path``: no holes, no FIN, and an open window, so segments need no further checks.
    """

    __slots__ = (
        "blocked_since",
        "capture_state",
        "client",
        "closed",
        "fast_path",
        "observer",
        "server",
    )

    def __init__(self, observer: Observer, capture_state: CaptureState) -> None:
        self.observer = observer
        self.capture_state = capture_state
        self.client = TcpHalf(self, CLIENT, capture_state)
        self.server = TcpHalf(self, SERVER, capture_state)
        self.client.peer, self.server.peer = self.server, self.client
        self.fast_path = True
        self.closed = False
        self.blocked_since: float | None = None

    def allows_fast_path(self) -> bool:
        """Return whether both sides are open, there are no holes, and the client reads."""
        return (
            not (self.client.held or self.server.held)
            and not (self.client.finished or self.server.finished)
            and self.blocked_since is None
            and not self.closed
        )

    @property
    def seen(self) -> float:
        """The time of the last segment."""
        return max(self.client.seen, self.server.seen)

    def window_announced(self, window: int, time: float) -> None:
        """Handle the client's window: 0 starts back-pressure, any other value ends it."""
        if window:
            self.unblocked(time)
        elif self.blocked_since is None:
            self.blocked_since = time
            self.observer.blocked()

    def unblocked(self, time: float) -> None:
        """End the client's back-pressure.

        Data of the server ends it too, as the filter drops ACKs that only open the window.
        """
        if self.blocked_since is not None:
            self.observer.backpressure(time - self.blocked_since)
            self.blocked_since = None

    def finished(self, half: TcpHalf, time: float) -> None:
        """Handle a FIN of one side."""
        self.observer.half_closed(half.direction, time)
        if half.peer.finished:
            self._close(time)

    def reset(self, direction: Direction, time: float) -> None:
        """Handle a RST of one side."""
        for half in (self.client, self.server):
            while half.held:
                half.skip_hole()
        self.unblocked(time)
        if self.closed:
            return
        if direction == CLIENT:
            self.observer.aborted(time)
        else:
            self.observer.server_lost(time)
        self._close(time)

    def may_miss_packets(self, before: float) -> bool:
        """Return whether the kernel may have dropped its packets and it is silent since ``before``.

        A later segment that continues the sequence would prove that none are missing.
        """
        return self.seen < self.capture_state.dropped_at and self.seen < before

    @property
    def unused(self) -> bool:
        """Whether the capture has no bytes of the client."""
        return self.client.expected == self.client.first

    def skip_holes(self, before: float) -> None:
        """Count holes as lost whose held segments arrived before ``before``."""
        for half in (self.client, self.server):
            while half.held and min(segment.time for segment in half.held) < before:
                half.skip_hole()

    def forget(self, time: float) -> None:
        """Stop tracking the connection; requests in flight on it are lost.

        An idle connection loses nothing, so it reports no gap: at close, the FIN of a finished
        connection may still be in a block that the kernel has not handed over.
        """
        if not self.closed:
            if self.observer.live:
                self.observer.gap(SERVER, time)
            self._close(time)

    def discard(self) -> None:
        """Close the connection without events, and discard held segments."""
        self.client.discard_held()
        self.server.discard_held()
        self.closed = True

    def break_cycle(self) -> None:
        """Break the reference cycle, so that no garbage collection is needed."""
        for half in (self.client, self.server):
            del half.peer, half.connection

    def _close(self, time: float) -> None:
        self.unblocked(time)
        self.discard()
