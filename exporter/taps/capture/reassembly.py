"""One TCP connection from its segments: each direction's bytes in order, once, at their time.

A byte's time is when it and all before it had been seen: nobody can read it earlier.  So bytes
behind a hole that is filled later take the time of what fills it.
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
MOST_AHEAD = 1 << 30
"""No window is larger: what is further ahead, or further behind, is not of this connection."""
CLOSING = FIN | RST

MOST_PIECES = 256
"""Segments that are held behind holes, in one direction."""
MOST_BYTES = 1 << 20
"""Bytes that are held behind holes, in one direction."""
MOST_BYTES_HELD = 8 << 20
"""Bytes that are held behind holes in all connections together."""
OVERHEAD = 256
"""Bytes that a held segment takes beside its payload, roughly."""
HOLE_SECONDS = 3.0
"""Time in which TCP has sent again what was lost on its way, some times over."""
DOUBT_SECONDS = 5.0
"""How long a connection may be silent after dropped packets before its streams count as lossy."""


@dataclass(slots=True)
class Circumstances:
    """What the connections of a tap share.

    ``held`` is how many bytes they hold together.  ``dropped_at`` is when the kernel last dropped
    packets, or the first after them came: what is missing since then will not come again.
    ``unseen`` counts requests of which not even the beginning was seen, because of drops.
    """

    held: int = 0
    dropped_at: float = float("-inf")
    unseen: int = 0


class BufferedSegment(NamedTuple):
    """A segment that came before its turn."""

    seq: int
    data: bytes
    fin: bool
    time: float


class TcpHalf:
    """One direction of a connection.

    ``first`` and ``expected`` are the sequence numbers of its first and its next byte, and ``seen``
    is when there last was nothing missing before that.
    """

    __slots__ = (
        "circumstances",
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
        self, connection: TcpConnection, direction: Direction, circumstances: Circumstances
    ) -> None:
        self.connection = connection
        self.direction: Direction = direction
        self.circumstances = circumstances
        self.first = self.expected = UNKNOWN
        self.seen = float("-inf")
        self.finished = False
        self.held: list[BufferedSegment] = []
        self.held_bytes = 0

    def begin(self, seq: int, time: float) -> None:
        """Take in the sequence number of the first byte to come."""
        self.first = self.expected = seq
        self.seen = time

    def take(self, seq: int, ack: int, flags: int, window: int, data: bytes, time: float) -> None:
        """Take in a segment of this direction, except one with SYN."""
        connection, peer = self.connection, self.peer
        if (
            seq == self.expected
            and ack == peer.expected
            and connection.calm
            and window
            and data
            and not flags & CLOSING
        ):
            self.seen = time
            self.expected = (seq + len(data)) & MASK
            connection.observer.feed(self.direction, data, time)
        elif not connection.closed:
            self._take(seq, ack, flags, window, data, time)
            connection.calm = connection.is_calm()

    def _take(self, seq: int, ack: int, flags: int, window: int, data: bytes, time: float) -> None:
        connection = self.connection
        if flags & RST:
            self._reset(seq, ack, flags, time)
            return
        if flags & ACK:
            self.peer._acknowledged(ack, time)
        if self.expected == UNKNOWN:
            self.begin(seq, time)
        if self.direction == CLIENT:
            connection.announced(window, time)
        self._arrived(seq, data, bool(flags & FIN), time)
        if not self.held:
            self.seen = time

    def _reset(self, seq: int, ack: int, flags: int, time: float) -> None:
        """Take in a RST by the rule of RFC 5961: only its exact sequence number ends a connection.

        To any other in the window the receiver sends a challenge, and a sender that is genuine
        repeats the RST with the number that was asked for.
        """
        connection = self.connection
        if self._is_exact(seq, ack, flags):
            if flags & ACK:
                self.peer._acknowledged(ack, time)
            connection.reset(self.direction, time)
        elif (
            self.expected != UNKNOWN
            and self.seen < self.circumstances.dropped_at
            and (seq - self.expected) & MASK < MOST_AHEAD
        ):
            # Which number is exact was among the packets that the kernel dropped.
            connection.forget(time)

    def _is_exact(self, seq: int, ack: int, flags: int) -> bool:
        if self.expected == UNKNOWN:
            # Nothing has come from this side yet; RFC 9293 asks for an answer to the SYN.
            return bool(flags & ACK) and ack == self.peer.expected
        if self.held and seq == _end(self.held[-1]):
            return True  # Linux takes the end of what it has beyond a hole for exact as well
        ahead = (seq - self.expected) & MASK
        return ahead == 0 or (self.finished and ahead == 1)

    def _acknowledged(self, ack: int, time: float) -> None:
        """Take in that the other side has everything before ``ack``, whether it was seen or not."""
        if self.expected == UNKNOWN:
            self.begin(ack, time)
        while 0 < (ack - self.expected) & MASK < MOST_AHEAD and not self.finished:
            if not self.held:
                self._lost(ack, time)
            elif (ack - self.held[0].seq) & MASK < MOST_AHEAD:
                self.give_up_hole()
            else:
                return

    def _arrived(self, seq: int, data: bytes, fin: bool, time: float) -> None:
        if self.finished or not (data or fin):
            return
        ahead = (seq - self.expected) & MASK
        if ahead == 0:
            self._deliver(data, fin, time)
            self._drain(time)
        elif ahead < MOST_AHEAD:
            if self.seen < self.circumstances.dropped_at and not self.held:
                self._lost(seq, time)
                self._deliver(data, fin, time)
            else:
                self._hold(BufferedSegment(seq, data, fin, time))
        elif (behind := MASK + 1 - ahead) < len(data) + fin:
            self._deliver(data[behind:], fin, time)
            self._drain(time)

    def _deliver(self, data: bytes, fin: bool, time: float) -> None:
        """Tell of the next bytes."""
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

    def _hold(self, piece: BufferedSegment) -> None:
        """Keep a segment until its turn comes; what repeats one that is held already is not kept.

        Beyond the bounds the first hole is given up for lost.
        """
        expected, circumstances = self.expected, self.circumstances
        for held in self.held:
            if held.seq == piece.seq and len(held.data) + held.fin >= len(piece.data) + piece.fin:
                return
        insort(self.held, piece, key=lambda held: (held.seq - expected) & MASK)
        self.held_bytes += OVERHEAD + len(piece.data)
        circumstances.held += OVERHEAD + len(piece.data)
        while self.held and (
            len(self.held) > MOST_PIECES
            or self.held_bytes > MOST_BYTES
            or circumstances.held > MOST_BYTES_HELD
        ):
            self.give_up_hole()

    def _drain(self, time: float) -> None:
        """Tell of what is held up to the next hole; none of it happened before ``time``."""
        while self.held:
            seq, data, fin, came = self.held[0]
            behind = (self.expected - seq) & MASK
            if behind >= MOST_AHEAD:
                return
            del self.held[0]
            self.held_bytes -= OVERHEAD + len(data)
            self.circumstances.held -= OVERHEAD + len(data)
            time = max(time, came)
            if behind < len(data) + fin and not self.finished:
                self._deliver(data[behind:], fin, time)

    def give_up_hole(self) -> None:
        """Count the first hole as lost, and go on behind it."""
        time = max(self.held[0].time, self.seen, self.peer.seen)
        self._lost(self.held[0].seq, time)
        self._drain(time)

    def _lost(self, seq: int, time: float) -> None:
        dropped = self.seen < self.circumstances.dropped_at
        if dropped and self.direction == CLIENT and not self.connection.observer.live:
            self.circumstances.unseen += 1
        self.expected, self.seen = seq, time
        self.connection.observer.gap(self.direction, time)

    def forget_held(self) -> None:
        """Let go of everything that is held."""
        self.circumstances.held -= self.held_bytes
        self.held_bytes = 0
        self.held.clear()


def _end(piece: BufferedSegment) -> int:
    return (piece.seq + len(piece.data) + piece.fin) & MASK


class TcpConnection:
    """Both directions of a TCP connection, telling ``observer`` what they carry.

    ``calm`` is whether all is as it mostly is, so that most need not be looked at.
    """

    __slots__ = (
        "blocked_since",
        "calm",
        "circumstances",
        "client",
        "closed",
        "observer",
        "server",
    )

    def __init__(self, observer: Observer, circumstances: Circumstances) -> None:
        self.observer = observer
        self.circumstances = circumstances
        self.client = TcpHalf(self, CLIENT, circumstances)
        self.server = TcpHalf(self, SERVER, circumstances)
        self.client.peer, self.server.peer = self.server, self.client
        self.calm = True
        self.closed = False
        self.blocked_since: float | None = None

    def is_calm(self) -> bool:
        """Return whether both sides still send, no bytes are missing, and the client reads."""
        return (
            not (self.client.held or self.server.held)
            and not (self.client.finished or self.server.finished)
            and self.blocked_since is None
            and not self.closed
        )

    @property
    def seen(self) -> float:
        """When something of it was last seen."""
        return max(self.client.seen, self.server.seen)

    def announced(self, window: int, time: float) -> None:
        """Take in how much more the client has room for: what counts is nothing, or something."""
        if window:
            self.unblocked(time)
        elif self.blocked_since is None:
            self.blocked_since = time
            self.observer.blocked()

    def unblocked(self, time: float) -> None:
        """Take in that the client has room again, or that it never will.

        The server sending on says so too: no acknowledgement is seen that only opens the window.
        """
        if self.blocked_since is not None:
            self.observer.backpressure(time - self.blocked_since)
            self.blocked_since = None

    def finished(self, half: TcpHalf, time: float) -> None:
        """Take in that a side has sent all that it will send."""
        self.observer.half_closed(half.direction, time)
        if half.peer.finished:
            self._close(time)

    def reset(self, direction: Direction, time: float) -> None:
        """Take in that a side has broken the connection off."""
        for half in (self.client, self.server):
            while half.held:
                half.give_up_hole()
        self.unblocked(time)
        if self.closed:
            return
        if direction == CLIENT:
            self.observer.aborted(time)
        else:
            self.observer.server_lost(time)
        self._close(time)

    def in_doubt(self, before: float) -> bool:
        """Return whether packets of it may have been dropped and it was silent since ``before``.

        A segment that continues where the last one ended would show that none are missing.
        """
        return self.seen < self.circumstances.dropped_at and self.seen < before

    @property
    def unused(self) -> bool:
        """Whether the client has sent nothing that was seen."""
        return self.client.expected == self.client.first

    def give_up_holes(self, before: float) -> None:
        """Count holes as lost behind which something waits since ``before``."""
        for half in (self.client, self.server):
            while half.held and min(piece.time for piece in half.held) < before:
                half.give_up_hole()

    def forget(self, time: float) -> None:
        """Stop tracking the connection; requests in flight on it are lost.

        An idle connection loses nothing, so it reports no gap: at close, the FIN of a finished
        connection may still be in a block that the kernel has not handed over.
        """
        if not self.closed:
            if self.observer.live:
                self.observer.gap(SERVER, time)
            self._close(time)

    def let_go(self) -> None:
        """Close it without a word, and hold nothing any more."""
        self.client.forget_held()
        self.server.forget_held()
        self.closed = True

    def dissolve(self) -> None:
        """Let go of each other, so that nobody has to look for what is not needed any more."""
        for half in (self.client, self.server):
            del half.peer, half.connection

    def _close(self, time: float) -> None:
        self.unblocked(time)
        self.let_go()
