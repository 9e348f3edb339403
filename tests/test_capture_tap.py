"""The capture tap on real loopback traffic."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from textwrap import dedent

import pytest

from exporter.protocol.events import CLIENT, SERVER
from exporter.taps.capture import capture_tap, connection_table
from exporter.taps.capture.capture_tap import LAG, CaptureTap
from exporter.taps.capture.connection_table import ConnectionTable
from exporter.taps.capture.packet_filter import packet_filter
from exporter.taps.capture.packet_ring import PacketRing
from exporter.taps.capture.packets import Segment, parse_segment
from exporter.taps.tap import CaptureSpec
from slos.errors import InvalidFile
from tests.packet_capture import need_capture
from tests.polling import until
from tests.recording_observer import RecordingObserver
from tests.tcp_segments import ACK, FIN, PSH, SYN

ROOT = Path(__file__).parent.parent
POST = b"POST /v2/models/llm/generate_stream HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(autouse=True)
def _capture() -> None:
    need_capture()


@contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        yield server


@contextmanager
def connected(server: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the client's and the server's end of a connection."""
    with socket.create_connection(server.getsockname()[:2]) as client:
        answering, _ = server.accept()
        with answering:
            answering.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield client, answering


class Captured:
    """A capture tap, its observers and the reasons of what it skipped."""

    def __init__(self, interface: str, *ports: int) -> None:
        self.watchers: list[RecordingObserver] = []
        self.skipped: list[str] = []
        self.tap = CaptureTap(CaptureSpec(interface, ports), self._new, self.skipped.append)

    def _new(self) -> RecordingObserver:
        self.watchers.append(RecordingObserver())
        return self.watchers[-1]

    @property
    def last_event(self) -> str:
        """Return the kind of the last event of the first connection; empty before it."""
        events = self.watchers[0].events if self.watchers else []
        return str(events[-1][0]) if events else ""

    async def answered(self, data: bytes, number: int = -1) -> RecordingObserver:
        """Wait for the last bytes of a response; return the observer of its connection."""
        await until(
            lambda: (
                len(self.watchers) > max(number, 0)
                and self.watchers[number].answered.endswith(data)
            )
        )
        return self.watchers[number]


@asynccontextmanager
async def capturing(*ports: int, interface: str = "lo") -> AsyncIterator[Captured]:
    captured = Captured(interface, *ports)
    await captured.tap.start()
    try:
        yield captured
    finally:
        await captured.tap.close()


def port_of(server: socket.socket) -> int:
    port: int = server.getsockname()[1]
    return port


