"""When the proxy connects to the server, and for how long it waits for a first request."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.protocol.detection import PREFACE, observe
from exporter.protocol.events import Direction, ObserverSettings
from exporter.taps.proxy import proxy_tap
from exporter.taps.proxy.context import ProxyLimits
from exporter.taps.proxy.request_heads import FirstHead
from tests.event_log import WireLog
from tests.polling import until
from tests.proxy_setup import (
    ANSWER,
    REQUEST,
    LoggingObserver,
    on_loop,
    proxied,
    receive,
    receive_all,
)

SETTINGS = bytes(3) + b"\x04" + bytes(5)
HEADERS = b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x82"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HELLO = b"\x16\x03\x01\x00\x05hello"


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_tap, "TICK_SECONDS", 0.05)


@pytest.mark.parametrize(
    ("head", "protocol"),
    [
        (GET, "http/1.1"),
        (b"\r\n\r\n" + GET, "http/1.1"),
        (b"\n" + GET.replace(b"\r", b""), "http/1.1"),
        (PREFACE + SETTINGS, "h2"),
        (PREFACE + b"\x00\x00\x06\x04" + bytes(11), "h2"),
        (PREFACE + b"\x00\xff\x06\x07" + bytes(5), "h2"),
        (HELLO, "http/1.1"),
    ],
)
@given(data=st.data())
def test_segmented_head_is_complete_with_its_last_byte(
    head: bytes, protocol: str, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(1, len(head) - 1), unique=True).map(sorted))
    first, sent = FirstHead(), bytearray()
    for start, end in zip([0, *cuts], [*cuts, len(head)], strict=True):
        assert first.protocol(sent) == ""
        sent += head[start:end]
    assert first.protocol(sent) == protocol


@given(st.binary(max_size=200))
def test_no_bytes_break_the_search(data: bytes) -> None:
    first, sent = FirstHead(), bytearray()
    for byte in data:
        sent.append(byte)
        first.protocol(sent)
    assert first.size <= len(sent)


NO_REQUEST = [
    b"\r\n\r\n",
    b"\r\n" * 2000,
    PREFACE,
    PREFACE + SETTINGS[:-1],
    b"PRI * HTTP",
    HELLO[:-1],
]


@pytest.mark.parametrize("sent", NO_REQUEST, ids=lambda sent: repr(sent[:12]))
@on_loop()
async def test_connection_without_a_request_times_out_before_the_server_is_reached(
    sent: bytes,
) -> None:
    log = WireLog()
    async with proxied(
        lambda: observe(log, ObserverSettings()),
        limits=ProxyLimits(head_seconds=0.2),  # type: ignore[arg-type, return-value]
    ) as scene:
        clients = [await scene.client(sent) for _ in range(20)]
        ends = await asyncio.gather(*map(receive_all, clients))
        assert {how for _, how in ends} == {"end"}
        for client in clients:
            client.close()
        await until(lambda: scene.tap.traffic().connections == 0)
        assert scene.refused() == {"head_time": 20}
        scene.server.settimeout(0)
        with pytest.raises(BlockingIOError):
            scene.server.accept()


@on_loop()
async def test_an_http2_connection_without_a_request_ends_in_time_on_both_sides() -> None:
    async with proxied(limits=ProxyLimits(head_seconds=0.3)) as scene:
        client, server = await scene.pair(PREFACE + SETTINGS)
        busy, busy_server = await scene.pair(PREFACE + SETTINGS + HEADERS)
        late, late_server = await scene.pair(PREFACE + SETTINGS)
        loop = asyncio.get_running_loop()
        for each in (server, busy_server, late_server):
            await loop.sock_sendall(each, SETTINGS)
        await loop.sock_sendall(late, HEADERS)
        assert (await receive_all(server))[1] == "reset"
        assert (await receive_all(client))[0] == SETTINGS
        assert scene.refused() == {"head_time": 1}
        for one, other in ((busy_server, busy), (late_server, late)):
            await loop.sock_sendall(one, HEADERS)
            assert await receive(other, len(SETTINGS + HEADERS)) == SETTINGS + HEADERS


@pytest.mark.parametrize("head", [PREFACE + SETTINGS + HEADERS, HELLO, REQUEST])
@on_loop()
async def test_body_does_not_count_as_head(head: bytes) -> None:
    async with proxied() as scene:
        await scene.pair(head + bytes(100_000))
        assert scene.refused() == {}


@on_loop()
async def test_a_server_that_is_connected_is_reachable_however_busy_the_loop_is() -> None:
    def hold_up(direction: Direction, data: bytes) -> None:
        if scene.observers[0].fed[direction] != REQUEST:
            time.sleep(0.4)  # blocks the loop for longer than a connection may take

    async with proxied(
        lambda: LoggingObserver(on_feed=hold_up), limits=ProxyLimits(connect_seconds=0.2)
    ) as scene:
        client = await scene.client(REQUEST)
        sending = threading.Thread(target=_send, args=(client, bytes(2_000_000)))
        sending.start()
        server = await scene.accept()
        assert len(await receive(server, 2_000_000)) == 2_000_000
        await asyncio.to_thread(sending.join)
        assert scene.refused() == {}


def _send(client: socket.socket, data: bytes) -> None:
    client.settimeout(20)
    client.sendall(data)


@on_loop("uvloop")
async def test_a_silent_server_costs_no_memory_per_request() -> None:
    async with proxied(lambda: LoggingObserver(keep=False)) as scene:
        client, server = await scene.pair(PREFACE + SETTINGS + HEADERS)
        requests = b"".join(
            b"\x00\x00\x01\x01\x05" + number.to_bytes(4) + b"\x82" for number in range(3, 60_000, 2)
        )
        tracemalloc.start()
        try:
            for start in range(0, len(requests), 30_000):
                chunk = requests[start : start + 30_000]
                await asyncio.get_running_loop().sock_sendall(client, chunk)
                assert await receive(server, len(chunk)) == chunk
            scene.observers[0].times.clear()
            del chunk
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 200_000


@on_loop()
async def test_empty_lines_before_a_request_are_passed_on() -> None:
    async with proxied() as scene:
        client, server = await scene.pair(b"\r\n\r\n" + REQUEST)
        await asyncio.get_running_loop().sock_sendall(server, ANSWER)
        assert await receive(client, len(ANSWER)) == ANSWER


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("real", [True, False])
@on_loop()
async def test_a_head_above_64_kib_is_a_431(ends: bool, real: bool) -> None:
    log = WireLog()
    options = {"new_observer": lambda: observe(log, ObserverSettings())} if real else {}
    async with proxied(**options) as scene:  # type: ignore[arg-type]
        head = b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 11_000 + b"\r\n" * ends
        client = await scene.client(head)
        data, how = await receive_all(client)
        assert data.startswith(b"HTTP/1.1 431 ")
        assert b"Server:" not in data
        assert how == "end"
        assert scene.refused() == {"too_long": 1}


@on_loop()
async def test_a_later_head_above_64_kib_is_a_431() -> None:
    log = WireLog()
    async with proxied(lambda: observe(log, ObserverSettings())) as scene:  # type: ignore[arg-type, return-value]
        client, server = await scene.pair()
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(server, ANSWER)
        assert await receive(client, len(ANSWER)) == ANSWER
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 11_000 + b"\r\n")
        data, _ = await receive_all(client)
        assert data.startswith(b"HTTP/1.1 431 ")
        assert scene.refused() == {"too_long": 1}
