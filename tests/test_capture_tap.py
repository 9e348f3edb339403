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
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from textwrap import dedent

import pytest

from exporter.protocol.events import CLIENT, SERVER
from exporter.taps.capture import capture_tap
from exporter.taps.capture.capture_tap import CaptureTap
from exporter.taps.capture.connection_table import ConnectionTable
from exporter.taps.capture.packet_filter import packet_filter
from exporter.taps.capture.packet_ring import PacketRing
from exporter.taps.capture.packets import Segment, segment
from exporter.taps.capture.reassembly import HOLE_SECONDS
from exporter.taps.tap import CaptureSpec
from slos.errors import InvalidFile
from tests.packet_capture import need_capture
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
    """Give a client's and its server's end of a connection."""
    with socket.create_connection(server.getsockname()[:2]) as client:
        answering, _ = server.accept()
        with answering:
            answering.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield client, answering


class Captured:
    def __init__(self, interface: str, *ports: int) -> None:
        self.watchers: list[RecordingObserver] = []
        self.passed: list[str] = []
        self.tap = CaptureTap(CaptureSpec(interface, ports), self._new, self.passed.append)

    def _new(self) -> RecordingObserver:
        self.watchers.append(RecordingObserver())
        return self.watchers[-1]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - what is waited for sets no event
                await asyncio.sleep(0.005)

    async def answered(self, data: bytes, number: int = -1) -> RecordingObserver:
        """Wait for the last bytes of an answer; return who watched it."""
        await self.until(
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
async def test_every_byte_once_at_its_time(host: str, interface: str) -> None:
    with suppress_no_ipv6(host), listening(host) as server:
        async with capturing(port_of(server), interface=interface) as captured:
            with connected(server) as (client, answering):
                sent = time.monotonic()
                client.sendall(POST)
                answering.recv(1000)
                took = time.monotonic()
                times = []
                for number in range(20):
                    await asyncio.sleep(0.002)
                    before = time.monotonic()
                    answering.sendall(b"data: %d\n\n" % number)
                    times.append((before, time.monotonic()))
                    client.recv(1000)
                await captured.answered(b"data: 19\n\n")
            await captured.until(lambda: captured.tap.traffic().connections == 0)
    (watcher,) = captured.watchers
    assert watcher.sent == POST
    chunks = [event for event in watcher.events if event[:2] == ("data", SERVER)]
    assert [event[2] for event in chunks] == [b"data: %d\n\n" % number for number in range(20)]
    within(sent, watcher.events[0][3], took)
    for (before, after), event in zip(times, chunks, strict=True):
        within(before, event[3], after)
    assert [event[:2] for event in watcher.events[21:]] == [("closed", SERVER), ("closed", CLIENT)]
    assert captured.tap.traffic().opened == 1
    assert (captured.tap.traffic().dropped, captured.passed) == (0, [])


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
        while select.select([ring], [], [], 0.2)[0]:
            packets, _ = ring.read(100)
            for _, _, start, end, _ in packets:
                found = segment(ring.buffer, start, end)
                assert isinstance(found, Segment)
                flags.append(found.flags)
    # And no bare acknowledgement.
    assert sorted(flags) == sorted([SYN, SYN | ACK, *[PSH | ACK] * 2, *[FIN | ACK] * 2])


async def test_only_its_own_ports_are_looked_at() -> None:
    with listening() as server, listening() as other:
        async with capturing(port_of(server)) as captured:
            for each in (other, server):
                with connected(each) as (client, answering):
                    client.sendall(POST)
                    answering.sendall(b"from %d" % port_of(each))
            await captured.answered(b"from %d" % port_of(server))
            assert len(captured.watchers) == 1


async def test_other_interfaces_are_not_looked_at() -> None:
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
            await asyncio.sleep(0.1)
            assert other.watchers == []


async def test_traffic_that_flows_already_is_joined_at_the_next_request() -> None:
    with listening() as server, connected(server) as (client, answering):
        client.sendall(POST)
        answering.sendall(b"one")
        async with capturing(port_of(server)) as captured:
            answering.sendall(b"two")
            await captured.until(lambda: captured.passed == ["joined"])
            assert client.recv(100)
            client.sendall(POST)
            answering.sendall(b"three")
            watcher = await captured.answered(b"three")
    assert (watcher.sent, watcher.answered) == (POST, b"three")


@pytest.mark.parametrize("who", ["client", "server"])
async def test_resets(who: str) -> None:
    told = {"client": "aborted", "server": "server lost"}[who]
    with listening() as server:
        async with capturing(port_of(server)) as captured:
            with connected(server) as ends:
                ends[0].sendall(POST)
                ends[1].recv(1000)
                leaving = ends[who == "server"]
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                leaving.close()
                await captured.until(
                    lambda: bool(captured.watchers) and captured.watchers[0].events[-1][0] == told
                )


async def test_a_half_close_and_then_a_reset() -> None:
    with listening() as server:
        async with capturing(port_of(server)) as captured:
            with connected(server) as (client, answering):
                client.sendall(POST)
                answering.recv(1000)
                client.shutdown(socket.SHUT_WR)
                answering.sendall(b"one")
                client.recv(100)
                client.close()
                answering.sendall(b"two")  # for nobody
                await captured.until(
                    lambda: (
                        bool(captured.watchers) and captured.watchers[0].events[-1][0] == "aborted"
                    )
                )
    kinds = [event[:2] for event in captured.watchers[0].events[:-1]]
    assert kinds == [("data", CLIENT), ("closed", CLIENT), ("data", SERVER), ("data", SERVER)]


async def test_a_client_that_does_not_read() -> None:
    with listening() as server:
        async with capturing(port_of(server)) as captured:
            with connected(server) as (client, answering):
                answering.setblocking(False)
                with suppress(BlockingIOError):
                    while True:
                        answering.send(bytes(65536))
                        await asyncio.sleep(0.001)
                await asyncio.sleep(0.8)
                deadline = time.monotonic() + 5
                while time.monotonic() < deadline:
                    client.recv(1 << 20)
                    await asyncio.sleep(0.001)
                    if any(event[0] == "blocked" for event in captured.watchers[0].events):
                        break
    seconds = sum(
        event[1]
        for event in captured.watchers[0].events
        if event[0] == "blocked"  # type: ignore
    )
    assert 0.4 < seconds < 2
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
                    await asyncio.sleep(0.01)
                client.shutdown(socket.SHUT_WR)
                await taking
                await captured.until(lambda: captured.watchers[0].events[-1][0] == "closed")
    assert captured.watchers[0].sent == body


async def test_what_the_kernel_dropped_is_counted_and_told() -> None:
    with listening() as server:
        async with capturing(port_of(server)) as captured:
            with connected(server) as (client, answering):
                client.sendall(POST)
                answering.recv(1000)
                for _ in range(100):  # more than the ring holds, and nobody reads it meanwhile
                    answering.sendall(bytes(60_000))
                    left = 60_000
                    while left:
                        left -= len(client.recv(left))
                await asyncio.sleep(0.1)
                resumed = time.monotonic()
                answering.sendall(b"after")
                watcher = await captured.answered(b"after")
                assert time.monotonic() - resumed < HOLE_SECONDS / 2  # nobody waits for it
                assert captured.tap.traffic().dropped
                client.sendall(POST)
                await captured.until(lambda: watcher.sent == 2 * POST)
    assert watcher.gaps(SERVER) >= 1
    assert len(watcher.answered) < 100 * 60_000


async def test_draining_waits_for_the_last_stream() -> None:
    with listening() as server:
        async with capturing(port_of(server)) as captured:
            with connected(server) as (client, _):
                client.sendall(POST)
                await captured.until(lambda: bool(captured.watchers))
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
        await asyncio.sleep(60)
    asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_whatever_becomes_of_the_tap_no_stream_notices(number: signal.Signals) -> None:
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
                    time.sleep(0.001)


@contextmanager
def closing_with(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a process in the end, or when it has taken so long that it never will."""
    limit = threading.Timer(30, process.kill)
    limit.start()
    try:
        yield
    finally:
        limit.cancel()
        process.kill()


# --- what cannot be --------------------------------------------------------------------------


async def test_an_interface_that_is_not_there() -> None:
    with pytest.raises(InvalidFile) as caught:
        await Captured("nope0", 8000).tap.start()
    (problem,) = caught.value.problems
    assert str(problem).startswith(
        "tokenslo exporter: tap: capture=nope0:8000 is on no interface of this machine. "
        "Fix: choose one of lo"
    )
    assert str(problem).endswith(", any.")


def test_an_interface_that_goes_away_and_comes_back() -> None:
    script = """
        import asyncio, ctypes, fcntl, socket, struct
        from exporter.log import set_up
        from exporter.taps.capture.capture_tap import CaptureTap
        from exporter.taps.tap import CaptureSpec
        from tests.recording_observer import RecordingObserver

        assert ctypes.CDLL(None).unshare(0x40000000) == 0  # a network of its own

        def turn(up):
            with socket.socket() as any_socket:
                request = struct.pack("16sH14x", b"lo", up)
                fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS

        async def seen(tap, opened):
            with socket.create_server(("127.0.0.1", 8000)) as server:
                socket.create_connection(("127.0.0.1", 8000)).close()
                async with asyncio.timeout(5):
                    while tap.traffic().opened < opened:
                        await asyncio.sleep(0.01)

        async def main():
            turn(1)
            tap = CaptureTap(CaptureSpec("lo", (8000,)), RecordingObserver, print)
            await tap.start()
            await seen(tap, 1)
            turn(0)
            await asyncio.sleep(1.5)
            turn(1)
            await asyncio.sleep(1.5)
            await seen(tap, 2)
            await tap.close()

        set_up("info")
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
