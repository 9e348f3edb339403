"""Operations on asyncio's transports that the proxy needs."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from typing import cast

from exporter.sockets import RESET_ON_CLOSE

LARGE_READ = 128 * 1024
"""Bytes of a read after which libuv may read on: up to 32 times 256,000 bytes in a row."""
_UNSENT_BYTES = 0x894B  # SIOCOUTQNSD of Linux


def limit_write_buffer(transport: asyncio.Transport) -> bool:
    """Limit the write buffer to one read; return whether the transport is plain, without TLS.

    Bytes that the kernel does not take at once pause reading from the other side.  TLS transports
    of uvloop stay without a limit: with one they would always report a full buffer.
    """
    plain = transport.can_write_eof()
    if plain:
        transport.set_write_buffer_limits(0)
    return plain


def read_in_turns(
    transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, may_read: Callable[[], bool]
) -> None:
    """Pause reading until the loop's next iteration, so that it serves other connections first.

    Reading stays paused if ``may_read`` returns false then.
    """

    def resume() -> None:
        if not transport.is_closing() and may_read():
            transport.resume_reading()

    transport.pause_reading()
    loop.call_soon(resume)


def descriptor(transport: asyncio.Transport) -> int:
    """Return the file descriptor of the transport's socket."""
    return cast(int, transport.get_extra_info("socket").fileno())


def unsent(transport: asyncio.Transport) -> int:
    """Return the bytes that wait for the reader: in the transport, and on Linux in the kernel.

    The kernel sends at once what fits into the receive window, so the rest is what the reader has
    no room for.
    """
    waiting = transport.get_write_buffer_size()
    if not waiting and sys.platform == "linux":
        try:
            queued = ioctl(descriptor(transport), _UNSENT_BYTES, bytes(4))
        except (OSError, ValueError):  # already closed
            return 0
        waiting = int.from_bytes(queued, sys.byteorder)
    return waiting


def close(transport: asyncio.Transport) -> None:
    """Close with FIN; idempotent, unlike the method of asyncio's TLS transports."""
    if not transport.is_closing():
        transport.close()


def reset(transport: asyncio.Transport) -> None:
    """Close with RST."""
    with suppress(OSError, ValueError, AttributeError):  # already closed
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    transport.abort()
