"""What a proxy does with asyncio's transports beyond their own methods."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import cast

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def bound(transport: asyncio.Transport) -> bool:
    """Let a connection hold back no more than one read; return whether it is plain, without TLS.

    What the kernel does not take at once stops the reading of the other side.  uvloop's TLS would
    take such a bound for always full.
    """
    plain = transport.can_write_eof()
    if plain:
        transport.set_write_buffer_limits(0)
    return plain


def descriptor(transport: asyncio.Transport) -> int:
    """Return the number of its socket."""
    return cast(int, transport.get_extra_info("socket").fileno())


def close(transport: asyncio.Transport) -> None:
    """Close with FIN; a second call changes nothing, unlike that of asyncio's TLS transports."""
    if not transport.is_closing():
        transport.close()


def reset(transport: asyncio.Transport) -> None:
    """Close with RST."""
    with suppress(OSError, ValueError, AttributeError):  # it has just been closed
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


def reset_socket(connection: socket.socket) -> None:
    """Close a socket that no transport has, with RST."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    connection.close()
