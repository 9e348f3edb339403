"""One bounded HTTP exchange against servers that misbehave."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from exporter.samples import SourceError
from exporter.sources.fetch import fetch, parse_json, receive
from promql.http_client import FetchLimits, HttpResponse, new_session, public
from tests.tcp_server import listening

LIMITS = FetchLimits(timeout=5.0, max_bytes=1000)
IMPATIENT = FetchLimits(timeout=0.3, max_bytes=1000)
Respond = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(respond: Respond, *, greets: bool = False) -> AsyncIterator[str]:
    """Run a raw TCP server that runs ``respond`` after a request head, or at once."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not greets:
                await reader.readuntil(b"\r\n\r\n")
            await respond(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with listening(connected) as port:
        yield f"http://127.0.0.1:{port}"


def raw(*chunks: bytes, pause: float = 0.0) -> Respond:
    async def respond(writer: asyncio.StreamWriter) -> None:
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(pause)  # the pace of the server

    return respond


async def exchange(url: str, **options: object) -> HttpResponse:
    async with new_session() as session:
        options.setdefault("limits", LIMITS)
        return await fetch(session, "GET", url, **options)  # type: ignore[arg-type]


async def failure(respond: Respond, limits: FetchLimits) -> SourceError:
    async with server(respond) as url:
        with pytest.raises(SourceError) as raised:
            await exchange(f"{url}/metrics", limits=limits)
        return raised.value


async def test_a_whole_answer() -> None:
    async with server(raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"hi")) as url:
        assert await exchange(url) == HttpResponse(200, b"hi")


async def test_expected_error_status_is_returned() -> None:
    async with server(raw(b"HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n")) as url:
        assert await exchange(url, statuses=(200, 400)) == HttpResponse(400, b"")


@pytest.mark.parametrize(
    ("respond", "kind", "words"),
    [
        pytest.param(
            raw(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"), "status", "answered 503",
            id="status",
        ),
        pytest.param(
            raw(b"HTTP/1.1 302 Go\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n"),
            "status", "answered 302; give the final address", id="redirect",
        ),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n"), "too_large",
            "more than 1000 bytes", id="said to be huge",
        ),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 700, b"x" * 700), "too_large",
            "more than 1000 bytes", id="huge without saying so",
        ),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", b"short"), "truncated",
            "in mid-answer", id="truncated",
        ),
        pytest.param(raw(), "truncated", "in mid-answer", id="nothing"),
        pytest.param(raw(b"SSH-2.0-OpenSSH\r\n\r\n"), "malformed", "not HTTP", id="not HTTP"),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 33\r\n\r\n",
                 gzip.compress(b"x" * 900, mtime=0)),
            "malformed", "compressed its response", id="compressed",
        ),
        pytest.param(raw(b"", pause=5), "timeout", "within 0.3 s", id="silent"),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", *[b"x"] * 900, pause=0.01),
            "timeout", "did not answer completely within 0.3 s", id="slow drip",
        ),
    ],
)  # fmt: skip
async def test_failures_have_kind_and_message(respond: Respond, kind: str, words: str) -> None:
    error = await failure(respond, IMPATIENT if kind == "timeout" else LIMITS)
    assert error.kind == kind
    assert words in str(error)


async def test_refused_connection_is_unreachable() -> None:
    async with server(raw()) as url:
        pass
    with pytest.raises(SourceError, match="refused the connection: nothing listens") as raised:
        await exchange(url)
    assert raised.value.kind == "refused"


async def test_a_host_that_does_not_exist() -> None:
    with pytest.raises(SourceError, match="cannot be reached") as raised:
        await exchange("http://no-such-host.invalid/", limits=FetchLimits(timeout=5))
    assert raised.value.kind == "unreachable"


async def test_plain_http_behind_https() -> None:
    async with server(raw(b"HTTP/1.1 400 Bad\r\n\r\n"), greets=True) as url:
        with pytest.raises(SourceError, match="TLS failed") as raised:
            await exchange(url.replace("http", "https"))
    assert raised.value.kind == "tls"


@pytest.mark.parametrize("url", ["ftp://host/metrics", "nonsense", "http://", "http://[::1/"])
async def test_no_http_address(url: str) -> None:
    with pytest.raises(SourceError, match="is not an http or https address") as raised:
        await exchange(url)
    assert raised.value.kind == "malformed"


async def test_messages_hold_no_credentials() -> None:
    async with server(raw(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")) as url:
        secret = url.replace("//", "//user:hunter2@") + "/metrics?token=hunter2#hunter2"
        with pytest.raises(SourceError) as raised:
            await exchange(secret)
        assert str(raised.value) == f"{url}/metrics answered 503"
        assert public(secret) == f"{url}/metrics"


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff", b"[" * 100_000])
def test_what_is_not_json(body: bytes) -> None:
    with pytest.raises(SourceError, match="http://t/v2 did not answer with JSON"):
        parse_json(HttpResponse(200, body), "http://t/v2?token=x")


@pytest.mark.parametrize(
    ("respond", "kind", "taken"),
    [
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b"abc"), "truncated", b"abc"),
        (raw(b"HTTP/1.1 200 OK\r\n\r\nabc", b"de", pause=5), "timeout", b"abc"),
        (raw(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 5000), "too_large", b"x" * 1000),
    ],
)
async def test_body_before_a_failure_is_delivered(
    respond: Respond, kind: str, taken: bytes
) -> None:
    received = bytearray()
    async with server(respond) as url, new_session() as session:
        with pytest.raises(SourceError) as raised:
            await receive(session, "GET", url, received.extend, limits=IMPATIENT)
    assert (raised.value.kind, bytes(received)) == (kind, taken)
