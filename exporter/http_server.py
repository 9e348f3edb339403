"""HTTP servers of the sidecar, with limited connections and security headers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

from aiohttp import web, web_response

from exporter import connection_limit
from exporter.connection_limit import ConnectionLimit, LimitedProtocol, possible_connections
from exporter.connection_listener import ConnectionListener, Handshakes
from exporter.sockets import Listen
from exporter.sockets import listen as bind
from exporter.web_config import ListenerAccess

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
SERVER = "tokenslo"
# aiohttp answers invalid HTTP itself, and would disclose its version and Python's.
web_response.SERVER_SOFTWARE = SERVER  # type: ignore[attr-defined]
SHUTDOWN_SECONDS = 0.5
KEEPALIVE_SECONDS = 75.0
"""Longer than a scrape interval of one minute, so that scrapes reuse their connection."""
BACKLOG = 128


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Add the headers of all responses; a handler of ``on_response_prepare``."""
    response.headers["Server"] = SERVER
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


async def start(
    app: web.Application,
    listen: Listen,
    access: ListenerAccess | None = None,
    *,
    setting: str = "listen",
    auto_decompress: bool = True,
) -> tuple[str, Callable[[], Awaitable[None]]]:
    """Serve ``app``; return its URL, without a path, and a function that stops it.

    ``access`` decides which requests are served, by default those to this machine's addresses.
    Without ``auto_decompress`` handlers get compressed request bodies.  Raises InvalidFile, naming
    the ``setting``, if ``listen`` is not available.
    """
    access = access or ListenerAccess()
    most, head_seconds = possible_connections(), connection_limit.HEAD_SECONDS
    limit = ConnectionLimit(setting, most, head_seconds)
    # In this order: a refused request counts among those of its connection.
    app.middlewares.insert(0, access.middleware)
    app.middlewares.insert(0, limit.middleware)
    app.on_response_prepare.append(access.add_headers)
    runner = web.AppRunner(
        app,
        access_log=None,
        keepalive_timeout=KEEPALIVE_SECONDS,
        shutdown_timeout=SHUTDOWN_SECONDS,
        auto_decompress=auto_decompress,
    )
    sockets = bind(listen.host, listen.port, setting)
    await runner.setup()
    make_protocol = cast(web.Server, runner.server)
    loop = asyncio.get_running_loop()

    def new_protocol() -> LimitedProtocol:
        return LimitedProtocol(make_protocol(), limit, access.permits_peer)

    servers: list[asyncio.Server | ConnectionListener] = []
    for each in sockets:
        if access.encrypted:
            listener = ConnectionListener(
                each,
                new_protocol,
                access.context,
                handshake_seconds=head_seconds,
                admit=partial(_replace_oldest, most),
            )
            listener.open()
            servers.append(listener)
        else:
            servers.append(await loop.create_server(new_protocol, sock=each, backlog=BACKLOG))

    async def stop() -> None:
        for server in servers:
            server.close()
        await runner.cleanup()

    host, port = sockets[0].getsockname()[:2]
    scheme = "https" if access.encrypted else "http"
    return f"{scheme}://{Listen(host, port)}", stop


def _replace_oldest(most: int, handshakes: Handshakes) -> bool:
    """Cancel the oldest handshake at the limit: silent clients cannot lock out others."""
    if len(handshakes) >= max(1, most // 2):
        next(iter(handshakes)).cancel()
    return True
