"""The proxy tap: its own responses, limits, start and shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from time import monotonic, process_time, sleep

import grpc
import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from exporter.protocol.detection import PREFACE
from exporter.protocol.events import CLIENT, SERVER, Direction
from exporter.taps.proxy import proxy_tap
from exporter.taps.proxy.connection import MAX_REFUSED_CLIENTS, ClientConnection
from exporter.taps.proxy.context import ProxyLimits
from exporter.taps.proxy.local_responses import UnavailableGrpcServer
from exporter.taps.proxy.proxy_tap import ProxyTap
from exporter.taps.proxy.transports import LARGE_READ
from exporter.taps.tap import ProxySpec
from slos.errors import InvalidFile
from tests.polling import until
from tests.proxy_setup import (
    ANSWER,
    REQUEST,
    SOON,
    LoggingObserver,
    ProxySetup,
    connect,
    on_loop,
    proxied,
    receive,
    receive_all,
    reset,
)

BUSY_BYTES = 8 << 20
UNREACHABLE = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\nContent-Length: 57\r\n"
    b'Connection: close\r\n\r\n{"error":"the server behind the proxy cannot be reached"}'
)


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_tap, "TICK_SECONDS", 0.05)


@on_loop()
async def test_deadlines_survive_a_defect_in_a_tick(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = iter([ZeroDivisionError("oops")])
    tick = ClientConnection.tick

    def failing(self: ClientConnection, now: float) -> None:
        if error := next(calls, None):
            raise error
        tick(self, now)

    monkeypatch.setattr(ClientConnection, "tick", failing)
    async with proxied(limits=ProxyLimits(head_seconds=0.1)) as scene:
        silent = await scene.client(b"POST")
        assert (await receive_all(silent))[0].startswith(b"HTTP/1.1 408 ")
        [task] = scene.tap.tasks
        assert (task.restarts, task.running) == (1, True)


# Refused requests.


@on_loop()
async def test_ambiguous_request_gets_400_and_is_not_forwarded() -> None:
    async with proxied(lambda: LoggingObserver(refusal="ambiguous_length")) as scene:
        client = await scene.client(REQUEST)
        data, how = await receive_all(client)
        assert data.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert data.endswith(b'{"error":"the request is ambiguous"}')
        assert how == "end"
        assert scene.refused() == {"ambiguous_length": 1}
        client.close()
        await until(lambda: scene.tap.traffic().connections == 0)
        scene.server.settimeout(0)
        with pytest.raises(BlockingIOError):
            scene.server.accept()


@pytest.mark.parametrize("answered", [False, True])
@on_loop()
async def test_refused_later_request_resets_the_active_response(
    answered: bool,
) -> None:
    def refuse(direction: Direction, data: bytes) -> None:
        scene.observers[0].live = 1
        if data == b"BAD":
            scene.observers[0].refusal = "ambiguous"

    async with proxied(lambda: LoggingObserver(on_feed=refuse)) as scene:
        client, server = await scene.pair()
        loop = asyncio.get_running_loop()
        if answered:
            await loop.sock_sendall(server, ANSWER[:-1])
            assert await receive(client, len(ANSWER) - 1) == ANSWER[:-1]
        await loop.sock_sendall(client, b"BAD")
        data, how = await receive_all(client)
        assert how == ("reset" if answered else "end")
        assert data.startswith(b"" if answered else b"HTTP/1.1 400 ")
        assert await receive_all(server) == (b"", "reset")
        assert scene.observers[0].events == ["server lost"]
        assert scene.refused() == {"ambiguous": 1}


@on_loop()
async def test_client_that_still_sends_reads_the_refusal() -> None:
    async with proxied(lambda: LoggingObserver(refusal="ambiguous")) as scene:
        client = await scene.client(REQUEST)
        sending = asyncio.create_task(
            asyncio.get_running_loop().sock_sendall(client, bytes(8_000_000))
        )
        await sending
        data, _ = await receive_all(client)
        assert data.startswith(b"HTTP/1.1 400 ")


# An unreachable server.


@on_loop()
async def test_unreachable_server_gives_502_that_the_observer_sees(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with proxied() as scene:
        port = scene.server.getsockname()[1]
        scene.server.close()
        for _ in range(3):
            client = await scene.client(REQUEST)
            assert await receive_all(client) == (UNREACHABLE, "end")
            client.close()
        await until(lambda: scene.tap.traffic().connections == 0)
        for observer in scene.observers:
            assert observer.fed == {CLIENT: REQUEST, SERVER: UNREACHABLE}
            assert observer.events == ["server ended"]
        assert scene.refused() == {"unreachable": 3}
        logged = [r.getMessage() for r in caplog.records if r.name == "tokenslo"]
        assert logged == [f"forwarding to 127.0.0.1:{port}: Connection refused"]


@on_loop()
async def test_client_that_still_sends_reads_the_502() -> None:
    async with proxied() as scene:
        scene.server.close()
        client = await scene.client(REQUEST)
        await asyncio.get_running_loop().sock_sendall(client, bytes(16_000_000))
        assert await receive_all(client) == (UNREACHABLE, "end")


@on_loop()
async def test_connect_timeout_is_an_unreachable_server() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        fill = [await connect(deaf.getsockname()[1])]
        spec = ProxySpec("127.0.0.1", 0, *deaf.getsockname())
        tap = ProxyTap(spec, LoggingObserver, print, limits=ProxyLimits(connect_seconds=0.2))
        await tap.start()
        client = await connect(tap.port)
        await asyncio.get_running_loop().sock_sendall(client, REQUEST)
        assert await receive_all(client) == (UNREACHABLE, "end")
        await tap.close()
        for each in (*fill, client):
            each.close()


@on_loop()
async def test_disconnected_client_gets_no_response() -> None:
    async with proxied(lambda: LoggingObserver(live=1)) as scene:
        client, server = await scene.pair()
        client.close()
        assert await receive_all(server) == (b"", "end")
        server.close()
        await until(lambda: scene.tap.traffic().connections == 0)
        assert scene.observers[0].fed[SERVER] == b""
        assert scene.observers[0].events == ["client ended", "server ended"]
        assert scene.refused() == {}


@on_loop()
async def test_active_response_is_reset_instead_of_answered() -> None:
    """Also if the end of the first response is unknown."""
    async with proxied(lambda: LoggingObserver(inactive=True)) as scene:
        client, server = await scene.pair()
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(server, ANSWER[:-1])
        assert await receive(client, len(ANSWER) - 1) == ANSWER[:-1]
        await loop.sock_sendall(client, REQUEST)
        assert await receive(server, len(REQUEST)) == REQUEST
        reset(server)
        assert await receive_all(client) == (b"", "reset")


@on_loop("uvloop")
async def test_unreachable_server_gives_grpc_unavailable() -> None:
    async with proxied() as scene:
        scene.server.close()
        status = await asyncio.to_thread(_call, scene.tap.port)
        assert status == ("UNAVAILABLE", "the server behind the proxy cannot be reached")
        observer = next(each for each in scene.observers if each.fed[SERVER])
        assert observer.fed[CLIENT].startswith(PREFACE)


def _call(port: int) -> tuple[str, str]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"x", timeout=5)
    return caught.value.code().name, caught.value.details()


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


GRPC_REQUESTS = (
    PREFACE
    + _frame(4, 0, 0, bytes(6))
    + _frame(8, 0, 0, bytes(4))
    + _frame(1, 4, 1, bytes(50))
    + _frame(0, 1, 1, bytes(70))
    + _frame(1, 0, 3, bytes(5))
    + _frame(9, 4, 3, bytes(5))
)


def _frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    frames = []
    while data:
        size = int.from_bytes(data[:3])
        frames.append((data[3], data[4], int.from_bytes(data[5:9]), data[9 : 9 + size]))
        data = data[9 + size :]
    return frames


def test_every_grpc_request_gets_a_response_without_indexed_headers() -> None:
    server = UnavailableGrpcServer()
    server.receive(GRPC_REQUESTS)
    settings, ack, first, second, goaway = _frames(server.response())
    assert settings == (4, 0, 0, b"")
    assert ack == (4, 1, 0, b"")
    assert first[:3] == (1, 5, 1)
    assert second[:3] == (1, 5, 3)
    assert goaway == (7, 0, 0, bytes((0, 0, 0, 3)) + bytes(4))
    decoder = Decoder()
    decoder.header_table_size = 0
    assert decoder.decode(first[3]) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "14"),
        ("grpc-message", "the server behind the proxy cannot be reached"),
    ]
    assert server.responded
    server.receive(_frame(1, 4, 5))
    assert server.response() == b""


@given(cuts=st.lists(st.integers(0, len(GRPC_REQUESTS)), max_size=8).map(sorted))
def test_grpc_requests_are_found_in_any_segmentation(cuts: list[int]) -> None:
    server = UnavailableGrpcServer()
    answer = b""
    for start, end in zip([0, *cuts], [*cuts, len(GRPC_REQUESTS)], strict=True):
        server.receive(GRPC_REQUESTS[start:end])
    answer += server.response()
    whole = UnavailableGrpcServer()
    whole.receive(GRPC_REQUESTS)
    assert answer == whole.response()


@given(data=st.binary(max_size=300))
def test_no_bytes_break_the_unavailable_grpc_server(data: bytes) -> None:
    server = UnavailableGrpcServer()
    server.receive(PREFACE + data)
    server.response()


# Limits.

PING = _frame(6, 0, 0, bytes(8))


@on_loop()
async def test_bytes_before_the_first_grpc_request_are_bounded() -> None:
    loop = asyncio.get_running_loop()
    begin = GRPC_REQUESTS[: len(PREFACE) + 15]
    async with proxied(limits=ProxyLimits(head_bytes=1000)) as scene:
        client, server = await scene.pair(begin)
        await loop.sock_sendall(client, PING * 100)
        assert (await receive_all(client))[1] == "reset"
        assert (await receive_all(server))[1] == "reset"
        assert scene.refused() == {"too_long": 1}
        client, server = await scene.pair(GRPC_REQUESTS)
        await loop.sock_sendall(client, PING * 100)
        assert await receive(server, 100 * len(PING)) == PING * 100
        scene.server.close()
        client = await scene.client(begin)
        await until(lambda: scene.refused() == {"too_long": 1, "unreachable": 1})
        await loop.sock_sendall(client, PING * 100)
        assert (await receive_all(client))[1] == "reset"
        assert scene.refused() == {"too_long": 2, "unreachable": 1}


@pytest.mark.parametrize("direction", [CLIENT, SERVER])
@on_loop("uvloop")
async def test_a_busy_connection_is_read_once_per_iteration_of_the_loop(
    direction: Direction,
) -> None:
    loop = asyncio.get_running_loop()
    reads: Counter[int] = Counter()
    iteration, ended = 0, False

    def count() -> None:
        nonlocal iteration
        iteration += 1
        if not ended:
            loop.call_soon(count)

    def on_feed(fed: Direction, data: bytes) -> None:
        if fed == direction and len(data) >= LARGE_READ:
            reads[iteration] += 1
            sleep(0.002)  # meanwhile the kernel receives more

    async with proxied(lambda: LoggingObserver(keep=False, on_feed=on_feed)) as scene:
        client, server = await scene.pair()
        sender, receiver = (client, server) if direction == CLIENT else (server, client)
        sender.setblocking(True)
        loop.call_soon(count)
        sending = asyncio.create_task(asyncio.to_thread(sender.sendall, bytes(BUSY_BYTES)))
        assert len(await receive(receiver, BUSY_BYTES)) == BUSY_BYTES
        await sending
        ended = True
    assert set(reads.values()) == {1}


@on_loop()
async def test_connections_above_the_limit_get_503_with_retry_after() -> None:
    async with proxied(limits=ProxyLimits(connections=2)) as scene:
        pairs = [await scene.pair() for _ in range(2)]
        third = await scene.client(REQUEST)
        data, how = await receive_all(third)
        assert data.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"\r\nRetry-After: 1\r\n" in data
        assert how == "end"
        third.close()
        assert scene.refused() == {"connections": 1}
        assert scene.tap.traffic().opened == 2
        client, server = pairs[0]
        await asyncio.get_running_loop().sock_sendall(server, ANSWER)
        assert await receive(client, len(ANSWER)) == ANSWER
        client.close()
        assert await receive_all(server) == (b"", "end")
        server.close()
        await until(lambda: scene.tap.traffic().connections == 1)
        await scene.pair()


@on_loop()
async def test_segmented_head_reaches_the_server_once_complete() -> None:
    async with proxied() as scene:
        client = await scene.client()
        loop = asyncio.get_running_loop()
        head, body = REQUEST[:-2], REQUEST[-2:]
        for byte in head[:-1]:
            await loop.sock_sendall(client, bytes((byte,)))
            await asyncio.sleep(0)  # let the proxy read each byte by itself
        await until(lambda: scene.observers and scene.observers[0].fed[CLIENT] == head[:-1])
        scene.server.settimeout(0)
        with pytest.raises(BlockingIOError):
            scene.server.accept()
        await loop.sock_sendall(client, head[-1:])
        server = await scene.accept()
        assert await receive(server, len(head)) == head
        await loop.sock_sendall(client, body)
        assert await receive(server, len(body)) == body
        assert scene.observers[0].fed[CLIENT] == REQUEST


@on_loop()
async def test_endless_head_gets_431() -> None:
    async with proxied(limits=ProxyLimits(head_bytes=1000)) as scene:
        client = await scene.client(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200)
        data, how = await receive_all(client)
        assert data.startswith(b"HTTP/1.1 431 ")
        assert how == "end"
        assert scene.refused() == {"too_long": 1}


@on_loop()
async def test_slow_head_gets_408() -> None:
    async with proxied(limits=ProxyLimits(head_seconds=0.2)) as scene:
        client = await scene.client(b"GET / HTTP/1.1\r\n")
        silent = await scene.client()
        data, _ = await receive_all(client)
        assert data.startswith(b"HTTP/1.1 408 ")
        assert await receive_all(silent) == (b"", "end")
        assert scene.refused() == {"head_time": 1}


@on_loop()
async def test_requests_may_take_longer_than_their_heads() -> None:
    async with proxied(
        lambda: LoggingObserver(live=1), limits=ProxyLimits(head_seconds=0.1)
    ) as scene:
        client, server = await scene.pair()
        await scene.client(b"GET / HTTP/1.1\r\n")  # connects later, so its time is up later
        await until(lambda: scene.refused() == {"head_time": 1})
        await asyncio.get_running_loop().sock_sendall(server, ANSWER)
        assert await receive(client, len(ANSWER)) == ANSWER


@on_loop()
async def test_only_connections_without_a_request_are_idle() -> None:
    async with proxied(limits=ProxyLimits(idle_seconds=0.2)) as scene:
        loop = asyncio.get_running_loop()
        client, server = await scene.pair()
        scene.observers[0].live = 1
        await loop.sock_sendall(server, ANSWER)
        assert await receive(client, len(ANSWER)) == ANSWER
        idle, idle_server = await scene.pair()
        await loop.sock_sendall(idle_server, ANSWER)
        assert await receive_all(idle) == (ANSWER, "end")
        assert scene.tap.traffic().connections == 1
        scene.observers[0].live = 0
        assert await receive_all(client) == (b"", "end")
        assert await receive_all(server) == (b"", "end")


PROGRAM = """
import asyncio, resource, signal, sys, uvloop
from exporter.taps.proxy.proxy_tap import ProxyTap
from exporter.taps.proxy.transports import LARGE_READ
from exporter.taps.tap import ProxySpec
from exporter.protocol.null_observer import NullObserver