@pytest.mark.parametrize("interface", ["lo", "any"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_capture_feeds_every_byte_once_with_its_time(host: str, interface: str) -> None:
    with suppress_no_ipv6(host), listening(host) as server:
        async with capturing(port_of(server), interface=interface) as captured:
            with connected(server) as (client, answering):
                sent = time.monotonic()
                client.sendall(POST)
                answering.recv(1000)
                took = time.monotonic()
                times = []
                for number in range(20):
                    await asyncio.sleep(0.002)  # so that chunks have distinct times
                    before = time.monotonic()
                    answering.sendall(b"data: %d\n\n" % number)
                    times.append((before, time.monotonic()))
                    client.recv(1000)
                await captured.answered(b"data: 19\n\n")
            await until(lambda: captured.tap.traffic().connections == 0)
    (watcher,) = captured.watchers
    assert watcher.sent == POST
    chunks = [event for event in watcher.events if event[:2] == ("data", SERVER)]
    assert [event[2] for event in chunks] == [b"data: %d\n\n" % number for number in range(20)]
    within(sent, watcher.events[0][3], took)
    for (before, after), event in zip(times, chunks, strict=True):
        within(before, event[3], after)
    assert [event[:2] for event in watcher.events[21:]] == [("closed", SERVER), ("closed", CLIENT)]
    assert captured.tap.traffic().opened == 1
    assert (captured.tap.traffic().dropped, captured.skipped) == (0, [])


@contextmanager
def suppress_no_ipv6(host: str) -> Iterator[None]:
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    yield


def within(before: float, moment: object, after: float) -> None:
    assert isinstance(moment, float)
    assert before - 1e-4 < moment < after + 1e-4


def test_on_loopback_each_packet_is_read_once() -> None:
    with listening() as server, closing(PacketRing("lo", packet_filter([port_of(server)]))) as ring:
        with connected(server) as (client, answering):
            client.sendall(POST)
            assert answering.recv(1000) == POST
            answering.sendall(b"answer")
            assert client.recv(1000) == b"answer"
        flags = []
        while select.select([ring], [], [], LAG)[0]:
            packets, _ = ring.read(100)
            for _, _, start, end, _ in packets:
                found = parse_segment(ring.buffer, start, end)
                assert isinstance(found, Segment)
                flags.append(found.flags)
    # The filter drops bare acknowledgements.
    assert sorted(flags) == sorted([SYN, SYN | ACK, *[PSH | ACK] * 2, *[FIN | ACK] * 2])


async def test_capture_ignores_other_ports() -> None:
    with listening() as server, listening() as other:
        async with capturing(port_of(server)) as captured:
            for each in (other, server):
                with connected(each) as (client, answering):
                    client.sendall(POST)
                    answering.sendall(b"from %d" % port_of(each))
            await captured.answered(b"from %d" % port_of(server))
            assert len(captured.watchers) == 1


async def test_capture_ignores_other_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_tap, "SWEEP_SECONDS", 0.01)
    others = [name for _, name in socket.if_nameindex() if name != "lo"]
    if not others:
        pytest.skip("loopback is the only interface here")
    with listening() as server:
        port = port_of(server)
        async with capturing(port, interface=others[0]) as other, capturing(port) as captured:
            with connected(server) as (client, answering):
                client.sendall(POST)
                answering.sendall(b"answer")
                await captured.answered(b"answer")
            captured_at = time.monotonic()
            await until(lambda: other.tap.seen_until() > captured_at)
            assert other.watchers == []


async def test_an_established_connection_is_joined_at_the_next_request() -> None:
    with listening() as server, connected(server) as (client, answering):
        client.sendall(POST)
        answering.sendall(b"one")
        async with capturing(port_of(server)) as captured:
            answering.sendall(b"two")
            await until(lambda: captured.skipped == ["joined"])
            assert client.recv(100)
            client.sendall(POST)
            answering.sendall(b"three")
            watcher = await captured.answered(b"three")
    assert (watcher.sent, watcher.answered) == (POST, b"three")


@pytest.mark.parametrize("who", ["client", "server"])
async def test_a_reset_is_reported_by_its_sender(who: str) -> None:
    expected = {"client": "aborted", "server": "server lost"}[who]
    with listening() as server:
        async with capturing(port_of(server)) as captured:
            with connected(server) as ends:
                ends[0].sendall(POST)
                ends[1].recv(1000)
                closing_end = ends[who == "server"]
                closing_end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                closing_end.close()
                await until(lambda: captured.last_event == expected)


async def test_a_half_close_followed_by_a_reset_is_an_abort() -> None:
    with listening() as server:
        async with capturing(port_of(server)) as captured:
            with connected(server) as (client, answering):
                client.sendall(POST)
                answering.recv(1000)
                client.shutdown(socket.SHUT_WR)
                answering.sendall(b"one")
                client.recv(100)
                client.close()
                answering.sendall(b"two")  # which the closed client answers by RST
                await until(lambda: captured.last_event == "aborted")
    kinds = [event[:2] for event in captured.watchers[0].events[:-1]]
    assert kinds == [("data", CLIENT), ("closed", CLIENT), ("data", SERVER), ("data", SERVER)]


STALL_SECONDS = 0.8


async def test_a_client_that_does_not_read_is_backpressure() -> None:
    with listening() as server:
        async with capturing(port_of(server)) as captured:
            with connected(server) as (client, answering):
                began = time.monotonic()
                answering.setblocking(False)
                with suppress(BlockingIOError):
                    while True:
                        answering.send(bytes(65536))
                        await asyncio.sleep(0.001)  # so that the tap keeps up
                await asyncio.sleep(STALL_SECONDS)  # the stall that the tap measures

                def read_until_measured() -> bool:
                    client.recv(1 << 20)
                    (watcher,) = captured.watchers
                    return any(event[0] == "blocked" for event in watcher.events)

                await until(read_until_measured)
                elapsed = time.monotonic() - began
    seconds = sum(
        event[1]
        for event in captured.watchers[0].events
        if event[0] == "blocked"  # type: ignore
    )
    assert STALL_SECONDS / 2 < seconds < elapsed
    assert captured.watchers[0].stops > 0


async def test_large_bodies_in_large_packets() -> None:
    body = os.urandom(3 << 20)
    with listening() as server:
        async with capturing(port_of(server)) as captured:
            with connected(server) as (client, answering):

                def take() -> None:
                    while answering.recv(1 << 20):
                        pass

                taking = asyncio.get_running_loop().run_in_executor(None, take)
                for start in range(0, len(body), 1 << 18):
                    client.sendall(body[start : start + (1 << 18)])
                    await asyncio.sleep(0.01)  # so that the ring does not overflow
                client.shutdown(socket.SHUT_WR)
                await taking
                await until(lambda: captured.last_event == "closed")
    assert captured.watchers[0].sent == body


async def test_packets_that_the_kernel_drops_are_counted_and_make_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Without waiting for the missing bytes: they never come.
    monkeypatch.setattr(connection_table, "HOLE_SECONDS", 3600.0)
    with listening() as server:
        async with capturing(port_of(server)) as captured:
            with connected(server) as (client, answering):
                client.sendall(POST)
                answering.recv(1000)
                for _ in range(100):  # more than the ring holds, without a turn of the loop
                    answering.sendall(bytes(60_000))
                    remaining = 60_000
                    while remaining:
                        remaining -= len(client.recv(remaining))
                sent_at = time.monotonic()
                await until(lambda: captured.tap.seen_until() > sent_at)
                answering.sendall(b"after")
                watcher = await captured.answered(b"after")
                assert captured.tap.traffic().dropped
                client.sendall(POST)
                await until(lambda: watcher.sent == 2 * POST)
    assert watcher.gaps(SERVER) >= 1
    assert len(watcher.answered) < 100 * 60_000


async def test_draining_waits_for_the_last_stream() -> None:
    with listening() as server:
        async with capturing(port_of(server)) as captured:
            with connected(server) as (client, _):
                client.sendall(POST)
                await until(lambda: bool(captured.watchers))
                captured.watchers[0].live = 1
                started = time.monotonic()
                await captured.tap.drain(0.2)
                assert time.monotonic() - started >= 0.2
                asyncio.get_running_loop().call_later(0.1, setattr, captured.watchers[0], "live", 0)
                await asyncio.wait_for(captured.tap.drain(3600), 60)


CAPTURING = """
    import asyncio, sys
    from exporter.taps.capture.capture_tap import CaptureTap
    from exporter.taps.tap import CaptureSpec
    from tests.recording_observer import RecordingObserver
    async def main():
        tap = CaptureTap(CaptureSpec("lo", (int(sys.argv[1]),)), RecordingObserver, print)
        await tap.start()
        print("started", flush=True)
        while not tap.traffic().opened:
            await asyncio.sleep(0.01)
        print("watching", flush=True)
        await asyncio.Event().wait()  # until the test kills it
    asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_tap_does_not_affect_streams(number: signal.Signals) -> None:
    with listening() as server:
        command = [sys.executable, "-c", dedent(CAPTURING), str(port_of(server))]
        with (
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as tap,
            closing_with(tap),
        ):
            assert tap.stdout
            assert tap.stdout.readline() == "started\n"
            with connected(server) as (client, answering):
                client.sendall(POST)
                assert tap.stdout.readline() == "watching\n"
                client.settimeout(5)
                for part in range(200):
                    if part == 100:
                        tap.send_signal(number)
                    answering.sendall(b"data: %d\n\n" % part)
                    assert client.recv(100) == b"data: %d\n\n" % part
                    time.sleep(0.001)  # the pace of a stream


@contextmanager
def closing_with(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a process when the scope exits, or after 30 s."""
    limit = threading.Timer(30, process.kill)
    limit.start()
    try:
        yield
    finally:
        limit.cancel()
        process.kill()


# Interfaces that are missing or down, and defects


async def test_a_missing_interface_is_refused() -> None:
    with pytest.raises(InvalidFile) as caught:
        await Captured("nope0", 8000).tap.start()
    (problem,) = caught.value.problems
    assert str(problem).startswith(
        "tokenslo exporter: tap: capture=nope0:8000 is on no interface of this machine. "
        "Fix: choose one of lo"
    )
    assert str(problem).endswith(", any.")


def test_capture_resumes_after_its_interface_was_down() -> None:
    script = """
        import asyncio, ctypes, fcntl, io, logging, socket, struct, sys
        from exporter.log import LOG, set_up
        from exporter.taps.capture.capture_tap import CaptureTap
        from exporter.taps.tap import CaptureSpec
        from tests.polling import until
        from tests.recording_observer import RecordingObserver

        assert ctypes.CDLL(None).unshare(0x40000000) == 0  # a network of its own

        def turn(up):
            with socket.socket() as any_socket:
                request = struct.pack("16sH14x", b"lo", up)
                fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS

        async def seen(tap, opened):
            with socket.create_server(("127.0.0.1", 8000)) as server:
                socket.create_connection(("127.0.0.1", 8000)).close()
                await until(lambda: tap.traffic().opened >= opened)

        async def main():
            turn(1)
            tap = CaptureTap(CaptureSpec("lo", (8000,)), RecordingObserver, print)
            await tap.start()
            await seen(tap, 1)
            turn(0)
            await until(lambda: "Network is down" in log.getvalue())
            turn(1)
            await until(lambda: "works again" in log.getvalue())
            await seen(tap, 2)
            await tap.close()

        set_up("info")
        log = io.StringIO()
        LOG.addHandler(logging.StreamHandler(log))
        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", dedent(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    went, came = done.stderr.splitlines()
    assert "capture=lo:8000: Network is down" in went
    assert "capture=lo:8000: works again" in came


async def test_a_defect_in_a_sweep_does_not_end_the_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing = iter([ZeroDivisionError("oops")])
    swept = asyncio.Event()

    def sweep(self: ConnectionTable, time: float) -> None:
        if error := next(failing, None):
            raise error
        swept.set()

    monkeypatch.setattr(ConnectionTable, "sweep", sweep)
    monkeypatch.setattr(capture_tap, "SWEEP_SECONDS", 0.01)
    tap = CaptureTap(CaptureSpec("lo", (1,)), RecordingObserver, lambda _: None)
    await tap.start()
    try:
        async with asyncio.timeout(10):
            await swept.wait()
        [task] = tap.tasks
        assert (task.restarts, task.running) == (1, True)
    finally:
        await tap.close()
