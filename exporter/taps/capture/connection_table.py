"""Which connections a passive tap reads, and from where on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from heapq import nsmallest
from math import ceil

from exporter.protocol.events import CLIENT, SERVER
from exporter.protocol.http1 import REQUEST_LINE
from exporter.protocol.http2_frames import PREFACE
from exporter.taps.capture.packets import ACK, SYN, Segment, ports, reverse
from exporter.taps.capture.reassembly import (
    DOUBT_SECONDS,
    HOLE_SECONDS,
    MASK,
    UNKNOWN,
    Circumstances,
    TcpConnection,
    TcpHalf,
)
from exporter.taps.observer_errors import ObserverErrors
from exporter.taps.tap import NewObserver

MOST_CONNECTIONS = 16_384
"""Connections that are known at a time, and again as many that are passed over."""
FORGOTTEN_AT_ONCE = 1 / 16
"""Room is made for many, lest in a flood every new connection looks for the oldest."""
IDLE_SECONDS = 3600.0
CLOSED_SECONDS = 2.0
"""How long a closed connection is known still, so that what comes late is known to be its."""


class ConnectionTable:
    """Gives segments to their connections, each of which tells an observer of its own.

    A connection is read from its opening on or, if that was not seen, from the client's next
    segment that starts like a request.  Until then it is passed over: ``skipped`` is called
    with ``joined``, once.  After its observer has gone blind it is passed over likewise.

    Bytes count once by their sequence numbers, on however many interfaces they are seen.

    An exception of an observer costs its connection only: see :mod:`exporter.taps.observer_errors`.
    """

    def __init__(
        self,
        server_ports: Collection[int],
        new_observer: NewObserver,
        skipped: Callable[[str], None],
        most: int = MOST_CONNECTIONS,
    ) -> None:
        self._ports = frozenset(server_ports)
        self._new_observer = new_observer
        self._skipped = skipped
        self._errors = ObserverErrors(skipped)
        self._most, self._in_one_go = most, ceil(most * FORGOTTEN_AT_ONCE)
        self._halves: dict[bytes, TcpHalf] = {}
        self._waiting: dict[bytes, float] = {}
        self.circumstances = Circumstances()
        self.opened = 0
        self.accepting = True

    @property
    def watched(self) -> int:
        """How many open connections are read."""
        return sum(not client.connection.closed for _, client in self._clients())

    @property
    def live(self) -> int:
        """How many requests are under way on them."""
        return sum(
            self._live(client.connection)
            for _, client in self._clients()
            if not client.connection.closed
        )

    def take(self, segment: Segment, data: bytes, time: float) -> None:
        """Take in a segment and its payload, at a time in seconds."""
        key, seq, ack, flags, window, _, _, _ = segment
        half = self._halves.get(key)
        if flags & SYN:
            self._open(segment, half, time)
            return
        if half is None:
            half = self._join(segment, data, time)
            if half is None:
                return
        try:
            half.take(seq, ack, flags, window, data, time)
        except Exception as error:
            self._isolate(half.connection, error, time)
        if half.connection.observer.inactive:
            self._pass_over(key if half.direction == CLIENT else reverse(key), time)

    def sweep(self, time: float) -> None:
        """Do what is due by ``time``; to be called every second or so."""
        for key, client in list(self._clients()):
            connection = client.connection
            seen = connection.seen
            if seen < time - (CLOSED_SECONDS if connection.closed else IDLE_SECONDS):
                self._forget(key, time)
            elif connection.closed:
                pass
            elif self._expired(connection, time):
                self._pass_over(key, time)
            elif connection.unused and connection.in_doubt(time - DOUBT_SECONDS):
                self.circumstances.unseen += 1
                self._forget(key, time)
        for key in [key for key, seen in self._waiting.items() if seen < time - IDLE_SECONDS]:
            del self._waiting[key]

    def forget_all(self, time: float) -> None:
        """Give every connection up; what is under way on them is lost."""
        for key, _ in list(self._clients()):
            self._forget(key, time)

    def _clients(self) -> Iterator[tuple[bytes, TcpHalf]]:
        return ((key, half) for key, half in self._halves.items() if half.direction == CLIENT)

    def _open(self, segment: Segment, half: TcpHalf | None, time: float) -> None:
        """Take in a SYN: the client's, or the server's answer, which tells as much."""
        first = (segment.seq + 1) & MASK
        if half and half.first in (first, UNKNOWN):
            if half.first == UNKNOWN:
                half.begin(first, time)
            return
        from_server = bool(segment.flags & ACK)
        if not self.accepting or ports(segment.key)[not from_server] not in self._ports:
            return
        if from_server:
            client = self._watch(reverse(segment.key), time)
            client.begin(segment.ack, time)
            client.peer.begin(first, time)
        else:
            self._watch(segment.key, time).begin(first, time)

    def _join(self, segment: Segment, data: bytes, time: float) -> TcpHalf | None:
        """Return the direction of a connection whose opening was not seen, if it can be read."""
        if not data or not self.accepting:
            return None
        source, destination = ports(segment.key)
        from_client = destination in self._ports and (
            source not in self._ports or destination < source
        )
        if from_client and _begins(data):
            client = self._watch(segment.key, time)
            client.begin(segment.seq, time)
            client.peer.begin(segment.ack, time)
            return client
        key = segment.key if from_client else reverse(segment.key)
        if key not in self._waiting:
            self._skipped("joined")
            if self.circumstances.dropped_at > time - IDLE_SECONDS:
                self.circumstances.unseen += 1  # its opening may be among what was dropped
        self._wait(key, time)
        return None

    def _watch(self, key: bytes, time: float) -> TcpHalf:
        """Return the client's direction of a new connection."""
        self._waiting.pop(key, None)
        if key in self._halves:
            self._forget(key, time)
        elif len(self._halves) >= 2 * self._most:
            self._make_room(time)
        connection = TcpConnection(self._new_observer(), self.circumstances)
        self._halves[key], self._halves[reverse(key)] = connection.client, connection.server
        self.opened += 1
        return connection.client

    def _pass_over(self, key: bytes, time: float) -> None:
        self._remove(key)
        self._wait(key, time)

    def _wait(self, key: bytes, time: float) -> None:
        if key not in self._waiting and len(self._waiting) >= self._most:
            for oldest in nsmallest(self._in_one_go, self._waiting, key=self._waiting.__getitem__):
                del self._waiting[oldest]
        self._waiting[key] = time

    def _make_room(self, time: float) -> None:
        """Forget those least recently seen, closed ones first."""
        oldest = nsmallest(
            self._in_one_go,
            self._clients(),
            key=lambda item: (not item[1].connection.closed, item[1].connection.seen),
        )
        for key, client in oldest:
            if not client.connection.closed:
                self._skipped("forgotten")
            self._forget(key, time)

    def _forget(self, key: bytes, time: float) -> None:
        connection = self._halves[key].connection
        try:
            connection.forget(time)
        except Exception as error:
            self._isolate(connection, error, time)
        self._remove(key)

    def _remove(self, key: bytes) -> None:
        connection = self._halves.pop(key).connection
        del self._halves[reverse(key)]
        connection.let_go()
        connection.dissolve()

    # Calls of observers outside the path of a segment.

    def _live(self, connection: TcpConnection) -> int:
        try:
            return connection.observer.live
        except Exception as error:
            self._isolate(connection, error, connection.seen)
            return 0

    def _expired(self, connection: TcpConnection, time: float) -> bool:
        """Do what is due by ``time`` on a connection; return whether its observer is blind."""
        try:
            connection.give_up_holes(time - HOLE_SECONDS)
            if connection.in_doubt(time - DOUBT_SECONDS) and connection.observer.live:
                connection.observer.gap(SERVER, time)
            connection.observer.expire(time)
        except Exception as error:
            self._isolate(connection, error, time)
        return connection.observer.inactive

    def _isolate(self, connection: TcpConnection, error: Exception, time: float) -> None:
        connection.observer = self._errors.isolate(connection.observer, error, time)


def _begins(data: bytes) -> bool:
    """Return whether a connection can be read from here on.

    That is a request of HTTP/1; HTTP/2 can be read from its preface only, because nobody can join
    its header compression later.
    """
    return bool(REQUEST_LINE.match(data)) or data.startswith(PREFACE)