async def main():
    hard = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tap = ProxyTap(ProxySpec("127.0.0.1", 0, "127.0.0.1", int(sys.argv[1])), NullObserver, print)
    await tap.start()
    print(tap.port, flush=True)
    if sys.argv[3] == "greedy":
        resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
    count = lambda: print(sum(tap.traffic().refused.values()), flush=True)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, count)
    await asyncio.Event().wait()

uvloop.run(main())
"""


async def start_program(server: socket.socket, files: str, kind: str) -> asyncio.subprocess.Process:
    """Start a proxy in front of a server, with a limit of open files; it prints its port."""
    port = str(server.getsockname()[1])
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, port, files, kind),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )


@pytest.mark.parametrize("kind", ["limited", "greedy"])
@on_loop("uvloop")
async def test_proxy_recovers_after_running_out_of_descriptors(kind: str) -> None:
    async with proxied() as scene:
        process = await start_program(scene.server, "228", kind)
        try:
            assert process.stdout
            async with asyncio.timeout(4 * SOON):
                listening = int(await process.stdout.readline())
            clients = []
            for _ in range(160):
                with suppress(ConnectionResetError):  # there are too many already
                    clients.append(await connect(listening))
            await until(partial(_rests, process.pid))
            for each in clients:
                each.close()
            async with _answering(scene):
                await until(partial(_is_served, listening))
        finally:
            process.kill()
            _, errors = await process.communicate()
        expected = {
            "limited": b"lowered to 50 connections",
            "greedy": b"accepting connections: Too many open files",
        }
        assert expected[kind] in errors


@on_loop("uvloop")
async def test_refused_clients_leave_descriptors_for_those_within_the_limit() -> None:
    async with proxied() as scene:
        process = await start_program(scene.server, "164", "limited")
        clients: list[socket.socket] = []
        try:
            assert process.stdout
            assert process.stderr
            async with asyncio.timeout(4 * SOON):
                listening = int(await process.stdout.readline())
                log = (await process.stderr.readline()).decode()
            limit = int(log.partition("lowered to ")[2].split()[0])
            clients += [await connect(listening) for _ in range(limit + MAX_REFUSED_CLIENTS)]
            refused = await receive(clients[-1], 12)
            assert refused == b"HTTP/1.1 503"
            for client in clients[:limit]:
                await asyncio.get_running_loop().sock_sendall(client, REQUEST)
            for _ in range(limit):
                server = await scene.accept()
                await asyncio.get_running_loop().sock_sendall(server, ANSWER)
            answers = [await receive(client, 12) for client in clients[:limit]]
            assert answers == [b"HTTP/1.1 200"] * limit
        finally:
            process.kill()
            await process.communicate()
            for client in clients:
                client.close()


@on_loop("uvloop")
async def test_clients_without_a_descriptor_are_reset_and_counted() -> None:
    async with proxied() as scene:
        process = await start_program(scene.server, "228", "greedy")
        clients: list[socket.socket] = []
        try:
            assert process.stdout
            async with asyncio.timeout(4 * SOON):
                listening = int(await process.stdout.readline())
            async with _answering(scene):
                for _ in range(40):
                    with suppress(ConnectionResetError):  # refused before it has connected
                        clients.append(await connect(listening))
                for client in clients:
                    with suppress(ConnectionError):
                        await asyncio.get_running_loop().sock_sendall(client, REQUEST)
                answers = [await _first_bytes(client) for client in clients]
                process.send_signal(signal.SIGUSR1)
                async with asyncio.timeout(SOON):
                    counted = int(await process.stdout.readline())
            served = sum(each.startswith(ANSWER) for each in answers)
            assert answers.count(b"") + 40 - len(clients) > 0
            assert counted == 40 - served
        finally:
            process.kill()
            _, errors = await process.communicate()
            for client in clients:
                client.close()
        assert b"accepting connections: Too many open files" in errors


async def _first_bytes(client: socket.socket) -> bytes:
    async with asyncio.timeout(SOON):
        with suppress(ConnectionError):
            return await asyncio.get_running_loop().sock_recv(client, 4096)
    return b""


async def _rests(pid: int) -> bool:
    """Return whether a process uses little CPU for a second, far less than a busy loop would."""
    before = _cpu_seconds(pid)
    await asyncio.sleep(1)  # the period that is measured
    return _cpu_seconds(pid) - before < 0.1


@asynccontextmanager
async def _answering(scene: ProxySetup) -> AsyncIterator[None]:
    """Answer the request of every connection that the proxy opens to the server."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readexactly(len(REQUEST))
            writer.write(ANSWER)
            await writer.drain()

    async with await asyncio.start_server(serve, sock=scene.server):
        yield


