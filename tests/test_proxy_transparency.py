"""Clients and servers see through the proxy what they see without it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import aiohttp
import pytest

from exporter.protocol.detection import PREFACE, observe
from exporter.protocol.events import Observer, ObserverSettings
from tests import proxy_setup as proxied_module
from tests.event_log import WireLog
from tests.polling import until
from tests.proxy_setup import (
    ANSWER,
    REQUEST,
    ProxySetup,
    on_loop,
    proxied,
    receive,
    receive_all,
    reset,
)
from tests.tcp_server import listening


def _observer() -> Observer:
    return observe(WireLog(), ObserverSettings())


@pytest.mark.parametrize("before", [b"", ANSWER], ids=["first", "kept alive"])
@pytest.mark.parametrize("end", [socket.socket.close, reset])
@on_loop()
async def test_server_end_without_a_response_is_forwarded(
    end: Callable[[socket.socket], None], before: bytes
) -> None:
    async with proxied(_observer) as scene:  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        seen = []
        for direct in (True, False):
            client = await scene.client(REQUEST, direct=direct)
            server = await scene.accept()
            assert await receive(server, len(REQUEST)) == REQUEST
            if before:
                await loop.sock_sendall(server, before)
                assert await receive(client, len(before)) == before
                await loop.sock_sendall(client, REQUEST)
                assert await receive(server, len(REQUEST)) == REQUEST
            end(server)
            seen.append(await receive_all(client))
            client.close()
        assert seen[1] == seen[0]
        await until(lambda: scene.tap.traffic().connections == 0)
        assert scene.refused() == {}


@on_loop()
async def test_http2_server_end_at_once_is_forwarded() -> None:
    async with proxied() as scene:
        request = (
            PREFACE + bytes(3) + b"\x04" + bytes(5) + b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x82"
        )
        client, server = await scene.pair(request)
        server.close()
        assert await receive_all(client) == (b"", "end")


@on_loop()
async def test_a_client_retries_on_a_kept_connection_that_the_server_has_closed() -> None:
    """The server answers each connection's first request and closes instead of a second answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with (
        listening(serve) as port,
        proxied(_observer, port=port) as scene,  # type: ignore[arg-type]
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session,
    ):
        for where in (port, scene.tap.port):
            statuses = []
            for _ in range(4):
                async with session.get(f"http://127.0.0.1:{where}/") as response:
                    statuses.append(response.status)
                    await response.read()
            assert statuses == [200] * 4
        assert scene.refused() == {}


