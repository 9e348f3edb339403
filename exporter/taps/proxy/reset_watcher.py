"""Notices a reset on a connection that nobody reads from.

An event loop stops looking at a connection once it has read its end, or while reading is paused.
A client that has closed for good and answers to data with RST would be noticed at the second
write to it, which may never come.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from contextlib import suppress

_AT_ONCE = 256


class ResetWatcher:
    """Calls back when a connection breaks.

    The kernel reports errors (EPOLLERR) whether or not anybody asks, so each connection is put
    once into an epoll of its own, asked for nothing and edge-triggered, which the loop reads.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[], None]] = {}

    def open(self) -> None:
        """Begin, in the running loop."""
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._look)

    def close(self) -> None:
        """End."""
        if not self._epoll.closed:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()

    def watch(self, descriptor: int, call: Callable[[], None]) -> None:
        """Call ``call`` once when the connection breaks; it may do so while it is being read."""
        self._calls[descriptor] = call
        self._epoll.register(descriptor, select.EPOLLET)

    def forget(self, descriptor: int, call: Callable[[], None]) -> None:
        """Stop watching, also when the descriptor has been closed and may be another's by now."""
        if self._calls.get(descriptor) == call:
            del self._calls[descriptor]
            with suppress(OSError, ValueError):  # closed itself
                self._epoll.unregister(descriptor)

    def _look(self) -> None:
        for descriptor, events in self._epoll.poll(0, _AT_ONCE):
            call = self._calls.get(descriptor)
            if call and events & select.EPOLLERR:
                call()
