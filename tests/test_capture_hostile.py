"""The capture tap beside forged packets and after dropped ones, on real loopback traffic."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from exporter.protocol.detection import observe
from exporter.protocol.events import SERVER, Observer, ObserverSettings
from exporter.taps.capture import connection_table
from exporter.taps.capture.capture_tap import CaptureTap
from exporter.taps.tap import CaptureSpec
from tests.event_log import WireLog
from tests.packet_capture import need_capture
from tests.tcp_segments import ACK, RST, ipv4, tcp, with_checksums
from tests.test_capture_tap import POST, capturing, connected, listening, port_of


@pytest.fixture(autouse=True)
def _capture() -> None:
    need_capture()


@pytest.fixture
def raw() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as opened:
        yield opened


def sequence(connection: socket.socket, name: str) -> int:
    """Return the next sequence number to be sent or received, as the kernel has it."""
    queues = {"received": 1, "sent": 2}
    connection.setsockopt(socket.IPPROTO_TCP, 19, 1)  # TCP_REPAIR
    try:
        connection.setsockopt(socket.IPPROTO_TCP, 20, queues[name])  # TCP_REPAIR_QUEUE
        number: int = struct.unpack("=I", connection.getsockopt(socket.IPPROTO_TCP, 21, 4))[0]
    finally:
        connection.setsockopt(socket.IPPROTO_TCP, 19, -1)  # off, without a window probe
    return number


@pytest.mark.parametrize("forgery", ["checksum", "challenge"])
async def test_a_forged_reset_ends_nothing(forgery: str, raw: socket.socket) -> None:
    with listening() as server:
        async with capturing(port_of(server)) as captured:
            with connected(server) as (client, answering):
                client.sendall(POST)
                answering.recv(1000)
                answering.sendall(b"one")
                client.recv(10)
                await captured.answered(b"one")
                exact = sequence(answering, "sent")
                seq = exact if forgery == "checksum" else exact + 1000
                forged = with_checksums(
                    ipv4(
                        tcp(port_of(server), client.getsockname()[1], seq=seq, flags=RST | ACK,
                            ack=sequence(client, "sent")),
                        "127.0.0.1", "127.0.0.1",
                    )
                )  # fmt: skip
                if forgery == "checksum":
                    forged = forged[:36] + bytes((forged[36] ^ 1,)) + forged[37:]
                raw.sendto(forged, ("127.0.0.1", 0))
                answering.sendall(b"two")
                assert client.recv(10) == b"two"  # the kernel does not believe it
                watcher = await captured.answered(b"two")
                assert watcher.answered == b"onetwo"
                assert watcher.gaps(SERVER) == 0
    assert ("checksum" in captured.passed) is (forgery == "checksum")


BODY = b'{"text_input": "x", "stream": true}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"text_output": "a"}\n\n'
REQUEST = POST[:-2] + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)


class StreamSockets:
    """A stream between two sockets, a step at a time."""

    def __init__(self, stack: ExitStack, server: socket.socket) -> None:
        self.client = stack.enter_context(socket.create_connection(server.getsockname()))
        self.server = stack.enter_context(server.accept()[0])

    def ask(self) -> None:
        self.client.sendall(REQUEST)
        assert self.server.recv(10_000) == REQUEST

    def begin(self) -> None:
        self._answer(HEAD + CHUNK)

    def end(self) -> None:
        self._answer(CHUNK + b"0\r\n\r\n")

    def _answer(self, data: bytes) -> None:
        self.server.sendall(data)
        assert self.client.recv(10_000) == data

    def close(self) -> None:
        self.client.close()
        self.server.close()


def flood(server: socket.socket) -> None:
    """Fill the ring more than once; nobody reads it meanwhile."""
    with connected(server) as (client, answering):
        for _ in range(120):
            answering.sendall(bytes(60_000))
            left = 60_000
            while left:
                left -= len(client.recv(left))


async def test_every_stream_that_began_before_an_overflow_is_seen_or_lossy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_table, "DOUBT_SECONDS", 0.5)
    log = WireLog()
    passed: list[str] = []

    def new() -> Observer:
        return observe(log, ObserverSettings())

    with listening() as server, listening() as noise, ExitStack() as stack:
        tap = CaptureTap(CaptureSpec("lo", (port_of(server), port_of(noise))), new, passed.append)
        await tap.start()
        before = [StreamSockets(stack, server) for _ in range(36)]
        silent, half, asked, answered, done, goes_on = (
            before[at : at + 6] for at in range(0, 36, 6)
        )
        for stream in half:
            stream.client.sendall(REQUEST[:-5])
        for stream in (*asked, *answered, *done, *goes_on):
            stream.ask()
        for stream in (*answered, *done, *goes_on):
            stream.begin()
        for stream in done:
            stream.end()
        # All of it is read, then the ring overflows while the loop is held up.
        await asyncio.sleep(0.2)
        flood(noise)
        late = [StreamSockets(stack, server) for _ in range(6)]
        for stream in (*silent, *late):
            stream.ask()
        for stream in half:
            stream.client.sendall(REQUEST[-5:])
            assert stream.server.recv(10_000) == REQUEST
        for stream in (*silent, *half, *asked, *late):
            stream.begin()
        for stream in (*silent, *half, *asked, *answered):
            stream.end()
            stream.close()
        await asyncio.sleep(0.2)
        for stream in (*goes_on, *late):
            stream.end()
            stream.close()
        ended = lost = 0
        try:
            async with asyncio.timeout(10):
                while ended + lost < 42:
                    await asyncio.sleep(0.05)
                    ended = sum(event[0] == "ended" for event in log.events)
                    lost = sum(event[0] == "lost" for event in log.events) + tap.traffic().unseen
        finally:
            traffic = tap.traffic()
            await tap.close()
    assert traffic.dropped
    assert (ended, lost) == (12, 30)