async def _is_served(port: int) -> bool:
    """Return whether a new client gets an answer."""
    with suppress(ConnectionError), await connect(port) as client:
        await asyncio.get_running_loop().sock_sendall(client, REQUEST)
        return await receive(client, len(ANSWER)) == ANSWER
    return False


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Begin and end.


@on_loop()
async def test_proxy_without_a_host_listens_on_all_addresses() -> None:
    async with proxied(host="") as scene:
        for host in ("127.0.0.1", "127.0.0.2", "::1"):
            with await connect(scene.tap.port, host) as client:
                await asyncio.get_running_loop().sock_sendall(client, REQUEST)
                server = await scene.accept()
                assert await receive(server, len(REQUEST)) == REQUEST


@on_loop()
async def test_a_port_in_use_is_a_problem_with_the_setting() -> None:
    async with proxied() as scene:
        spec = ProxySpec("127.0.0.1", scene.tap.port, "127.0.0.1", 1)
        with pytest.raises(InvalidFile) as caught:
            await ProxyTap(spec, LoggingObserver, print).start()
    assert str(caught.value) == (
        f"tokenslo exporter: tap: 127.0.0.1:{spec.listen_port} is in use by another program. "
        "Fix: stop it, or choose another port."
    )


@on_loop()
async def test_draining_finishes_responses_and_closes_idle_connections() -> None:
    async with proxied() as scene:
        loop = asyncio.get_running_loop()
        busy, busy_server = await scene.pair()
        idle, idle_server = await scene.pair()
        silent = await scene.client()
        for client, server in ((busy, busy_server), (idle, idle_server)):
            await loop.sock_sendall(server, ANSWER)
            assert await receive(client, len(ANSWER)) == ANSWER
        scene.observers[0].live = 1
        draining = asyncio.create_task(scene.tap.drain(10))
        assert await receive_all(idle) == (b"", "end")
        assert await receive_all(idle_server) == (b"", "end")
        assert await receive_all(silent) == (b"", "end")
        with pytest.raises(ConnectionRefusedError):
            await scene.client()
        await loop.sock_sendall(busy_server, ANSWER)
        assert await receive(busy, len(ANSWER)) == ANSWER
        assert not draining.done()
        scene.observers[0].live = 0
        await asyncio.wait_for(draining, SOON)
        assert await receive_all(busy) == (b"", "end")


@on_loop()
async def test_draining_ends_at_its_timeout_and_closing_resets_the_rest() -> None:
    async with proxied(lambda: LoggingObserver(live=1)) as scene:
        client, server = await scene.pair()
        began = monotonic()
        await asyncio.wait_for(scene.tap.drain(0.3), SOON)
        assert monotonic() - began > 0.25
        assert scene.tap.traffic().connections == 1
        await scene.tap.close()
        assert await receive_all(client) == (b"", "reset")
        assert await receive_all(server) == (b"", "reset")
        assert scene.observers[0].events == ["server lost"]


@on_loop()
async def test_idle_connections_use_no_cpu() -> None:
    async with proxied(lambda: LoggingObserver(live=1)) as scene:
        clients = [await scene.pair() for _ in range(20)]
        for client, _ in clients[:10]:
            client.close()
        await until(lambda: sum("client ended" in each.events for each in scene.observers) == 10)
        began = process_time()
        await asyncio.sleep(0.5)  # the period that is measured
        assert process_time() - began < 0.1
