"""The HTTP server of the sidecar: metrics, health, readiness and status page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from exporter.cooperative import in_turns
from exporter.families import MetricFamily
from exporter.http_server import add_headers
from exporter.render_gate import RENDER_GATE
from exporter.store.view import View
from exporter.web.collector import (
    TEXT_CONTENT_TYPE,
    RenderedExposition,
    compressed_in_steps,
    expose_in_steps,
)
from exporter.web.page_assets import CONTENT_SECURITY_POLICY
from exporter.web.readiness import Readiness
from exporter.web.status import Status
from exporter.web.status_json import readiness_json, status_json

T = TypeVar("T")

EXPLANATIONS = {
    404: "Not found. The endpoints are /, /metrics, /healthz, /readyz and, with --gateway-metrics, "
    "/gateway.",
    405: "Only GET and HEAD are allowed.",
}


async def _nothing(_: View) -> Iterable[MetricFamily]:
    return ()


def _ignore(_: View) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Facts:
    """The data of all endpoints: ``status`` is called in a thread, all else on the event loop.

    ``summarized_view`` returns a function that returns the view of the status page, called in a
    thread, and ``more`` the families of ``/metrics`` that are not signals of the view.  ``gateway``
    returns the text of ``/gateway``; without it, there is no such page.  ``rendered`` is called
    with the view of each response of ``/metrics``.
    """

    version: str
    view: Callable[[], View]
    summarized_view: Callable[[], Callable[[], View]]
    readiness: Callable[[View], Readiness]
    status: Callable[[View], Status]
    more: Callable[[View], Awaitable[Iterable[MetricFamily]]] = _nothing
    gateway: Callable[[], bytes] | None = None
    rendered: Callable[[View], None] = _ignore


class Renderer:
    """Render for several requests at a time; those of one kind share one rendering."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "render")
        self._running: dict[object, asyncio.Future[Any]] = {}

    async def render(self, kind: object, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of ``work``, called only if no rendering of this ``kind`` is running.

        Scrapes of sources pause meanwhile.
        """
        running = self._running.get(kind)
        if running is None:
            running = self._running[kind] = asyncio.create_task(_paused(work()))
            running.add_done_callback(lambda _: self._running.pop(kind, None))
        # Shielded, because other requests may be waiting for the same rendering.
        rendered: T = await asyncio.shield(running)
        return rendered

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Return the result of work that would block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Stop the thread and cancel pending renderings."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        for running in self._running.values():
            running.cancel()


async def _paused(work: Coroutine[Any, Any, T]) -> T:
    """Await the work while scrapes of sources pause."""
    with RENDER_GATE.rendering():
        return await work


def application(facts: Facts) -> web.Application:
    """Return the read-only web application."""
    renderer = Renderer()

    async def metrics(request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        compress = "gzip" in request.headers.get("Accept-Encoding", "")
        kind = ("metrics", "openmetrics" in accept, compress)

        async def expose() -> RenderedExposition:
            view = facts.view()
            await asyncio.sleep(0)
            more = await facts.more(view)
            steps = expose_in_steps(view, facts.version, accept, more=more)
            exposition = await in_turns(steps)
            if compress:
                exposition = await in_turns(compressed_in_steps(exposition))
            facts.rendered(view)
            return exposition

        exposition = await renderer.render(kind, expose)
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
        render = status_json if as_json else partial(_page, chosen=chosen)

        async def rendered() -> bytes:
            summarized = facts.summarized_view()
            return await renderer.in_thread(
                lambda: render(facts.status(summarized())).encode(errors="replace")
            )

        return web.Response(
            body=await renderer.render(("status", as_json, chosen), rendered),
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


def _page(status: Status, chosen: tuple[str, str] | None) -> str:
    """Render the status page, whose modules hold 0.6 MiB."""
    from exporter.web.status_page import status_html

    return status_html(status, chosen=chosen)
