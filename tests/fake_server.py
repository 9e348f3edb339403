"""A fake HTTP server with the responses that a test sets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
FakeAnswer = str | list[object] | dict[str, object] | Handler


@dataclass
class FakeServer:
    """A server with ``answers`` by path: text, a JSON value or a handler; other paths are 404.

    A list is given once: it is empty after that.
    """

    answers: dict[str, FakeAnswer] = field(default_factory=dict)
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        answer = self.answers.get(request.path)
        match answer:
            case None:
                return web.json_response({"detail": "Not Found"}, status=404)
            case str():
                return web.Response(text=answer)
            case list() | dict():
                if isinstance(answer, list):
                    self.answers[request.path] = []
                return web.json_response(answer)
        return await answer(request)


@asynccontextmanager
async def serving(handle: Handler, port: int = 0) -> AsyncIterator[str]:
    """Answer every request by `handle` on a local port, a free one for 0; yield its address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def fake_server(answers: dict[str, FakeAnswer]) -> AsyncIterator[FakeServer]:
    fake = FakeServer(answers)
    async with serving(fake.handle) as fake.url:
        yield fake


def status(code: int) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(status=code)

    return handler


def cut(body: bytes) -> Handler:
    """Return a handler that announces more than ``body`` and closes the connection after it."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(body) + 100)})
        await response.prepare(request)
        await response.write(body)
        assert request.transport is not None
        request.transport.close()
        return response

    return handler
