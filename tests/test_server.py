"""The one port, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from math import inf

import aiohttp
import pytest

from exporter import connection_limit, http_server
from exporter.http_server import start
from exporter.objectives.objective_status import evaluate
from exporter.samples import Distribution
from exporter.sockets import Listen
from exporter.store.view import View
from exporter.web import text_format, view_families
from exporter.web.readiness import readiness
from exporter.web.server import Facts, Renderer, application
from exporter.web.status import Status
from slos.errors import InvalidFile
from tests.views import busy, measured, view

LOOPBACK = Listen("127.0.0.1", 0)


def status(shown: View) -> Status:
    return Status("1.2.3", "now", shown, readiness(shown, 5), evaluate([], shown))


def facts(shown: Callable[[], View] = busy) -> Facts:
    return Facts("1.2.3", shown, lambda: shown, lambda view: readiness(view, 5), status)


@asynccontextmanager
async def served(shown: Callable[[], View] = busy) -> AsyncIterator[aiohttp.ClientSession]:
    url, close = await start(application(facts(shown)), LOOPBACK)
    try:
        async with aiohttp.ClientSession(
            url, auto_decompress=False, skip_auto_headers=("Accept-Encoding",)
        ) as session:
            yield session
    finally:
        await close()


def many_series(models: int) -> View:
    """Return a view with a gauge and a histogram of every model."""
    value = Distribution((0.1, 1.0, inf), (1.0, 2.0, 3.0), 4.0)
    return view(
        *(measured("sequences_active", 1.0, model=str(number)) for number in range(models)),
        *(measured("e2e", value, model=str(number)) for number in range(models)),
    )


async def test_the_event_loop_serves_between_the_steps_of_a_scrape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Small pages are served on the way, by the only thread there is."""
    monkeypatch.setattr(view_families, "STEP_SIZE", 10)
    monkeypatch.setattr(text_format, "STEP_SIZE", 10)
    models, lines_of_model = 40, 1 + 5 + 2  # gauge, histogram, signal_info
    threads = {thread.name for thread in threading.enumerate()}
    shown = replace(facts(lambda: many_series(models)), gateway=lambda: b"gauge 1\n")
    url, close = await start(application(shown), LOOPBACK)
    async with aiohttp.ClientSession(url, auto_decompress=False) as session:
        headers = {"Accept-Encoding": "identity"}
        scrape = asyncio.create_task(session.get("/metrics", headers=headers))
        served = 0
        while not scrape.done():
            async with session.get("/gateway") as page:
                assert await page.read() == b"gauge 1\n"
            served += 1
        text = await (await scrape).text()
        assert {thread.name for thread in threading.enumerate()} == threads
    await close()
    assert sum(not line.startswith("#") for line in text.splitlines()) > models * lines_of_model
    assert served > 2


async def test_metrics_have_the_requested_format() -> None:
    async with served() as session:
        async with session.get("/metrics") as plain:
            assert plain.status == 200
            assert plain.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            text = await plain.read()
        headers = {"Accept": "application/openmetrics-text; version=1.0.0"}
        async with session.get("/metrics", headers=headers) as modern:
            assert modern.headers["Content-Type"].startswith("application/openmetrics-text;")
            assert (await modern.read()).endswith(b"# EOF\n")
        async with session.get("/metrics", headers={"Accept-Encoding": "gzip"}) as small:
            assert small.headers["Content-Encoding"] == "gzip"
            assert gzip.decompress(await small.read()) == text
    assert text.startswith(b"# HELP llm_time_to_first_token_seconds ")


async def test_health_does_not_depend_on_sources() -> None:
    async with served(lambda: view(sources=(), models=())) as session:
        async with session.get("/healthz") as health:
            assert (health.status, await health.text()) == (200, "ok\n")
        async with session.get("/readyz") as ready:
            assert ready.status == 503
            assert (await ready.json())["ready"] is False
        async with session.get("/metrics") as metrics:
            assert metrics.status == 200


async def test_readiness_is_200_when_every_layer_is_ready() -> None:
    async with served() as session, session.get("/readyz") as ready:
        assert ready.status == 200
        assert ready.content_type == "application/json"


async def test_status_is_a_page_or_json() -> None:
    async with served() as session:
        async with session.get("/", headers={"Accept": "text/html,*/*"}) as page:
            assert page.headers["Content-Type"] == "text/html; charset=utf-8"
            assert "Time to first token" in await page.text()
        async with session.get("/", headers={"Accept": "application/json"}) as as_json:
            assert (await as_json.json())["tokenslo"] == "1.2.3"


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz", "/readyz"])
async def test_responses_have_security_headers_and_no_server_version(path: str) -> None:
    async with served() as session:
        for method in ("GET", "HEAD", "POST"):
            async with session.request(method, path) as answer:
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Cache-Control"] == "no-store"
                assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
                assert answer.headers["Server"] == "tokenslo"


async def test_only_get_and_head_are_allowed() -> None:
    async with served() as session:
        async with session.post("/metrics", data=b"x") as refused:
            assert refused.status == 405
            assert refused.headers["Allow"] == "GET,HEAD"
            assert await refused.text() == "Only GET and HEAD are allowed.\n"
        async with session.get("/metric") as missing:
            assert missing.status == 404
            assert "/metrics" in await missing.text()
        async with session.head("/metrics") as head:
            assert head.status == 200
            assert int(head.headers["Content-Length"]) > 1000
            assert await head.read() == b""


