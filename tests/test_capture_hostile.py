"""The capture tap with forged and dropped packets, on real loopback traffic."""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
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
from tests.polling import until
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
    """Return the kernel's next sequence number to be sent or received."""
    queues = {"received": 1, "sent": 2}
    connection.setsockopt(socket.IPPROTO_TCP, 19, 1)  # TCP_REPAIR
    try:
        connection.setsockopt(socket.IPPROTO_TCP, 20, queues[name])  # TCP_REPAIR_QUEUE
        number: int = struct.unpack("=I", connection.getsockopt(socket.IPPROTO_TCP, 21, 4))[0]
    finally:
        connection.setsockopt(socket.IPPROTO_TCP, 19, -1)  # off, without a window probe
    return number


@pytest.mark.parametrize("forgery", ["checksum", "challenge"])
async def test_a_forged_reset_does_not_end_a_stream(forgery: str, raw: socket.socket) -> None:
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
                assert client.recv(10) == b"two"  # the kernel ignored the reset
                watcher = await captured.answered(b"two")
                assert watcher.answered == b"onetwo"
                assert watcher.gaps(SERVER) == 0
    assert ("checksum" in captured.skipped) is (forgery == "checksum")


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

    def send_request(self) -> None:
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


async def everything_read(tap: CaptureTap) -> None:
    """Wait until the tap has read all packets sent so far."""
    now = time.monotonic()
    await until(lambda: tap.seen_until() > now)


def flood(server: socket.socket) -> None:
    """Send more than the ring holds, without a turn of the event loop."""
    with connected(server) as (client, answering):
        for _ in range(120):
            answering.sendall(bytes(60_000))
            remaining = 60_000
            while remaining:
                remaining -= len(client.recv(remaining))


async def test_every_stream_before_an_overflow_is_observed_or_counted_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_table, "SILENCE_SECONDS", 0.5)
    log = WireLog()
    skipped: list[str] = []

    def new() -> Observer:
        return observe(log, ObserverSettings())

    with listening() as server, listening() as noise, ExitStack() as stack:
        tap = CaptureTap(CaptureSpec("lo", (port_of(server), port_of(noise))), new, skipped.append)
        await tap.start()
        before = [StreamSockets(stack, server) for _ in range(36)]
        silent, half, requested, answered, done, continuing = (
            before[at : at + 6] for at in range(0, 36, 6)
        )
        for stream in half:
            stream.client.sendall(REQUEST[:-5])
        for stream in (*requested, *answered, *done, *continuing):
            stream.send_request()
        for stream in (*answered, *done, *continuing):
            stream.begin()
        for stream in done:
            stream.end()
        await everything_read(tap)
        flood(noise)  # overflows the ring, as the loop is held up
        late = [StreamSockets(stack, server) for _ in range(6)]
        for stream in (*silent, *late):
            stream.send_request()
        for stream in half:
            stream.client.sendall(REQUEST[-5:])
            assert stream.server.recv(10_000) == REQUEST
        for stream in (*silent, *half, *requested, *late):
            stream.begin()
        for stream in (*silent, *half, *requested, *answered):
            stream.end()
            stream.close()
        await everything_read(tap)
        for stream in (*continuing, *late):
            stream.end()
            stream.close()

        def ends() -> tuple[int, int]:
            kinds = Counter(event[0] for event in log.events)
            return kinds["ended"], kinds["lost"] + tap.traffic().unseen

        try:
            await until(lambda: sum(ends()) >= 42)
            assert ends() == (12, 30)
            assert tap.traffic().dropped
        finally:
            await tap.close()
