"""Clients and servers see through the proxy what they see without it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import aiohttp
import pytest

from exporter.wire.connection import observe
from exporter.wire.events import Observer, Settings
from exporter.wire.http2 import PREFACE
from tests.listening import listening
from tests.proxied import (
    ANSWER,
    REQUEST,
    on_loop,
    proxied,
    receive,
    receive_all,
    reset,
    until,
)
from tests.wire_log import WireLog


def _observer() -> Observer:
    return observe(WireLog(), Settings())


@pytest.mark.parametrize("before", [b"", ANSWER], ids=["first", "kept alive"])
@pytest.mark.parametrize("end", [socket.socket.close, reset])
@on_loop()
async def test_a_server_that_ends_without_an_answer_looks_as_it_is(
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
async def test_an_http2_server_that_ends_at_once_looks_as_it_is() -> None:
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