async def test_endless_headers_are_refused() -> None:
    async with served() as session, session.get("/", headers={"X": "a" * 20_000}) as refused:
        assert refused.status == 400


HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
WHOLE = HALF + b"\r\n"


@pytest.fixture
def opened() -> Iterator[Callable[..., list[socket.socket]]]:
    """Open connections that send something and stay; they are closed after the test."""
    with ExitStack() as stack:

        def connect(url: str, count: int, send: bytes = HALF) -> list[socket.socket]:
            port = int(url.rpartition(":")[2])
            found = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
            for one in map(stack.enter_context, found):
                one.sendall(send)
                one.setblocking(False)
            return found

        yield connect


async def received(client: socket.socket, until: bytes = b"") -> bytes:
    """Return what comes until it contains ``until``, or else until the connection is closed."""
    data = b""
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            while chunk := await asyncio.get_running_loop().sock_recv(client, 1000):
                data += chunk
                if until and until in data:
                    break
    return data


Opened = Callable[..., list[socket.socket]]


async def test_incomplete_requests_do_not_block_others(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limit, "MAX_CONNECTIONS", 4)
    url, stop = await start(application(facts()), LOOPBACK)
    async with aiohttp.ClientSession(url) as session:
        for _ in range(3):
            clients = opened(url, 10)
            for path in ("/healthz", "/metrics"):
                async with session.get(path) as answer:
                    assert answer.status == 200
            for client in clients[:6]:
                assert await received(client) == b""
    await stop()


async def test_a_connection_that_scrapes_outlives_idle_ones(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limit, "MAX_CONNECTIONS", 4)
    url, stop = await start(application(facts()), LOOPBACK)
    [scraper] = opened(url, 1, WHOLE)
    assert (await received(scraper, b"ok\n")).startswith(b"HTTP/1.1 200")
    clients = opened(url, 20)
    assert await received(clients[0]) == b""
    await asyncio.get_running_loop().sock_sendall(scraper, WHOLE)
    assert (await received(scraper, b"ok\n")).startswith(b"HTTP/1.1 200")
    await stop()


@pytest.mark.parametrize(("sent", "answers"), [(b"", 0), (HALF, 0), (WHOLE + HALF, 1)])
async def test_slow_head_closes_the_connection(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, sent: bytes, answers: int
) -> None:
    monkeypatch.setattr(http_server, "KEEPALIVE_SECONDS", 0.3)
    monkeypatch.setattr(connection_limit, "HEAD_SECONDS", 0.1)
    url, stop = await start(application(facts()), LOOPBACK)
    [client] = opened(url, 1, sent)
    assert (await received(client)).count(b"HTTP/1.1 200 OK") == answers
    await stop()


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
    ],
)
async def test_error_responses_name_no_versions(opened: Opened, sent: bytes) -> None:
    url, stop = await start(application(facts()), LOOPBACK)
    [client] = opened(url, 1, sent)
    answer = await received(client)
    assert answer.startswith(b"HTTP/1.0 400 ")
    assert b"\r\nServer: tokenslo\r\n" in answer
    assert b"aiohttp" not in answer
    await stop()


async def test_ipv6() -> None:
    url, close = await start(application(facts()), Listen("::1", 0))
    async with aiohttp.ClientSession() as session, session.get(f"{url}/healthz") as health:
        assert url.startswith("http://[::1]:")
        assert health.status == 200
    await close()


async def test_port_in_use_is_one_error_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = Listen("127.0.0.1", other.getsockname()[1])
        with pytest.raises(InvalidFile) as failed:
            await start(application(facts()), taken)
    assert str(failed.value) == (
        f"tokenslo exporter: listen: {taken} is in use by another program. "
        "Fix: stop it, or choose another port."
    )


async def test_foreign_address_is_one_error_line() -> None:
    with pytest.raises(InvalidFile, match=r"192\.0\.2\.1:0 is no address of this machine"):
        await start(application(facts()), Listen("192.0.2.1", 0))


async def test_concurrent_scrapes_share_a_rendering() -> None:
    renderer, go, calls, begun = Renderer(), threading.Event(), [], []

    def make() -> int:
        go.wait(5)
        calls.append(threading.current_thread())
        return len(calls)

    async def work() -> int:
        begun.append(threading.current_thread())
        return await renderer.in_thread(make)

    waiting = [asyncio.create_task(renderer.render("a", work)) for _ in range(5)]
    await asyncio.sleep(0)  # let all of them begin
    waiting[0].cancel()
    go.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [1, 1, 1, 1]
    assert await renderer.render("a", work) == 2
    assert threading.main_thread() not in calls
    assert begun == [threading.main_thread()] * 2
    renderer.close()


async def test_failed_rendering_is_not_cached() -> None:
    renderer = Renderer()
    results = iter([1, 0])

    async def work() -> int:
        return 1 // (1 - next(results))

    with pytest.raises(ZeroDivisionError):
        await renderer.render("a", work)
    assert await renderer.render("a", work) == 1
    renderer.close()
