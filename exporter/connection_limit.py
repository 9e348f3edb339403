"""Limits on the connections of an HTTP server of the sidecar, which clients cannot exhaust.

Open files are shared by everything that the sidecar does.  So a port holds a bounded number of
connections, and a newcomer takes the place of one that has sent no request yet or, if there is
none, of the one whose last request is oldest.  Whoever holds connections open without requests
shuts nobody else out.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web

from exporter.log import LOG

MOST_CONNECTIONS = 64
SPARE_DESCRIPTORS = 64
"""Open files kept for everything else."""
HEAD_SECONDS = 10.0
"""From the connection to the end of its first request's head."""


def possible_connections() -> int:
    """Return how many connections fit the limit of open files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(1, min(MOST_CONNECTIONS, (files - SPARE_DESCRIPTORS) // 2))


class ConnectionLimit:
    """The connections of one port, at most ``most``."""

    def __init__(self, where: str, most: int, head_seconds: float) -> None:
        self._where = where
        self._most = most
        self._head_seconds = head_seconds
        # In order of age: those without a request yet with their deadlines, and the others.
        self._silent: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        self._served: dict[asyncio.Transport, None] = {}

    def opened(self, transport: asyncio.Transport) -> None:
        """Admit a new connection, and close another one if there are too many."""
        if len(self._silent) + len(self._served) >= self._most:
            victim = next(iter(self._silent or self._served))
            LOG.warning("%s: more than %d connections; closing the idlest", self._where, self._most)
            self.closed(victim)
            victim.abort()
        loop = asyncio.get_running_loop()
        self._silent[transport] = loop.call_later(self._head_seconds, transport.abort)

    def requested(self, transport: asyncio.Transport) -> None:
        """Note that the head of a request has arrived."""
        deadline = self._silent.pop(transport, None)
        if deadline:
            deadline.cancel()
        if deadline or transport in self._served:
            self._served.pop(transport, None)
            self._served[transport] = None  # now the last in order

    def closed(self, transport: asyncio.Transport) -> None:
        """Forget a connection."""
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
    """Passes everything to the protocol of aiohttp, and tells a limit of its connection."""

    def __init__(self, inner: asyncio.Protocol, limit: ConnectionLimit) -> None:
        self._inner = inner
        self._limit = limit
        self._transport: asyncio.Transport | None = None
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection."""
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)
        self._limit.opened(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no more."""
        if self._transport:
            self._limit.closed(self._transport)
        self._inner.connection_lost(exc)
