"""The proxy tap forwards bytes and ends of connections unchanged, and feeds an observer."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import os
import random
import select
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from exporter.protocol.events import CLIENT, SERVER, Direction
from tests.polling import until
from tests.proxy_setup import (
    ANSWER,
    REQUEST,
    SOON,
    LoggingObserver,
    ProxySetup,
    on_loop,
    proxied,
    receive,
    receive_all,
    reset,
)

MIB = 1024 * 1024


@on_loop()
async def test_bytes_are_forwarded_unchanged_in_both_directions() -> None:
    noise = random.Random(7)
    up = REQUEST + noise.randbytes(3 * MIB)
    down = noise.randbytes(3 * MIB)
    async with proxied() as scene:
        loop = asyncio.get_running_loop()
        client = await scene.client(up[:100])
        server = await scene.accept()
        _, _, at_server, at_client = await asyncio.gather(
            loop.sock_sendall(client, up[100:]),
            loop.sock_sendall(server, down),
            receive(server, len(up)),
            receive(client, len(down)),
        )
        assert at_server == up
        assert at_client == down
        scene.tap.flush()
        observer = scene.observers[0]
        assert observer.fed == {CLIENT: up, SERVER: down}
        assert observer.times == sorted(observer.times)
        assert monotonic() - observer.times[-1] < 60


@on_loop()
async def test_responses_are_forwarded_before_the_observer_and_requests_after() -> None:
    ends: dict[Direction, socket.socket] = {}
    already_there: list[tuple[Direction, bool]] = []

    def observe(direction: Direction, data: bytes) -> None:
        if ends:
            waiting, _, _ = select.select([ends[direction]], [], [], 0.05)
            already_there.append((direction, bool(waiting)))

    async with proxied(lambda: LoggingObserver(on_feed=observe)) as scene:
        client, server = await scene.pair()
        ends |= {CLIENT: server, SERVER: client}
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(server, ANSWER)
        await until(lambda: bool(already_there))
        assert await receive(client, len(ANSWER)) == ANSWER
        await loop.sock_sendall(client, REQUEST)
        assert await receive(server, len(REQUEST)) == REQUEST
    assert already_there == [(SERVER, True), (CLIENT, False)]


@on_loop()
async def test_sockets_have_nodelay_and_keepalive() -> None:
    async with proxied() as scene:
        await scene.pair()
        found = 0
        for each in _sockets_of(scene):
            found += 1
            assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        assert found == 2


def _sockets_of(scene: ProxySetup) -> Iterator[socket.socket]:
    """Yield the proxy's connected sockets, which are in this process, by their ports."""
    server_port = scene.server.getsockname()[1]
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # no socket, or not connected
            each = socket.socket(fileno=int(link.name))
            try:
                if each.family == socket.AF_INET:
                    own, peer = each.getsockname()[1], each.getpeername()[1]
                    if own == scene.tap.port or peer == server_port:
                        yield each
            finally:
                each.detach()


# A slow reader.


def _small_buffers(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)


