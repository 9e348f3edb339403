"""The proxy tap between real clients and servers: aiohttp, gRPC, and TLS on either side."""

from __future__ import annotations

import asyncio
import queue
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web

from exporter.protocol.detection import PREFACE
from exporter.protocol.events import CLIENT, SERVER
from exporter.taps.proxy.proxy_tap import ProxyTap
from exporter.taps.proxy.tls import Certificate, Verification
from exporter.taps.tap import ProxySpec
from slos.errors import InvalidFile
from tests.polling import until
from tests.proxy_setup import LoggingObserver, on_loop

TOKENS = [f"data: {number}\n\n".encode() for number in range(20)]


@asynccontextmanager
async def http_server(
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[int, list[str]]]:
    """Serve a stream of tokens; note how each ended."""
    ends: list[str] = []

    async def stream(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            for token in TOKENS:
                await response.write(token)
                await asyncio.sleep(0.002)  # the pace of the server
        except (ConnectionError, asyncio.CancelledError):
            ends.append("left")
            raise
        ends.append("done")
        return response

    app = web.Application()
    app.router.add_post("/stream", stream)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield runner.addresses[0][1], ends
    finally:
        await runner.cleanup()


@asynccontextmanager
async def tapped(
    port: int, **options: Any
) -> AsyncIterator[tuple[ProxyTap, list[LoggingObserver]]]:
    observers: list[LoggingObserver] = []

    def observe() -> LoggingObserver:
        observers.append(LoggingObserver())
        return observers[-1]

    spec = ProxySpec("127.0.0.1", 0, "127.0.0.1", port)
    tap = ProxyTap(spec, observe, lambda _: None, **options)
    await tap.start()
    try:
        yield tap, observers
    finally:
        await tap.close()


@on_loop("uvloop")
async def test_http_clients_reuse_connections_and_disconnect() -> None:
    async with http_server() as (port, ends), tapped(port) as (tap, observers):
        url = f"http://127.0.0.1:{tap.port}/stream"
        connector = aiohttp.TCPConnector(limit=4)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def send(number: int) -> bytes:
                async with session.post(url, data=bytes(number * 1000)) as response:
                    return await response.read()

            answers = await asyncio.gather(*map(send, range(24)))
            assert answers == [b"".join(TOKENS)] * 24
            assert len(observers) == 4
            async with session.post(url) as response:
                await response.content.readexactly(len(TOKENS[0]))
            await until(lambda: "left" in ends)
        assert ends == ["done"] * 24 + ["left"]
        await until(lambda: tap.traffic().connections == 0)
        assert tap.traffic().refused == {}


REQUESTS = 20


class _Echo(grpc.GenericRpcHandler):
    """Sends each request back five times; counts the calls that ended before all had come.

    To its server a cancelled call may look like one of which no more requests come.
    """

    def __init__(self) -> None:
        self.cancelled = 0

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.stream_stream_rpc_method_handler(self._echo)

    def _echo(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        received = 0

        def note() -> None:
            self.cancelled += received < REQUESTS

        context.add_callback(note)
        for request in requests:
            received += 1
            for _ in range(5):
                yield request


def _talk(port: int) -> tuple[list[bytes], str]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream("/x/Echo")
        first = call(iter([bytes((number,)) for number in range(REQUESTS)]), timeout=10)
        echoes = list(first)
        never_ends: queue.Queue[bytes] = queue.Queue()
        never_ends.put(b"x")
        second = call(iter(never_ends.get, None), timeout=10)
        next(second)
        second.cancel()
        never_ends.put(b"")
        return echoes, first.code().name


@on_loop("uvloop")
async def test_grpc_streams_and_cancellations_are_forwarded() -> None:
    echo = _Echo()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, handlers=(echo,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        async with tapped(port) as (tap, observers):
            echoes, status = await asyncio.to_thread(_talk, tap.port)
            assert echoes == [bytes((number // 5,)) for number in range(100)]
            assert status == "OK"
            await until(lambda: echo.cancelled == 1)
            await until(lambda: tap.traffic().connections == 0)
            assert len(observers) == 1
        server.stop(None)


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Make certificates of our own, each its own CA; return where a file is."""
    folder = tmp_path_factory.mktemp("pem")
    for name in ("front", "back", "other"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
             f"subjectAltName=DNS:{name}", "-keyout", f"{name}.key", "-out", f"{name}.pem"],
            cwd=folder, check=True, capture_output=True, timeout=60,
        )  # fmt: skip
    return lambda name: str(folder / name)


def _server_context(pem: Callable[[str], str], alpn: list[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem("back.pem"), pem("back.key"))
    context.set_alpn_protocols(alpn)
    return context


@pytest.mark.parametrize(("front", "back"), [(True, False), (False, True), (True, True)])
@on_loop()
async def test_tls_on_either_side(pem: Callable[[str], str], front: bool, back: bool) -> None:
    options = {
        "certificate": Certificate(pem("front.pem"), pem("front.key")) if front else None,
        "verification": Verification(pem("back.pem"), "back") if back else None,
    }
    context = ssl.create_default_context(cafile=pem("front.pem"))
    server_context = _server_context(pem, ["http/1.1"]) if back else None
    async with (
        http_server(server_context) as (port, ends),
        tapped(port, **options) as (tap, observers),
        aiohttp.ClientSession() as session,
    ):
        url = f"{'https' if front else 'http'}://127.0.0.1:{tap.port}/stream"
        arguments: dict[str, Any] = (
            {"ssl": context, "server_hostname": "front"} if front else {"ssl": True}
        )
        for _ in range(3):
            async with session.post(url, data=bytes(300_000), **arguments) as response:
                assert await response.read() == b"".join(TOKENS)
        async with session.post(url, **arguments) as response:
            await response.content.readexactly(len(TOKENS[0]))
        await until(lambda: "left" in ends)
        await until(lambda: tap.traffic().connections == 0)
        assert ends == ["done"] * 3 + ["left"]
        assert observers[0].fed[CLIENT].startswith(b"POST /stream HTTP/1.1\r\n")
        assert TOKENS[0] in observers[0].fed[SERVER]


@pytest.mark.parametrize("verification", [Verification(), Verification(server_name="back")])
@on_loop()
async def test_untrusted_server_gets_no_request(
    pem: Callable[[str], str], verification: Verification, caplog: pytest.LogCaptureFixture
) -> None:
    context = _server_context(pem, ["http/1.1"])
    async with (
        http_server(context) as (port, ends),
        tapped(port, verification=verification) as (tap, _),
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{tap.port}/stream") as response,
    ):
        assert response.status == 502
        assert tap.traffic().refused == {"unreachable": 1}
    assert ends == []
    assert "certificate verify failed" in caplog.text


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(["h2"], "h2"), (["http/1.1"], "http/1.1"), (["h2", "http/1.1"], "http/1.1"), ([], None)],
)
@on_loop()
async def test_alpn_of_the_client_is_offered_to_the_server(
    pem: Callable[[str], str], offered: list[str], chosen: str | None
) -> None:
    met: asyncio.Queue[str | None] = asyncio.Queue()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.put_nowait(writer.get_extra_info("ssl_object").selected_alpn_protocol())
        await reader.read(1)
        writer.close()

    back = await asyncio.start_server(
        meet, "127.0.0.1", 0, ssl=_server_context(pem, ["h2", "http/1.1"])
    )
    port = back.sockets[0].getsockname()[1]
    options = {
        "certificate": Certificate(pem("front.pem"), pem("front.key")),
        "verification": Verification(pem("back.pem"), "back"),
    }
    async with tapped(port, **options) as (tap, _):
        context = ssl.create_default_context(cafile=pem("front.pem"))
        if offered:
            context.set_alpn_protocols(offered)
        _, writer = await asyncio.open_connection(
            "127.0.0.1", tap.port, ssl=context, server_hostname="front"
        )
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == chosen
        settings = bytes(3) + b"\x04" + bytes(5)
        first = PREFACE + settings if chosen == "h2" else b"GET / HTTP/1.1\r\n\r\n"
        writer.write(first)
        assert await asyncio.wait_for(met.get(), 5) == (chosen or "http/1.1")
        writer.close()
    back.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"certificate": ("{}/none.pem", "{}/front.key")}, "No such file or directory"),
        ({"certificate": ("{}/front.pem", "{}/other.key")}, "KEY_VALUES_MISMATCH"),
        ({"certificate": ("{}/front.key", "{}/front.key")}, "not PEM"),
        ({"verification": ("{}/none.pem",)}, "No such file or directory"),
    ],
)
@on_loop("uvloop")
async def test_unusable_tls_files_are_named(
    pem: Callable[[str], str], options: dict[str, tuple[str, ...]], problem: str
) -> None:
    folder = Path(pem("x")).parent
    kinds: dict[str, Callable[..., Any]] = {
        "certificate": Certificate,
        "verification": Verification,
    }
    made = {
        name: kinds[name](*(file.format(folder) for file in files))
        for name, files in options.items()
    }
    with pytest.raises(InvalidFile, match=problem) as caught:
        await ProxyTap(
            ProxySpec("127.0.0.1", 0, "127.0.0.1", 1), LoggingObserver, print, **made
        ).start()
    assert str(caught.value).startswith("tokenslo exporter: tap: ")
