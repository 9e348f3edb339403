"""A proxy tap between raw sockets."""

from __future__ import annotations

import asyncio
import inspect
import socket
import struct
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import pytest
import uvloop

from exporter.protocol.events import CLIENT, SERVER, Direction
from exporter.taps.proxy.proxy_tap import ProxyTap
from exporter.taps.tap import ProxySpec

REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SOON = 20.0
LONG = 60.0
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


def on_loop(
    *names: str,
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run a test on these event loops, or on all; fail on unhandled errors and on a time-out."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @wraps(test)
        def run(*, loop_name: str, **arguments: Any) -> None:
            unhandled: list[dict[str, Any]] = []
            runner = asyncio.Runner(loop_factory=LOOPS[loop_name])
            runner.get_loop().set_exception_handler(lambda _, what: unhandled.append(what))
            try:
                runner.run(asyncio.wait_for(test(**arguments), LONG))
            finally:
                # A warning about what a failed test left open, made an error, would stop uvloop
                # from closing it, and then from ending.
                with warnings.catch_warnings(action="ignore"):
                    runner.close()
            assert unhandled == []

        signature = inspect.signature(test)
        name = inspect.Parameter("loop_name", inspect.Parameter.KEYWORD_ONLY)
        parameters = [*signature.parameters.values(), name]
        del run.__wrapped__  # type: ignore[attr-defined]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return pytest.mark.parametrize("loop_name", names or tuple(LOOPS))(run)

    return decorate


@dataclass(eq=False)
class LoggingObserver:
    """An observer that keeps events, bytes and times."""

    inactive: bool = False
    refusal: str = ""
    live: int = 0
    events: list[str] = field(default_factory=list)
    fed: dict[Direction, bytearray] = field(
        default_factory=lambda: {CLIENT: bytearray(), SERVER: bytearray()}
    )
    times: list[float] = field(default_factory=list)
    not_read: float = 0.0
    keep: bool = True
    on_feed: Callable[[Direction, bytes], None] = lambda direction, data: None

    def feed(self, direction: Direction, data: bytes, time: float) -> None:
        if self.keep:
            self.fed[direction] += data
        self.times.append(time)
        self.on_feed(direction, data)

    def half_closed(self, direction: Direction, time: float) -> None:
        self.events.append("client ended" if direction == CLIENT else "server ended")
        self.times.append(time)

    def aborted(self, time: float) -> None:
        self.events.append("client gone")
        self.times.append(time)

    def server_lost(self, time: float) -> None:
        self.events.append("server lost")
        self.times.append(time)

    def gap(self, direction: Direction, time: float) -> None:
        self.events.append("gap")

    def blocked(self) -> None:
        self.events.append("blocked")

    def backpressure(self, seconds: float) -> None:
        self.not_read += seconds

    def expire(self, time: float) -> None:
        pass


@dataclass(eq=False)
class ProxySetup:
    """A proxy, the socket that the server behind it listens on, and the observers so far."""

    tap: ProxyTap
    server: socket.socket
    observers: list[LoggingObserver]
    sockets: ExitStack
    skipped: list[str]

    async def client(self, send: bytes = b"", *, direct: bool = False) -> socket.socket:
        port = self.server.getsockname()[1] if direct else self.tap.port
        client = self.sockets.enter_context(await connect(port))
        if send:
            await asyncio.get_running_loop().sock_sendall(client, send)
        return client

    async def accept(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(SOON):
            accepted, _ = await loop.sock_accept(self.server)
        accepted.setblocking(False)
        return self.sockets.enter_context(accepted)

    async def pair(self, send: bytes = REQUEST) -> tuple[socket.socket, socket.socket]:
        """Connect a client that has sent bytes, which the server has read."""
        client = await self.client(send)
        server = await self.accept()
        assert await receive(server, len(send)) == send
        return client, server

    def refused(self) -> dict[str, int]:
        return dict(self.tap.traffic().refused)


@asynccontextmanager
async def proxied(
    new_observer: Callable[[], LoggingObserver] = LoggingObserver,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    **options: Any,
) -> AsyncIterator[ProxySetup]:
    """Run a proxy tap before a server's listening socket, or before another server's ``port``."""
    observers: list[LoggingObserver] = []

    def observe() -> LoggingObserver:
        observers.append(new_observer())
        return observers[-1]

    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as sockets:
        server.setblocking(False)
        spec = ProxySpec(host, 0, "127.0.0.1", port or server.getsockname()[1])
        skipped: list[str] = []
        tap = ProxyTap(spec, observe, skipped.append, **options)
        await tap.start()
        try:
            yield ProxySetup(tap, server, observers, sockets, skipped)
        finally:
            await tap.close()


async def connect(port: int, host: str = "127.0.0.1") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    client = socket.socket(family)
    client.setblocking(False)
    try:
        async with asyncio.timeout(SOON):
            await asyncio.get_running_loop().sock_connect(client, (host, port))
    except BaseException:
        client.close()
        raise
    return client


async def receive(connection: socket.socket, size: int) -> bytes:
    """Read ``size`` bytes, or up to the end."""
    loop = asyncio.get_running_loop()
    data = bytearray()
    async with asyncio.timeout(SOON):
        while len(data) < size and (more := await loop.sock_recv(connection, size - len(data))):
            data += more
    return bytes(data)


async def receive_all(connection: socket.socket) -> tuple[bytes, str]:
    """Read until the connection ends; return the bytes, and ``end`` or ``reset``."""
    loop = asyncio.get_running_loop()
    data = bytearray()
    async with asyncio.timeout(SOON):
        try:
            while more := await loop.sock_recv(connection, 65536):
                data += more
        except ConnectionResetError:
            return bytes(data), "reset"
    return bytes(data), "end"


def reset(connection: socket.socket) -> None:
    """Close with RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