@on_loop()
async def test_slow_client_slows_the_server_and_gets_all_bytes() -> None:
    block = random.Random(3).randbytes(MIB)
    total = 120 * MIB
    async with proxied(lambda: LoggingObserver(keep=False)) as scene:
        notes = scene.observers
        client, server = await scene.pair()
        _small_buffers(client)
        loop = asyncio.get_running_loop()
        sent = 0

        async def send() -> None:
            nonlocal sent
            while sent < total:
                await loop.sock_sendall(server, block)
                sent += len(block)

        before = _resident()
        sending = asyncio.create_task(send())
        stuck_at, began = await _until_still(lambda: sent), monotonic()
        await asyncio.sleep(0.5)  # the time that the client does not read
        assert sent == stuck_at, "the server is still read from"
        assert stuck_at < 40 * MIB, "only the kernel's buffers hold unread bytes"
        assert _resident() - before < 4 * MIB
        assert {*notes[0].events} == {"blocked"}

        digest = hashlib.sha256()
        got = 0
        while got < total:
            data = await receive(client, min(MIB, total - got))
            digest.update(data)
            got += len(data)
        await sending
        assert digest.digest() == hashlib.sha256(block * (total // MIB)).digest()
        await until(lambda: notes[0].not_read >= 0.5)
        assert notes[0].not_read < monotonic() - began + 1


@on_loop()
async def test_a_response_that_the_kernel_buffers_is_backpressure() -> None:
    size = 200 * 1024
    async with proxied() as scene:
        client, server = await scene.pair()
        _small_buffers(client)
        observer, began = scene.observers[0], monotonic()
        await asyncio.get_running_loop().sock_sendall(server, bytes(size))
        await until(lambda: observer.not_read > 0)
        assert len(observer.fed[SERVER]) == size, "the server is still read from"
        assert observer.not_read < monotonic() - began
        assert await receive(client, size) == bytes(size)


async def _until_still(count: Callable[[], int]) -> int:
    """Return a count once it has not changed for 0.3 s; fail if it always does."""
    async with asyncio.timeout(SOON):
        while True:
            before = count()
            await asyncio.sleep(0.3)  # the period that is measured
            if before == count() > 0:
                return before


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@on_loop()
async def test_slow_server_slows_the_client() -> None:
    async with proxied() as scene:
        client, server = await scene.pair()
        loop = asyncio.get_running_loop()
        body = random.Random(3).randbytes(30 * MIB)
        sending = asyncio.create_task(loop.sock_sendall(client, body))
        held = await _until_still(lambda: len(scene.observers[0].fed[CLIENT]))
        assert not sending.done()
        assert held < len(body)
        assert await receive(server, len(body)) == body
        await sending
        assert scene.observers[0].not_read == 0.0, "it counts slow clients only"


# How connections end: the server must see what it would see without the proxy.

CHUNK = b"data: {}\n\n"
Disconnect = Callable[[socket.socket, ProxySetup], Awaitable[object]]


async def _says_goodbye(client: socket.socket, scene: ProxySetup) -> None:
    await receive(client, 3 * len(CHUNK))
    client.shutdown(socket.SHUT_WR)
    await receive_all(client)


async def _closes(client: socket.socket, scene: ProxySetup) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    await receive(client, 3 * len(CHUNK))
    client.close()


async def _closes_with_unread_data(client: socket.socket, scene: ProxySetup) -> None:
    await until(lambda: select.select([client], [], [], 0)[0])
    client.close()


async def _resets(client: socket.socket, scene: ProxySetup) -> None:
    await receive(client, 3 * len(CHUNK))
    reset(client)


async def _resets_before_any_answer(client: socket.socket, scene: ProxySetup) -> None:
    client.close()


async def _shuts_both_ways(client: socket.socket, scene: ProxySetup) -> None:
    await receive(client, 3 * len(CHUNK))
    client.shutdown(socket.SHUT_RDWR)
    client.close()


DISCONNECTS = [
    _says_goodbye,
    _closes,
    _closes_with_unread_data,
    _resets,
    _resets_before_any_answer,
    _shuts_both_ways,
]


async def _serve(
    server: socket.socket, chunks: int, first: int, go_on: asyncio.Event | None = None
) -> list[str]:
    """Send chunks as a server does; return the client's bytes and end as the server sees them.

    After the ``first`` chunks it waits for ``go_on``.
    """
    loop = asyncio.get_running_loop()
    seen = [(await receive(server, len(REQUEST))).decode()]

    async def read() -> None:
        while data := await loop.sock_recv(server, 65536):
            seen.append(f"{len(data)} bytes")
        seen.append("end")

    measurement = asyncio.create_task(read())
    written_after_the_end = 0
    try:
        for number in range(chunks):
            await asyncio.sleep(0.01)  # the pace of the server
            if number == first and go_on:
                await go_on.wait()
            if measurement.done():
                measurement.result()
                written_after_the_end += 1
            await loop.sock_sendall(server, CHUNK)
        seen.append("all written")
    except (ConnectionResetError, BrokenPipeError):
        seen.append("reset at once" if written_after_the_end <= 3 else "reset late")
    measurement.cancel()
    await asyncio.wait([measurement])
    server.close()
    return seen


@pytest.mark.parametrize("disconnect", DISCONNECTS)
@on_loop()
async def test_server_sees_client_disconnects_as_without_the_proxy(disconnect: Disconnect) -> None:
    async with proxied(lambda: LoggingObserver(live=1)) as scene:
        seen = []
        for direct in (True, False):
            client = await scene.client(REQUEST, direct=direct)
            server = await scene.accept()
            serving = asyncio.create_task(_serve(server, 30, 0))
            await disconnect(client, scene)
            seen.append(await serving)
            client.close()
        assert seen[1] == seen[0]
        reported = scene.observers[0].events
        await until(lambda: scene.tap.traffic().connections == 0)
        if disconnect is _says_goodbye:
            assert reported == ["client ended", "server ended"]
        elif disconnect in (_resets, _closes_with_unread_data):
            assert reported == ["client gone"]
        else:
            assert reported == ["client ended", "client gone"]
        assert scene.observers[0].times == sorted(scene.observers[0].times)


CLIENT_PROGRAM = """
import socket, sys, time
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
client.sendall(bytes.fromhex(sys.argv[2]))
size = int(sys.argv[4])
while len(client.recv(size, socket.MSG_PEEK)) < size:
    time.sleep(0.01)
if sys.argv[3] == "reading":
    client.recv(size)
print("received", flush=True)
while sys.argv[3] == "reading" and client.recv(65536):
    pass
time.sleep(60)
"""


@pytest.mark.parametrize("habit", ["reading", "not"])
@on_loop()
async def test_server_sees_a_killed_client_as_without_the_proxy(habit: str) -> None:
    async with proxied(lambda: LoggingObserver(live=1)) as scene:
        seen = []
        for port in (scene.server.getsockname()[1], scene.tap.port):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                CLIENT_PROGRAM,
                str(port),
                REQUEST.hex(),
                habit,
                str(3 * len(CHUNK)),
                stdout=asyncio.subprocess.PIPE,
            )
            go_on = asyncio.Event()
            serving = asyncio.create_task(_serve(await scene.accept(), 40, 3, go_on))
            assert process.stdout
            await process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            await process.communicate()
            go_on.set()
            seen.append(await serving)
        assert seen[1] == seen[0]
        assert scene.observers[0].events[-1] == "client gone"


@on_loop()
async def test_half_closed_client_gets_the_whole_response() -> None:
    async with proxied() as scene:
        client, server = await scene.pair()
        client.shutdown(socket.SHUT_WR)
        assert await receive_all(server) == (b"", "end")
        await asyncio.get_running_loop().sock_sendall(server, ANSWER)
        server.close()
        assert await receive_all(client) == (ANSWER, "end")
        assert scene.observers[0].events == ["client ended", "server ended"]


@on_loop()
async def test_half_closed_server_gets_the_rest_of_the_request() -> None:
    async with proxied() as scene:
        client, server = await scene.pair()
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(server, ANSWER)
        server.shutdown(socket.SHUT_WR)
        assert await receive_all(client) == (ANSWER, "end")
        await loop.sock_sendall(client, b"rest")
        assert await receive(server, 4) == b"rest"
        client.close()
        assert await receive_all(server) == (b"", "end")
        await until(lambda: scene.tap.traffic().connections == 0)


@on_loop()
async def test_disconnected_client_is_noticed_at_its_first_reset() -> None:
    async with proxied(lambda: LoggingObserver(live=1)) as scene:
        client, server = await scene.pair()
        client.close()
        assert await receive_all(server) == (b"", "end")
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(server, CHUNK)
        await until(lambda: "client gone" in scene.observers[0].events)

        def is_reset() -> bool:
            with suppress(BlockingIOError):
                try:
                    server.send(CHUNK)
                except (ConnectionResetError, BrokenPipeError):
                    return True
            return False

        await until(is_reset)


@on_loop()
async def test_reset_is_noticed_while_the_client_is_blocked() -> None:
    async with proxied(lambda: LoggingObserver(live=1)) as scene:
        client, server = await scene.pair()
        sending = asyncio.create_task(
            asyncio.get_running_loop().sock_sendall(client, bytes(64 * MIB))
        )
        await _until_still(lambda: len(scene.observers[0].fed[CLIENT]))
        assert not sending.done()
        sending.cancel()
        await asyncio.wait([sending])
        reset(client)
        await until(lambda: scene.observers[0].events == ["client gone"])
        _, how = await receive_all(server)
        assert how == "reset"


@pytest.mark.parametrize(
    ("sent", "end"),
    [(ANSWER[:-1], socket.socket.close), (ANSWER[:-1], reset), (ANSWER, socket.socket.close)],
)
@on_loop()
async def test_client_sees_the_end_of_the_server_as_without_the_proxy(
    sent: bytes, end: Callable[[socket.socket], None]
) -> None:
    async with proxied(lambda: LoggingObserver(live=1)) as scene:
        seen = []
        for direct in (True, False):
            client = await scene.client(REQUEST, direct=direct)
            server = await scene.accept()
            await receive(server, len(REQUEST))
            await asyncio.get_running_loop().sock_sendall(server, sent)
            assert await receive(client, len(sent)) == sent  # a reset could overtake it
            end(server)
            seen.append(await receive_all(client))
            client.close()
        assert seen[1] == seen[0]
        assert seen[1] == (b"", "reset" if end is reset else "end")
        first = "server lost" if end is reset else "server ended"
        await until(lambda: scene.observers[0].events[:1] == [first])
        await until(lambda: scene.tap.traffic().connections == 0)


# An observer never affects forwarding.


@on_loop()
async def test_failing_observer_changes_no_bytes_and_logs_no_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(direction: Direction, data: bytes) -> None:
        raise ValueError(f"cannot read {data!r}")

    async with proxied(lambda: LoggingObserver(live=1, on_feed=fail)) as scene:
        for _ in range(3):
            client, server = await scene.pair(REQUEST + b"secret prompt")
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(server, ANSWER * 2)
            assert await receive(client, 2 * len(ANSWER)) == ANSWER * 2
            client.close()
            assert await receive_all(server) == (b"", "end")
        assert [each.events for each in scene.observers] == [["gap"]] * 3
        assert scene.skipped == ["observer_error"] * 3
    records = [r for r in caplog.records if r.name == "tokenslo"]
    (problem,) = [r.getMessage() for r in records if "observing" in r.getMessage()]
    assert "ValueError in test_proxy_tap.py" in problem
    assert "secret" not in caplog.text


@on_loop()
async def test_observer_that_fails_on_a_response_is_removed() -> None:
    calls = itertools.count()

    def fail(direction: Direction, data: bytes) -> None:
        if direction == SERVER:
            next(calls)
            raise RuntimeError

    async with proxied(lambda: LoggingObserver(on_feed=fail)) as scene:
        client, server = await scene.pair()
        for _ in range(5):
            await asyncio.get_running_loop().sock_sendall(server, ANSWER)
            assert await receive(client, len(ANSWER)) == ANSWER
            scene.tap.flush()
        assert next(calls) == 1


@on_loop()
async def test_silent_connections_are_not_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with proxied() as scene:
        silent = [await scene.client() for _ in range(2)]
        pairs = [await scene.pair()]  # accepted after the silent ones
        traffic = scene.tap.traffic()
        assert (traffic.connections, traffic.opened, dict(traffic.refused)) == (1, 1, {})
        for leave, client in zip((socket.socket.close, reset), silent, strict=True):
            leave(client)
        pairs.append(await scene.pair())  # the proxy has handled the ends that came before
        traffic = scene.tap.traffic()
        assert (traffic.connections, traffic.opened, dict(traffic.refused)) == (2, 2, {})
        assert traffic.dropped is None
        assert len(scene.observers) == 2
        for client, _ in pairs:
            client.close()
    assert [r for r in caplog.records if r.levelno >= logging.WARNING and r.name != "asyncio"] == []
