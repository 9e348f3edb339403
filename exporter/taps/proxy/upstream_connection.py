"""The proxy's connection to the server behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Protocol, cast

from exporter.protocol.events import SERVER, Direction
from exporter.sockets import tune
from exporter.taps.loop_lag import LoopLag
from exporter.taps.proxy.observation_queue import QUEUED_BYTES, ObservationQueue
from exporter.taps.proxy.transports import LARGE_READ, descriptor, limit_write_buffer


class ClientSide(Protocol):
    """The client's side of a connection, which gets the events of the server's side."""

    lag: LoopLag
    queue: ObservationQueue
    last: float
    awaiting_response: bool

    def server_connected(self, server: UpstreamConnection) -> None:
        """Start to forward on the new connection to the server."""
        ...

    def server_full(self, full: bool) -> None:
        """Pause the client while the server reads more slowly than the client writes."""
        ...

    def server_read_much(self, server: UpstreamConnection) -> None:
        """Let other connections be served before the next read from the server."""
        ...

    def server_ended(self, server: UpstreamConnection) -> None:
        """Handle a FIN of the server."""
        ...

    def server_lost(self, server: UpstreamConnection, exc: Exception | None) -> None:
        """Handle the end of the connection to the server; an exception is a reset."""
        ...

    def observer_failed(self, error: Exception) -> None:
        """Replace a failed observer."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """The server's side; ``respond`` and ``feed`` are set by the client's side."""

    __slots__ = (
        "_connection",
        "descriptor",
        "feed",
        "full",
        "lag",
        "plain",
        "queue",
        "respond",
        "transport",
        "write",
    )

    respond: Callable[[bytes], None]
    descriptor: int
    plain: bool
    feed: Callable[[Direction, bytes, float], None]
    transport: asyncio.Transport
    write: Callable[[bytes], None]

    def __init__(self, connection: ClientSide) -> None:
        self._connection = connection
        self.full = False
        self.lag = connection.lag
        self.queue = connection.queue

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the connection to the client's side."""
        self.transport = cast(asyncio.Transport, transport)
        self.descriptor = descriptor(self.transport)
        self.write = self.transport.write
        self.plain = limit_write_buffer(self.transport)
        tune(self.transport.get_extra_info("socket"))
        self._connection.server_connected(self)

    def data_received(self, data: bytes) -> None:
        """Forward bytes of a response; the observer gets them later, with their arrival time."""
        # Loading a slot and calling it in two steps is faster: this is the path of each token.
        now, respond = monotonic(), self.respond
        respond(data)
        if now < self.lag.due and len(data) <= QUEUED_BYTES:
            self.queue.add(self, data, now)
        else:
            self._observe_or_queue(data, now)

    def _observe_or_queue(self, data: bytes, now: float) -> None:
        lag = self.lag
        if now >= lag.due:
            lag.request_tick()
        if len(data) <= QUEUED_BYTES and now <= lag.fresh_until:
            self.queue.add(self, data, now)
            return
        self.queue.flush()
        if now <= lag.fresh_until:
            self.observe(data, now)
        else:
            arrived = max(self._connection.last, lag.arrival_time(now, self.transport))
            lag.observe_late(self.observe, data, arrived)
        if len(data) >= LARGE_READ:
            self._connection.server_read_much(self)

    def observe(self, data: bytes, time: float) -> None:
        """Feed the observer with bytes that arrived at ``time``; it is replaced if it fails."""
        connection, feed = self._connection, self.feed
        try:
            feed(SERVER, data, time)
            connection.last = time
        except Exception as error:
            connection.observer_failed(error)
        connection.awaiting_response = False

    def eof_received(self) -> bool:
        """Handle a FIN."""
        self._connection.server_ended(self)
        return self.plain

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection; an exception is a reset."""
        self._connection.server_lost(self, exc)

    def pause_writing(self) -> None:
        """Handle a full socket buffer."""
        self.full = True
        self._connection.server_full(full=True)

    def resume_writing(self) -> None:
        """Handle a drained socket buffer."""
        self.full = False
        self._connection.server_full(full=False)
