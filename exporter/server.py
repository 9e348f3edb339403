"""The sidecar's one port: metrics, health, readiness, and a status page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from aiohttp import web, web_response

from exporter import connection_limit
from exporter.collector import Exposition, expose
from exporter.config import Listen
from exporter.connection_limit import ConnectionLimit, LimitedProtocol, possible_connections
from exporter.families import Family
from exporter.listening import listen as bind
from exporter.readiness import Readiness
from exporter.status import (
    CONTENT_SECURITY_POLICY,
    Status,
    readiness_json,
    status_html,
    status_json,
)
from exporter.view import View

T = TypeVar("T")

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
EXPLANATIONS = {
    404: "Nothing is here. There are /, /metrics, /healthz and /readyz.",
    405: "Only GET and HEAD are allowed.",
}
SERVER = "tokenslo"
# Answers to what is not HTTP are aiohttp's own; they would name its version and Python's.
web_response.SERVER_SOFTWARE = SERVER  # type: ignore[attr-defined]
SHUTDOWN_SECONDS = 0.5
KEEPALIVE_SECONDS = 75.0
"""Longer than the usual scrape interval of a minute, so that scrapes keep their connection."""
BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Facts:
    """The data behind the answers: ``status`` is called in a thread, all else on the event loop.

    ``view_in_words`` includes the last minute, which only the status page shows.  ``more`` are the
    families of ``/metrics`` that do not come from a view.
    """

    version: str
    view: Callable[[], View]
    view_in_words: Callable[[], View]
    readiness: Callable[[View], Readiness]
    status: Callable[[View], Status]
    more: Callable[[View], Iterable[Family]] = lambda _: ()


class Renderer:
    """Renders in a thread of its own, so that a large scrape does not block the event loop.

    Concurrent requests of one kind share one rendering.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "render")
        self._running: dict[object, asyncio.Future[Any]] = {}

    async def render(self, kind: object, prepare: Callable[[], Callable[[], T]]) -> T:
        """Return the result of the function that ``prepare`` returns.

        ``prepare`` is called only if no rendering of this ``kind`` is running.
        """
        running = self._running.get(kind)
        if running is None:
            running = asyncio.get_running_loop().run_in_executor(self._thread, prepare())
            self._running[kind] = running
            running.add_done_callback(lambda _: self._running.pop(kind))
        # Shielded, because others may be waiting for the same.
        rendered: T = await asyncio.shield(running)
        return rendered

    def close(self) -> None:
        """Let go of the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def application(facts: Facts) -> web.Application:
    """Return the web application; it only reads."""
    renderer = Renderer()

    async def metrics(request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        compress = "gzip" in request.headers.get("Accept-Encoding", "")
        kind = ("metrics", "openmetrics" in accept, compress)

        def prepare() -> Callable[[], Exposition]:
            view = facts.view()
            more = tuple(facts.more(view))
            return partial(expose, view, facts.version, accept, compress=compress, more=more)

        exposition = await renderer.render(kind, prepare)
        headers = {"Content-Type": exposition.content_type, "Vary": "Accept, Accept-Encoding"}
        if exposition.encoding:
            headers["Content-Encoding"] = exposition.encoding
        return web.Response(body=exposition.body, headers=headers)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        readiness = facts.readiness(facts.view())
        return web.Response(
            text=readiness_json(readiness),
            status=200 if readiness.ready else 503,
            content_type="application/json",
        )

    async def status(request: web.Request) -> web.Response:
        as_json = "application/json" in request.headers.get("Accept", "")
        show = status_json if as_json else status_html

        def prepare() -> Callable[[], bytes]:
            view = facts.view_in_words()
            return lambda: show(facts.status(view)).encode(errors="replace")

        return web.Response(
            body=await renderer.render(show, prepare),
            content_type="application/json" if as_json else "text/html",
            charset="utf-8",
            headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY, "Vary": "Accept"},
        )

    async def close(_: web.Application) -> None:
        renderer.close()

    app = web.Application(middlewares=[_explain_errors])
    app.router.add_get("/", status)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.on_response_prepare.append(add_headers)
    app.on_cleanup.append(close)
    return app


@web.middleware
async def _explain_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        error.text = EXPLANATIONS.get(error.status, error.reason) + "\n"
        raise


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Add what every response has; a signal handler for ``on_response_prepare``."""
    response.headers["Server"] = SERVER
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


async def start(
    app: web.Application, listen: Listen, *, setting: str = "listen", auto_decompress: bool = True
) -> tuple[str, Callable[[], Awaitable[None]]]:
    """Serve ``app``; return its URL, without a path, and a function that stops it.

    Without ``auto_decompress`` request bodies are given as they came.  Raises InvalidFile, naming
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
