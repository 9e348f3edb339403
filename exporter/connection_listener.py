"""Accept clients, with bounded TLS handshakes, also without free file descriptors."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Literal

from exporter.log import ProblemLog
from exporter.sockets import reset_socket

MAX_ACCEPTS = 16
"""Clients that are accepted at once.  Until they are admitted or refused they hold descriptors that
no limit of connections includes, and a burst must leave some for connections to the server."""
PAUSE_SECONDS = 1.0
"""Pause of accepting after memory, or even the reserved descriptor, ran out."""
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_EXHAUSTED = (*_NO_DESCRIPTORS, errno.ENOBUFS, errno.ENOMEM)
_WHAT = "accepting connections"

Reason = Literal["connections", "descriptors", "handshake", "handshake_time"]
Handshakes = Mapping["asyncio.Task[None]", None]
"""The unfinished handshakes, oldest first."""


class ConnectionListener:
    """Accept connections on a listening socket until `close`.

    ``context`` returns the TLS context of a new connection, or None for one without TLS.  ``admit``
    gets the unfinished handshakes and returns whether to start another one; it may cancel one for
    that.  ``refused`` is called with the reason for each client that gets no connection.

    asyncio's own servers report a TLS connection only after its handshake, so no limit would
    include silent clients.  Without free descriptors they close new connections uncounted, or leave
    them waiting.  This listener keeps a descriptor in reserve: it frees it to accept such a client,
    counts the client as refused, and resets it.
    """

    def __init__(
        self,
        listening: socket.socket,
        new_protocol: Callable[[], asyncio.BaseProtocol],
        context: Callable[[], ssl.SSLContext | None],
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
        self._reserve: int | None = None

    def open(self) -> None:
        """Accept connections, in the running loop."""
        self._listening.setblocking(False)
        self._pause = None
        self._keep_reserve()
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more connections, and cancel handshakes."""
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()
        if self._pause:
            self._pause.cancel()
        self._free_reserve()
        for handshake in self._handshakes:
            handshake.cancel()

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTS):
            try:
                client, _ = self._listening.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._problem_log.failed(_WHAT, str(error.strerror), monotonic())
                    if error.errno in _NO_DESCRIPTORS and self._refuse_one():
                        continue
                    self._loop.remove_reader(self._listening.fileno())
                    self._pause = self._loop.call_later(PAUSE_SECONDS, self.open)
                return
            self._problem_log.recovered(_WHAT, monotonic())
            self._start(client)

    def _refuse_one(self) -> bool:
        """Refuse a client by the reserved descriptor; return False if there is none."""
        if not self._free_reserve():
            return False
        with suppress(OSError):
            client, _ = self._listening.accept()
            self._refused("descriptors")
            reset_socket(client)
        return self._keep_reserve()

    def _free_reserve(self) -> bool:
        if self._reserve is None:
            return False
        os.close(self._reserve)
        self._reserve = None
        return True

    def _keep_reserve(self) -> bool:
        if self._reserve is None:
            with suppress(OSError):
                self._reserve = os.open("/", os.O_RDONLY)
        return self._reserve is not None

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
        context = self._context()
        try:
            await self._loop.connect_accepted_socket(
                self._new_protocol,
                client,
                ssl=context,
                ssl_handshake_timeout=self._handshake_seconds if context else None,
            )
        except ConnectionAbortedError:
            self._refused("handshake_time")
        except ssl.SSLError:
            self._refused("handshake")
        except OSError:
            pass  # the client disconnected
