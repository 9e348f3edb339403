"""Detect resets of connections that the event loop does not read.

An event loop stops polling a connection after its EOF, and while reading is paused.  Without this
module the reset of such a client shows at the second write to it, which may never happen.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from contextlib import suppress

_MAX_EVENTS = 256


class ResetWatcher:
    """Calls back when a connection is reset.

    The kernel always reports EPOLLERR.  So each connection is registered once, edge-triggered and
    without events, in a separate epoll instance, which the event loop polls.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[], None]] = {}

    def open(self) -> None:
        """Start, in the running loop."""
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._poll)

    def close(self) -> None:
        """Stop watching all connections."""
        if not self._epoll.closed:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()

    def watch(self, descriptor: int, call: Callable[[], None]) -> None:
        """Call ``call`` when the connection is reset, also while it is being read."""
        self._calls[descriptor] = call
        self._epoll.register(descriptor, select.EPOLLET)

    def forget(self, descriptor: int, call: Callable[[], None]) -> None:
        """Stop watching; the descriptor may be closed, and reused by another connection."""
        if self._calls.get(descriptor) == call:
            del self._calls[descriptor]
            with suppress(OSError, ValueError):  # already closed
                self._epoll.unregister(descriptor)

    def _poll(self) -> None:
        for descriptor, events in self._epoll.poll(0, _MAX_EVENTS):
            call = self._calls.get(descriptor)
            if call and events & select.EPOLLERR:
                call()
