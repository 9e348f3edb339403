"""Listening sockets, their errors, and options of TCP connections."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from slos.errors import InvalidFile, Problem

BACKLOG = 1024
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""The value of SO_LINGER that closes a connection with RST."""
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
_REASONS = {
    errno.EADDRINUSE: ("is in use by another program", "stop it, or choose another port"),
    errno.EADDRNOTAVAIL: ("is no address of this machine", "choose one of its addresses"),
    errno.EACCES: ("needs privileges", "choose a port from 1024"),
}


@dataclass(frozen=True, slots=True)
class Listen:
    """Address of a server; port 0 is any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listen(host: str, port: int, setting: str) -> list[socket.socket]:
    """Listen on all addresses of ``host``, all interfaces if empty; port 0 is any free port.

    All sockets have the same port.  Raises InvalidFile, naming the ``setting``.
    """
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    sockets: list[socket.socket] = []
    try:
        for family, address in _addresses(host, port):
            chosen = sockets[0].getsockname()[1] if sockets else port
            dual = not host and family == socket.AF_INET6
            sockets.append(
                socket.create_server(
                    (address, chosen), family=family, backlog=BACKLOG, dualstack_ipv6=dual
                )
            )
            tune(sockets[-1])  # accepted connections inherit it
    except OSError as error:
        for each in sockets:
            each.close()
        raise InvalidFile([cannot_listen(setting, where, error)]) from None
    return sockets


def tune(connection: socket.socket) -> None:
    """Disable Nagle's algorithm, and detect a dead peer by keepalives within two minutes."""
    for level, option, value in _OPTIONS:
        connection.setsockopt(level, option, value)


def reset_socket(connection: socket.socket) -> None:
    """Close a socket without a transport, with RST."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    connection.close()


def _addresses(host: str, port: int) -> Iterator[tuple[socket.AddressFamily, str]]:
    if host:
        flags = socket.AI_PASSIVE
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        yield from dict.fromkeys((family, str(address[0])) for family, *_, address in found)
    elif socket.has_dualstack_ipv6():
        yield socket.AF_INET6, ""
    else:
        yield socket.AF_INET, ""


def cannot_listen(setting: str, where: str, error: OSError) -> Problem:
    """Return the problem of an address on which listening failed."""
    if isinstance(error, socket.gaierror):
        reason = ("is not a host that can be resolved", "choose an address such as 127.0.0.1")
    else:
        unknown = (f"is not available: {error.strerror}", "choose another address")
        reason = _REASONS.get(error.errno or 0, unknown)
    return Problem("tokenslo exporter", 0, setting, f"{where} {reason[0]}", reason[1])
