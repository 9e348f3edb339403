"""The HTTP server of the sidecar: metrics, health, readiness and status page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from exporter.families import MetricFamily
from exporter.http_server import add_headers
from exporter.render_gate import RENDER_GATE
from exporter.store.view import View
from exporter.web.collector import TEXT_CONTENT_TYPE, RenderedExposition, expose
from exporter.web.page_assets import CONTENT_SECURITY_POLICY
from exporter.web.readiness import Readiness
from exporter.web.status import Status
from exporter.web.status_json import readiness_json, status_json
from exporter.web.status_page import status_html

T = TypeVar("T")

EXPLANATIONS = {
    404: "Not found. The endpoints are /, /metrics, /healthz, /readyz and, with --gateway-metrics, "
    "/gateway.",
    405: "Only GET and HEAD are allowed.",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """The data of all endpoints: ``status`` is called in a thread, all else on the event loop.

    ``summarized_view`` returns a function that returns the view of the status page, and ``more``
    one that returns the families of ``/metrics`` that do not come from a view; both functions are
    called in a thread.  ``gateway`` returns the text of ``/gateway``; without it, there is no such
    page.
    """

    version: str
    view: Callable[[], View]
    summarized_view: Callable[[], Callable[[], View]]
    readiness: Callable[[View], Readiness]
    status: Callable[[View], Status]
    more: Callable[[], Callable[[View], Iterable[MetricFamily]]] = lambda: lambda _: ()
    gateway: Callable[[], bytes] | None = None


class Renderer:
    """Render in a thread, so that a large scrape does not block the event loop.

    Concurrent requests of one kind share one rendering.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "render")
        self._running: dict[object, tuple[asyncio.Future[Any], ExitStack]] = {}

    async def render(self, kind: object, prepare: Callable[[], Callable[[], T]]) -> T:
        """Return the result of the function that ``prepare`` returns.

        ``prepare`` is called only if no rendering of this ``kind`` is running.
        """
        running, _ = self._running.get(kind, (None, None))
        if running is None:
            with ExitStack() as stack:
                stack.enter_context(RENDER_GATE.rendering())
                running = asyncio.get_running_loop().run_in_executor(self._thread, prepare())
                self._running[kind] = running, stack.pop_all()
            running.add_done_callback(lambda _: self._ended(kind))
        # Shielded, because other requests may be waiting for the same rendering.
        rendered: T = await asyncio.shield(running)
        return rendered

    def _ended(self, kind: object) -> None:
        if kind in self._running:
            self._running.pop(kind)[1].close()

    def close(self) -> None:
        """Stop the thread and cancel pending renderings."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        for kind in tuple(self._running):
            self._ended(kind)


def application(facts: Facts) -> web.Application:
    """Return the read-only web application."""
    renderer = Renderer()

    async def metrics(request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        compress = "gzip" in request.headers.get("Accept-Encoding", "")
        kind = ("metrics", "openmetrics" in accept, compress)

        def prepare() -> Callable[[], RenderedExposition]:
            view, more = facts.view(), facts.more()
            return lambda: expose(view, facts.version, accept, compress=compress, more=more(view))

        exposition = await renderer.render(kind, prepare)
        headers = {"Content-Type": exposition.content_type, "Vary": "Accept, Accept-Encoding"}
        if exposition.encoding:
            headers["Content-Encoding"] = exposition.encoding
        return web.Response(body=exposition.body, headers=headers)

    async def gateway(_: web.Request) -> web.Response:
        assert facts.gateway  # noqa: S101
        return web.Response(body=facts.gateway(), headers={"Content-Type": TEXT_CONTENT_TYPE})

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
        query = request.query
        chosen = (query["model"], query.get("version", "")) if "model" in query else None
        render = status_json if as_json else partial(status_html, chosen=chosen)

        def prepare() -> Callable[[], bytes]:
            summarized = facts.summarized_view()
            return lambda: render(facts.status(summarized())).encode(errors="replace")

        return web.Response(
            body=await renderer.render(("status", as_json, chosen), prepare),
            content_type="application/json" if as_json else "text/html",
            charset="utf-8",
            headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY, "Vary": "Accept"},
        )

    async def close(_: web.Application) -> None:
        renderer.close()

    app = web.Application(middlewares=[_explain_errors])
    app.router.add_get("/", status)
    app.router.add_get("/metrics", metrics)
    if facts.gateway:
        app.router.add_get("/gateway", gateway)
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
