"""Ended connections are freed at once, without the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import Counter
from collections.abc import Callable

import pytest

from exporter.protocol.detection import observe
from exporter.protocol.events import ObserverSettings
from exporter.protocol.http1_framing import MessageParser
from exporter.taps.proxy.connection import ClientConnection
from exporter.taps.proxy.upstream_connection import UpstreamConnection
from tests.event_log import WireLog
from tests.polling import until
from tests.proxy_setup import ANSWER, REQUEST, on_loop, proxied, receive, receive_all, reset

FREED = (ClientConnection, UpstreamConnection, MessageParser)


def counted() -> Counter[type]:
    return Counter(type(each) for each in gc.get_objects() if isinstance(each, FREED))


@pytest.mark.parametrize("end", [socket.socket.close, reset])
@pytest.mark.parametrize("first", ["client", "server"])
@on_loop("uvloop")
async def test_ended_connections_leave_no_garbage(
    first: str, end: Callable[[socket.socket], None]
) -> None:
    async with proxied(lambda: observe(WireLog(), ObserverSettings())) as scene:  # type: ignore[arg-type, return-value]
        gc.collect()
        gc.disable()
        try:
            before = counted()
            for _ in range(3):
                client, server = await scene.pair(REQUEST)
                await asyncio.get_running_loop().sock_sendall(server, ANSWER)
                assert await receive(client, len(ANSWER)) == ANSWER
                one, other = (client, server) if first == "client" else (server, client)
                end(one)
                await receive_all(other)
                other.close()
            await until(lambda: counted() == before)
        finally:
            gc.enable()
