"""Accept TLS clients of the proxy, with bounded handshakes and the current certificate."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from functools import partial
from time import monotonic

from exporter.taps.proxy.connection import MAX_REFUSED_CLIENTS, ClientConnection
from exporter.taps.proxy.context import ProxyContext
from exporter.taps.proxy.transports import reset_socket

MAX_ACCEPTS = 64
PAUSE_SECONDS = 1.0
"""Pause of accepting after descriptors or memory ran out."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class TlsListener:
    """Accept TLS connections on a listening socket until `close`.

    ``context`` returns the context of a new connection.  asyncio's own TLS servers report a
    connection only after its handshake, so no limit would include silent clients.
    """

    def __init__(
        self, listening: socket.socket, shared: ProxyContext, context: Callable[[], ssl.SSLContext]
    ) -> None:
        self._listening = listening
        self._shared = shared
        self._context = context
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Accept connections, in the running loop."""
        self._listening.setblocking(False)
        self._pause = None
        self._shared.loop.add_reader(self._listening.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more connections, and cancel handshakes."""
        if self._listening.fileno() >= 0:
            self._shared.loop.remove_reader(self._listening.fileno())
            self._listening.close()
        if self._pause:
            self._pause.cancel()
        for handshake in self._handshakes:
            handshake.cancel()

    def _accept(self) -> None:
        what = "accepting connections"
        for _ in range(MAX_ACCEPTS):
            try:
                client, _ = self._listening.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._shared.problem_log.failed(what, str(error.strerror), monotonic())
                    self._shared.loop.remove_reader(self._listening.fileno())
                    self._pause = self._shared.loop.call_later(PAUSE_SECONDS, self.open)
                return
            self._shared.problem_log.recovered(what, monotonic())
            self._admit(client)

    def _admit(self, client: socket.socket) -> None:
        shared = self._shared
        tracked = len(shared.connections) + len(self._handshakes)
        if tracked >= shared.limits.connections + MAX_REFUSED_CLIENTS:
            shared.refused["connections"] += 1
            reset_socket(client)
            return
        client.setblocking(False)
        handshake = shared.loop.create_task(self._handshake(client))
        self._handshakes.add(handshake)
        handshake.add_done_callback(self._handshakes.discard)

    async def _handshake(self, client: socket.socket) -> None:
        shared = self._shared
        try:
            await shared.loop.connect_accepted_socket(
                partial(ClientConnection, shared),
                client,
                ssl=self._context(),
                ssl_handshake_timeout=shared.limits.head_seconds,
            )
        except ConnectionAbortedError:
            shared.refused["handshake_time"] += 1
        except ssl.SSLError:
            shared.refused["handshake"] += 1
        except OSError:
            pass  # the client disconnected
