"""Accept TLS clients with bounded handshakes and the current certificate."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any, Literal

from exporter.log import ProblemLog
from exporter.sockets import reset_socket

MAX_ACCEPTS = 64
PAUSE_SECONDS = 1.0
"""Pause of accepting after descriptors or memory ran out."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Reason = Literal["connections", "handshake", "handshake_time"]
Handshakes = Mapping["asyncio.Task[None]", None]
"""The unfinished handshakes, oldest first."""


class TlsListener:
    """Accept TLS connections on a listening socket until `close`.

    ``context`` returns the context of a new connection.  ``admit`` gets the unfinished handshakes
    and returns whether to start another one; it may cancel one for that.  ``refused`` is called
    with the reason for each client that gets no connection.  asyncio's own TLS servers report a
    connection only after its handshake, so no limit would include silent clients.
    """

    def __init__(
        self,
        listening: socket.socket,
        new_protocol: Callable[[], asyncio.BaseProtocol],
        context: Callable[[], ssl.SSLContext],
        *,
        handshake_seconds: float,
        admit: Callable[[Handshakes], bool],
        refused: Callable[[Reason], None] = lambda _: None,
    ) -> None:
        self._listening = listening
        self._new_protocol: Callable[[], Any] = new_protocol
        self._context = context
        self._handshake_seconds = handshake_seconds
        self._admit = admit
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._problem_log = ProblemLog()
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._without_transport: set[socket.socket] = set()
        self._pause: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Accept connections, in the running loop."""
        self._listening.setblocking(False)
        self._pause = None
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more connections, and cancel handshakes."""
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening.fileno())
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
                    self._problem_log.failed(what, str(error.strerror), monotonic())
                    self._loop.remove_reader(self._listening.fileno())
                    self._pause = self._loop.call_later(PAUSE_SECONDS, self.open)
                return
            self._problem_log.recovered(what, monotonic())
            self._start(client)

    def _start(self, client: socket.socket) -> None:
        if not self._admit(self._handshakes):
            self._refused("connections")
            reset_socket(client)
            return
        client.setblocking(False)
        self._without_transport.add(client)
        handshake = self._loop.create_task(self._handshake(client))
        self._handshakes[handshake] = None
        handshake.add_done_callback(partial(self._ended, client))

    def _ended(self, client: socket.socket, handshake: asyncio.Task[None]) -> None:
        del self._handshakes[handshake]
        if client in self._without_transport:  # cancelled before its first step
            self._without_transport.discard(client)
            client.close()

    async def _handshake(self, client: socket.socket) -> None:
        self._without_transport.discard(client)
        try:
            await self._loop.connect_accepted_socket(
                self._new_protocol,
                client,
                ssl=self._context(),
                ssl_handshake_timeout=self._handshake_seconds,
            )
        except ConnectionAbortedError:
            self._refused("handshake_time")
        except ssl.SSLError:
            self._refused("handshake")
        except OSError:
            pass  # the client disconnected