# Each step is who does what: a client or a server sends, ends its half, or resets.
Step = tuple[str, bytes | str]
C, S = "client", "server"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
CONVERSATIONS: dict[str, list[Step]] = {
    "HTTP/1.0": [
        (C, b"GET / HTTP/1.0\r\n\r\n"), (S, b"HTTP/1.0 200 OK\r\n\r\nbody"), (S, "end"),
    ],
    "HTTP/1.0 half-closed": [
        (C, b"GET / HTTP/1.0\r\n\r\n"), (C, "end"), (S, b"HTTP/1.0 200 OK\r\n\r\nbody"), (S, "end"),
    ],
    "continue": [
        (C, POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"),
        (S, b"HTTP/1.1 100 Continue\r\n\r\n"), (C, b"{}"), (S, ANSWER), (C, "end"), (S, "end"),
    ],
    "no continue": [
        (C, POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"),
        (S, b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n"), (S, "end"),
    ],
    "early answer to a large upload": [
        (C, POST + b"Content-Length: 1000000\r\n\r\n" + bytes(1000)),
        (S, b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n"), (S, "reset"),
    ],
    "upgrade": [
        (C, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
        (S, b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"),
        (S, b"\x81\x05hello"), (C, b"\x81\x85\0\0\0\0hello"), (S, "end"),
        (C, b"\x88\0"), (C, "end"),
    ],
    "connect": [
        (C, b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n"), (S, b"HTTP/1.1 200 OK\r\n\r\n"),
        (C, b"\0any\r\n\r\nbytes"), (S, b"\xff\0more"), (C, "end"), (S, b"last"), (S, "end"),
    ],
    "pipelining": [
        (C, GET * 60), (S, ANSWER * 60), (C, GET), (S, ANSWER), (C, "end"), (S, "end"),
    ],
    "reset in a chunk": [(C, GET), (S, CHUNKED + b"5\r\nhel"), (S, "reset")],
    "end in a chunk": [(C, GET), (S, CHUNKED + b"5\r\nhel"), (S, "end")],
    "client resets in a chunk": [(C, GET), (S, CHUNKED + b"5\r\nhel"), (C, "reset")],
    "client resets in its body": [
        (C, POST + b"Content-Length: 100\r\n\r\n{"), (C, "reset"),
    ],
    "client ends in its body": [
        (C, POST + b"Content-Length: 100\r\n\r\n{"), (C, "end"), (S, "end"),
    ],
    "large trailers": [
        (C, GET), (S, CHUNKED + b"1\r\na\r\n0\r\n" + b"a: b\r\n" * 20_000 + b"\r\n"), (S, "end"),
    ],
    "large head of an answer": [
        (C, GET), (S, b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000 + b"\r\n"), (S, "end"),
    ],
    "an answer that is none": [(C, GET), (S, b"\0\1\2 what"), (C, GET), (S, b"ever"), (S, "end")],
    "an answer to nothing": [(C, GET), (S, ANSWER + ANSWER), (C, GET), (S, ANSWER), (S, "end")],
    "interim answers": [
        (C, GET), (S, b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 3), (S, ANSWER), (C, "end"),
        (S, "end"),
    ],
    "a request after the last": [
        (C, GET), (S, ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")), (S, "end"),
    ],
    "chunk extensions": [
        (C, POST + b"Transfer-Encoding: chunked\r\n\r\n2;" + b"a" * 200 + b"\r\n{}\r\n0\r\n\r\n"),
        (S, ANSWER), (C, "end"), (S, "end"),
    ],
    "TLS": [(C, b"\x16\x03\x01\0\5hello"), (S, b"\x16\x03\x03\0\2ok"), (C, b"\x17"), (S, "reset")],
}  # fmt: skip


async def _hold(scene: ProxySetup, steps: list[Step], *, direct: bool) -> tuple[object, object]:
    """Go through a conversation; return what client and server got, and how it ended for each."""
    loop = asyncio.get_running_loop()
    client = await scene.client(steps[0][1], direct=direct)  # type: ignore[arg-type]
    server = await scene.accept()
    sides = {C: client, S: server}
    assert await receive(server, len(steps[0][1])) == steps[0][1]
    for who, what in steps[1:]:
        other = S if who == C else C
        if what == "end":
            sides[who].shutdown(socket.SHUT_WR)
        elif what == "reset":
            reset(sides[who])
        else:
            assert isinstance(what, bytes)
            await loop.sock_sendall(sides[who], what)
            assert await receive(sides[other], len(what)) == what
        await asyncio.sleep(0.005)  # so that an end arrives alone, not with what follows
    ends = []
    for side in (client, server):
        try:
            ends.append(await receive_all(side) if side.fileno() >= 0 else "gone")
        except TimeoutError:
            ends.append("open")
        side.close()
    return ends[0], ends[1]


@pytest.mark.parametrize("name", CONVERSATIONS)
@on_loop("uvloop")
async def test_a_conversation_is_the_same_with_and_without_the_proxy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxied_module, "SOON", 2.0)
    steps = CONVERSATIONS[name]
    async with proxied(_observer) as scene:  # type: ignore[arg-type]
        ends = [await _hold(scene, steps, direct=direct) for direct in (True, False)]
        assert ends[1] == ends[0]
        await until(lambda: scene.tap.traffic().connections == 0)
        assert scene.refused() == {}


@on_loop("uvloop")
async def test_single_bytes_pass_both_ways() -> None:
    async with proxied(_observer) as scene:  # type: ignore[arg-type]
        client = await scene.client()
        loop = asyncio.get_running_loop()
        for byte in REQUEST:
            await loop.sock_sendall(client, bytes((byte,)))
        server = await scene.accept()
        assert await receive(server, len(REQUEST)) == REQUEST
        for byte in ANSWER:
            await loop.sock_sendall(server, bytes((byte,)))
        assert await receive(client, len(ANSWER)) == ANSWER
        assert scene.refused() == {}
