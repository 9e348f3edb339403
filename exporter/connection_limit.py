"""Limit the connections of an HTTP server, so that idle clients cannot exhaust open files.

At the limit, a new connection replaces one without a request yet or, if there is none, the one
with the oldest last request.  So idle connections cannot lock out other clients.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web

from exporter.log import LOG

MAX_CONNECTIONS = 64
SPARE_DESCRIPTORS = 64
"""Open files reserved for everything else."""
HEAD_SECONDS = 10.0
"""Time limit from the connection to the end of the first request head."""


def possible_connections() -> int:
    """Return the connection limit that the limit of open files permits."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(1, min(MAX_CONNECTIONS, (files - SPARE_DESCRIPTORS) // 2))


class ConnectionLimit:
    """The connections of one port, at most ``most``."""

    def __init__(self, where: str, most: int, head_seconds: float) -> None:
        self._where = where
        self._most = most
        self._head_seconds = head_seconds
        # Oldest first: connections without a request yet, with their deadlines, and the others.
        self._silent: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        self._served: dict[asyncio.Transport, None] = {}

    def opened(self, transport: asyncio.Transport) -> None:
        """Add a connection, and close another one at the limit."""
        if len(self._silent) + len(self._served) >= self._most:
            victim = next(iter(self._silent or self._served))
            LOG.warning(
                "%s: more than %d connections; closing the longest idle one",
                self._where,
                self._most,
            )
            self.closed(victim)
            victim.abort()
        loop = asyncio.get_running_loop()
        self._silent[transport] = loop.call_later(self._head_seconds, transport.abort)

    def requested(self, transport: asyncio.Transport) -> None:
        """Record that the head of a request has arrived."""
        deadline = self._silent.pop(transport, None)
        if deadline:
            deadline.cancel()
        if deadline or transport in self._served:
            self._served.pop(transport, None)
            self._served[transport] = None  # now the last in order

    def closed(self, transport: asyncio.Transport) -> None:
        """Remove a connection."""
        if deadline := self._silent.pop(transport, None):
            deadline.cancel()
        self._served.pop(transport, None)

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Call `requested` for every request."""
        if request.transport:
            self.requested(request.transport)
        return await handler(request)


class LimitedProtocol(asyncio.Protocol):
    """Wraps aiohttp's protocol, and reports its connection to a limit.

    A TLS client that ``permits`` refuses is disconnected before its first request.
    """

    def __init__(
        self,
        inner: asyncio.Protocol,
        limit: ConnectionLimit,
        permits: Callable[[ssl.SSLObject | None], bool] = lambda _: True,
    ) -> None:
        self._inner = inner
        self._limit = limit
        self._permits = permits
        self._transport: asyncio.Transport | None = None
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add the connection to the limit."""
        permitted = self._permits(transport.get_extra_info("ssl_object"))
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)
        self._limit.opened(self._transport)
        if not permitted:
            self.data_received = lambda _: None  # type: ignore[assignment,method-assign]
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the limit."""
        if self._transport:
            self._limit.closed(self._transport)
        self._inner.connection_lost(exc)
