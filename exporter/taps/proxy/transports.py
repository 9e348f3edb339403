"""Operations on asyncio's transports that the proxy needs."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import cast

from exporter.sockets import RESET_ON_CLOSE


def limit_write_buffer(transport: asyncio.Transport) -> bool:
    """Limit the write buffer to one read; return whether the transport is plain, without TLS.

    Bytes that the kernel does not take at once pause reading from the other side.  TLS transports
    of uvloop stay without a limit: with one they would always report a full buffer.
    """
    plain = transport.can_write_eof()
    if plain:
        transport.set_write_buffer_limits(0)
    return plain


def descriptor(transport: asyncio.Transport) -> int:
    """Return the file descriptor of the transport's socket."""
    return cast(int, transport.get_extra_info("socket").fileno())


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
