"""Track the connections of a capture, and find where each becomes readable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from heapq import nsmallest
from math import ceil

from exporter.protocol.detection import PREFACE
from exporter.protocol.events import CLIENT, SERVER
from exporter.protocol.http1 import REQUEST_LINE
from exporter.taps.capture.packets import ACK, SYN, Segment, ports, reverse
from exporter.taps.capture.reassembly import (
    HOLE_SECONDS,
    MASK,
    SILENCE_SECONDS,
    UNKNOWN,
    CaptureState,
    TcpConnection,
    TcpHalf,
)
from exporter.taps.observer_errors import ObserverErrors
from exporter.taps.tap import NewObserver

MAX_CONNECTIONS = 16_384
"""Tracked connections at a time; the table remembers as many skipped ones."""
EVICTED_FRACTION = 1 / 16
"""Share of a full table that is evicted at a time, so that a flood does not search it each time."""
IDLE_SECONDS = 3600.0
CLOSED_SECONDS = 2.0
"""How long a closed connection stays in the table, to match late segments."""


class ConnectionTable:
    """Connections by address, each with its own observer.

    A connection is read from its SYN on or, if the capture missed that, from the client's next
    segment that starts a request.  Until then it is skipped: ``skipped`` is called once, with
    ``joined``.  It is also skipped after its observer becomes inactive.

    Sequence numbers deduplicate bytes that several interfaces show.

    An exception of an observer affects only its connection: :mod:`exporter.taps.observer_errors`.
    """

    def __init__(
        self,
        server_ports: Collection[int],
        new_observer: NewObserver,
        skipped: Callable[[str], None],
        most: int = MAX_CONNECTIONS,
    ) -> None:
        self._ports = frozenset(server_ports)
        self._new_observer = new_observer
        self._skipped = skipped
        self._errors = ObserverErrors(skipped)
        self._most, self._eviction_count = most, ceil(most * EVICTED_FRACTION)
        self._halves: dict[bytes, TcpHalf] = {}
        self._skipped_keys: dict[bytes, float] = {}
        self.capture_state = CaptureState()
        self.opened = 0
        self.accepting = True

    @property
    def watched(self) -> int:
        """The number of open connections that are read."""
        return sum(not client.connection.closed for _, client in self._clients())

    @property
    def live(self) -> int:
        """The number of requests in flight on them."""
        return sum(
            self._live(client.connection)
            for _, client in self._clients()
            if not client.connection.closed
        )

    def handle_segment(self, segment: Segment, data: bytes, time: float) -> None:
        """Handle a segment and its payload; ``time`` is in seconds."""
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
            half.handle_segment(seq, ack, flags, window, data, time)
        except Exception as error:
            self._isolate(half.connection, error, time)
        if half.connection.observer.inactive:
            self._skip(key if half.direction == CLIENT else reverse(key), time)

    def sweep(self, time: float) -> None:
        """Expire connections and holes at ``time``; call it about every second."""
        for key, client in list(self._clients()):
            connection = client.connection
            seen = connection.seen
            if seen < time - (CLOSED_SECONDS if connection.closed else IDLE_SECONDS):
                self._forget(key, time)
            elif connection.closed:
                pass
            elif self._expired(connection, time):
                self._skip(key, time)
            elif connection.unused and connection.may_miss_packets(time - SILENCE_SECONDS):
                self.capture_state.unseen += 1
                self._forget(key, time)
        for key in [key for key, seen in self._skipped_keys.items() if seen < time - IDLE_SECONDS]:
            del self._skipped_keys[key]

    def forget_all(self, time: float) -> None:
        """Stop tracking all connections; requests in flight are lost."""
        for key, _ in list(self._clients()):
            self._forget(key, time)

    def _clients(self) -> Iterator[tuple[bytes, TcpHalf]]:
        return ((key, half) for key, half in self._halves.items() if half.direction == CLIENT)

    def _open(self, segment: Segment, half: TcpHalf | None, time: float) -> None:
        """Handle a SYN of the client or a SYN-ACK of the server, which suffices too."""
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
        """Return the direction of a readable connection whose SYN was not captured."""
        if not data or not self.accepting:
            return None
        source, destination = ports(segment.key)
        from_client = destination in self._ports and (
            source not in self._ports or destination < source
        )
        if from_client and _starts_request(data):
            client = self._watch(segment.key, time)
            client.begin(segment.seq, time)
            client.peer.begin(segment.ack, time)
            return client
        key = segment.key if from_client else reverse(segment.key)
        if key not in self._skipped_keys:
            self._skipped("joined")
            if self.capture_state.dropped_at > time - IDLE_SECONDS:
                self.capture_state.unseen += 1  # the dropped packets may include its SYN
        self._remember_skipped(key, time)
        return None

    def _watch(self, key: bytes, time: float) -> TcpHalf:
        """Return the client's direction of a new connection."""
        self._skipped_keys.pop(key, None)
        if key in self._halves:
            self._forget(key, time)
        elif len(self._halves) >= 2 * self._most:
            self._evict(time)
        connection = TcpConnection(self._new_observer(), self.capture_state)
        self._halves[key], self._halves[reverse(key)] = connection.client, connection.server
        self.opened += 1
        return connection.client

    def _skip(self, key: bytes, time: float) -> None:
        self._remove(key)
        self._remember_skipped(key, time)

    def _remember_skipped(self, key: bytes, time: float) -> None:
        if key not in self._skipped_keys and len(self._skipped_keys) >= self._most:
            for oldest in nsmallest(
                self._eviction_count, self._skipped_keys, key=self._skipped_keys.__getitem__
            ):
                del self._skipped_keys[oldest]
        self._skipped_keys[key] = time

    def _evict(self, time: float) -> None:
        """Evict the least recently seen connections, closed ones first."""
        oldest = nsmallest(
            self._eviction_count,
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
        connection.discard()
        connection.break_cycle()

    # Calls of observers outside the path of a segment.

    def _live(self, connection: TcpConnection) -> int:
        try:
            return connection.observer.live
        except Exception as error:
            self._isolate(connection, error, connection.seen)
            return 0

    def _expired(self, connection: TcpConnection, time: float) -> bool:
        """Expire holes and requests at ``time``; return whether the observer is inactive."""
        try:
            connection.skip_holes(time - HOLE_SECONDS)
            if connection.may_miss_packets(time - SILENCE_SECONDS) and connection.observer.live:
                connection.observer.gap(SERVER, time)
            connection.observer.expire(time)
        except Exception as error:
            self._isolate(connection, error, time)
        return connection.observer.inactive

    def _isolate(self, connection: TcpConnection, error: Exception, time: float) -> None:
        connection.observer = self._errors.isolate(connection.observer, error, time)


def _starts_request(data: bytes) -> bool:
    """Return whether a connection is readable from these bytes on.

    HTTP/1 is readable from any request.  HTTP/2 is readable only from its preface, because its
    header compression has state.
    """
    return bool(REQUEST_LINE.match(data)) or data.startswith(PREFACE)
