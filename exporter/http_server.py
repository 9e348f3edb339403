"""HTTP servers of the sidecar, with limited connections and security headers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web, web_response

from exporter import connection_limit
from exporter.connection_limit import ConnectionLimit, LimitedProtocol, possible_connections
from exporter.sockets import Listen
from exporter.sockets import listen as bind

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
    app: web.Application, listen: Listen, *, setting: str = "listen", auto_decompress: bool = True
) -> tuple[str, Callable[[], Awaitable[None]]]:
    """Serve ``app``; return its URL, without a path, and a function that stops it.

    Without ``auto_decompress`` handlers get compressed request bodies.  Raises InvalidFile, naming
    the ``setting``, if ``listen`` is not available.
    """
    limit = ConnectionLimit(setting, possible_connections(), connection_limit.HEAD_SECONDS)
    app.middlewares.append(limit.middleware)
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
    servers = [
        await loop.create_server(
            lambda: LimitedProtocol(make_protocol(), limit), sock=each, backlog=BACKLOG
        )
        for each in sockets
    ]

    async def stop() -> None:
        for server in servers:
            server.close()
        await runner.cleanup()

    host, port = sockets[0].getsockname()[:2]
    return f"http://{Listen(host, port)}", stop
