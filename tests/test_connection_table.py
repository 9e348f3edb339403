"""Which connections the capture follows and from which byte, by hand-made segments."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from exporter.protocol.detection import PREFACE, observe
from exporter.protocol.events import CLIENT, SERVER, ObserverSettings
from exporter.taps.capture.connection_table import CLOSED_SECONDS, IDLE_SECONDS, ConnectionTable
from exporter.taps.capture.packets import Segment, parse_segment
from tests.event_log import WireLog
from tests.grpc_connection import GrpcConnection, infer_request, stream_response
from tests.recording_observer import RecordingObserver
from tests.tcp_segments import ACK, FIN, PSH, RST, SYN, ipv4, ipv6, tcp

Wrap = Callable[[bytes, str, str], bytes]
POST = b"POST /v2/models/llm/generate_stream HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b'"temperature": 0}'
FRAME = b"\x00\x00\x05\x00\x00\x00\x00\x00\x01hello"


class Net:
    """A captured network with a server at port 8000."""

    def __init__(self, wrap: Wrap = ipv4, most: int = 100) -> None:
        self.watchers: list[RecordingObserver] = []
        self.skipped: list[str] = []
        self.connections = ConnectionTable({8000, 8001}, self._new, self.skipped.append, most)
        self._wrap = wrap
        self._addresses = ("192.0.2.10", "192.0.2.20")
        if wrap is ipv6:
            self._addresses = ("2001:db8::10", "2001:db8::20")
        self.time = 0.0

    def _new(self) -> RecordingObserver:
        self.watchers.append(RecordingObserver())
        return self.watchers[-1]

    def up(
        self,
        seq: int,
        ack: int,
        data: bytes = b"",
        *,
        flags: int = ACK,
        port: int = 40000,
        to: int = 8000,
    ) -> None:
        self._pass(tcp(port, to, seq=seq, ack=ack, flags=flags, data=data), *self._addresses)

    def down(
        self, seq: int, ack: int, data: bytes = b"", *, flags: int = ACK, port: int = 40000
    ) -> None:
        back = reversed(self._addresses)
        self._pass(tcp(8000, port, seq=seq, ack=ack, flags=flags, data=data), *back)

    def opened(self, port: int = 40000) -> None:
        self.up(99, 0, flags=SYN, port=port)
        self.down(499, 100, flags=SYN | ACK, port=port)

    def _pass(self, payload: bytes, source: str, destination: str) -> None:
        self.time += 1
        packet = self._wrap(payload, source, destination)
        found = parse_segment(packet, 0, len(packet))
        assert isinstance(found, Segment)
        self.connections.handle_segment(found, packet[found.start : found.end], self.time)


@pytest.mark.parametrize("wrap", [ipv4, ipv6])
def test_a_connection_is_read_from_its_syn(wrap: Wrap) -> None:
    net = Net(wrap)
    net.opened()
    net.up(100, 500, BODY)  # of any protocol
    net.down(500, 100 + len(BODY), b"answer")
    (watcher,) = net.watchers
    assert (watcher.sent, watcher.answered) == (BODY, b"answer")
    assert (net.connections.opened, net.connections.watched, net.skipped) == (1, 1, [])


def test_a_syn_ack_alone_opens_a_connection() -> None:
    net = Net()
    net.down(499, 100, flags=SYN | ACK)
    net.up(105, 500, b"later")
    net.up(100, 500, b"first")
    assert net.watchers[0].sent == b"firstlater"


def test_a_syn_alone_opens_a_connection() -> None:
    net = Net()
    net.up(99, 0, flags=SYN)
    net.up(105, 500, b"later")
    net.up(100, 500, b"first")
    net.down(500, 110, b"answer")
    assert (net.watchers[0].sent, net.watchers[0].answered) == (b"firstlater", b"answer")


def test_a_repeated_syn_opens_no_other_connection() -> None:
    net = Net()
    net.opened()
    net.up(100, 500, b"first")
    net.opened()
    net.up(105, 500, b"later")
    assert [watcher.sent for watcher in net.watchers] == [b"firstlater"]


def test_a_reused_port_is_another_connection() -> None:
    net = Net()
    net.opened()
    net.up(100, 500, b"one")
    net.watchers[0].live = 1
    net.up(9_999, 0, flags=SYN)
    net.up(10_000, 700, b"two")
    assert [watcher.sent for watcher in net.watchers] == [b"one", b"two"]
    assert net.watchers[0].gaps(SERVER) == 1  # data in flight is lost
    assert net.connections.watched == 1


def test_connections_that_the_server_opens_are_ignored() -> None:
    net = Net()
    net.down(99, 0, flags=SYN)
    net.up(499, 100, flags=SYN | ACK)
    assert net.watchers == []


def test_an_established_connection_is_joined_at_a_request() -> None:
    net = Net()
    net.down(490, 50, b"the rest of an earlier answer")
    net.up(50, 519, BODY)
    net.up(67, 519, BODY)
    net.up(100, 600, POST)
    net.down(590, 100, b"old answer")  # already acknowledged: a retransmission
    net.down(600, 100 + len(POST), b"answer")
    (watcher,) = net.watchers
    assert watcher.events[0] == ("data", CLIENT, POST, 4.0)
    assert (watcher.sent, watcher.answered) == (POST, b"answer")
    assert net.skipped == ["joined"]


def test_an_idle_connection_is_joined_without_a_skip() -> None:
    net = Net()
    net.up(100, 500)
    net.up(100, 500, POST)
    assert (len(net.watchers), net.skipped) == (1, [])


def test_http2_is_joined_at_its_preface_only() -> None:
    net = Net()
    for number in range(100):
        net.up(100 + number * len(FRAME), 500, FRAME)
    assert (net.watchers, net.skipped) == ([], ["joined"])
    net.up(100, 500, PREFACE + FRAME, port=40001)
    assert net.watchers[0].sent == PREFACE + FRAME


def test_a_connection_with_an_inactive_observer_is_joined_again() -> None:
    net = Net()
    net.opened()
    net.watchers[0].inactive = True
    net.up(100, 500, b"\x16\x03\x01")
    net.up(103, 500, BODY)
    net.down(500, 120, b"answer")
    assert net.watchers[0].sent == b"\x16\x03\x01"
    assert (net.connections.watched, net.skipped) == (0, [])
    net.up(120, 506, POST)
    assert net.watchers[1].sent == POST


def test_of_two_server_ports_the_lower_is_the_server() -> None:
    net = Net()
    net.up(100, 500, POST, port=8001)
    net.down(500, 100 + len(POST), b"answer", port=8001)
    assert (net.watchers[0].sent, net.watchers[0].answered) == (POST, b"answer")


@pytest.mark.parametrize("end", ["fins", "reset"])
def test_segments_after_the_end_open_no_connection(end: str) -> None:
    net = Net()
    net.opened()
    net.up(100, 500, POST)
    after = 100 + len(POST)
    if end == "fins":
        net.down(500, after, flags=FIN | ACK)
        net.up(after, 501, flags=FIN | ACK)
    else:
        net.up(after, 500, flags=RST)
    assert net.connections.watched == 0
    events = list(net.watchers[0].events)
    net.up(100, 500, POST)
    net.down(500, after, b"answer")
    assert (net.watchers[0].events, len(net.watchers)) == (events, 1)
    net.connections.sweep(net.time + CLOSED_SECONDS + 1)
    net.up(100, 500, POST)
    assert len(net.watchers) == 2


@pytest.mark.parametrize("direction", [CLIENT, SERVER])
def test_a_connection_with_traffic_in_one_direction_does_not_expire(direction: int) -> None:
    net = Net()
    net.opened()
    net.time += 2 * IDLE_SECONDS
    if direction == CLIENT:
        net.up(100, 500, POST)
    else:
        net.down(500, 100, b"answer")
    net.connections.sweep(net.time + 1)
    assert net.connections.watched == 1


def test_an_idle_connection_is_forgotten() -> None:
    net = Net()
    net.opened()
    net.up(100, 500, POST)
    net.up(50, 500, BODY, port=40001)
    net.connections.sweep(net.time + IDLE_SECONDS / 2)
    net.down(500, 67, b"answer", port=40001)
    assert net.skipped == ["joined"]
    net.time -= 1
    net.watchers[0].live = 1
    assert net.watchers[0].events[1:] == [("expire", net.time + IDLE_SECONDS / 2)]
    net.connections.sweep(net.time + IDLE_SECONDS + 2)
    assert net.watchers[0].events[2][:2] == ("gap", SERVER)
    assert net.connections.watched == 0
    net.up(67, 500, BODY, port=40001)
    assert net.skipped == ["joined", "joined"]


def test_a_grpc_connection_without_a_request_in_flight_is_forgotten_without_a_gap() -> None:
    connection, log = GrpcConnection(), WireLog()
    connection.call(infer_request())
    connection.respond(stream_response(final=True))
    connection.status()
    net = Net()
    net.connections = ConnectionTable(
        {8000}, lambda: observe(log, ObserverSettings()), log.skipped, 100
    )
    net.opened()
    seqs = [100, 500]
    for direction, _, data in connection.lines:
        assert isinstance(data, bytes)
        send = net.up if direction == CLIENT else net.down
        send(seqs[direction], seqs[1 - direction], data)
        seqs[direction] += len(data)
    expected = ["started", "chunk", "ended"]
    assert [event[0] for event in log.events] == expected
    net.connections.forget_all(net.time)
    assert net.connections.watched == 0
    assert [event[0] for event in log.events] == expected


def test_a_sweep_turns_old_holes_into_gaps() -> None:
    net = Net()
    net.opened()
    net.down(506, 100, b"behind")
    net.connections.sweep(net.time + 1)
    assert net.watchers[0].gaps(SERVER) == 0
    net.connections.sweep(net.time + 10)
    assert (net.watchers[0].gaps(SERVER), net.watchers[0].answered) == (1, b"behind")
    net.down(512, 100, b" on")
    assert net.watchers[0].answered == b"behind on"


def test_connections_are_bounded_and_the_least_recent_are_forgotten() -> None:
    net = Net(most=32)
    for port in range(1, 34):
        net.opened(port)
        net.watchers[-1].live = 1
    assert net.connections.watched == 31  # the two least recently seen were forgotten
    assert net.skipped == ["forgotten", "forgotten"]
    assert [watcher.gaps(SERVER) for watcher in net.watchers] == [1, 1] + [0] * 31
    net.up(100, 500, POST, port=33)
    assert net.watchers[-1].sent == POST


def test_closed_connections_are_forgotten_first() -> None:
    net = Net(most=32)
    for port in range(1, 33):
        net.opened(port)
    for port in (31, 32):
        net.up(100, 500, flags=RST, port=port)
    net.opened(33)
    assert (net.connections.watched, net.skipped) == (31, [])


def test_skipped_connections_are_bounded() -> None:
    net = Net(most=32)
    for port in range(1, 200):
        net.up(100, 500, BODY, port=port)
    assert len(net.skipped) == 199
    net.up(117, 500, BODY, port=199)
    assert len(net.skipped) == 199
    net.up(117, 500, BODY, port=1)  # forgotten long ago
    assert len(net.skipped) == 200


def test_a_clients_port_may_be_lower() -> None:
    net = Net()
    net.down(500, 100, b"answer", port=5000)
    net.up(50, 506, BODY, port=5000)
    assert net.skipped == ["joined"]
    net.up(100, 506, POST, port=5000)
    assert net.watchers[0].sent == POST


def test_no_connection_is_opened_while_draining() -> None:
    net = Net()
    net.opened()
    net.watchers[0].live = 3
    net.connections.accepting = False
    net.opened(40001)
    net.up(100, 500, POST, port=40002)
    net.up(100, 500, POST)
    assert [watcher.sent for watcher in net.watchers] == [POST]
    assert net.connections.live == 3
    net.connections.forget_all(9.0)
    assert net.watchers[0].gaps(SERVER) == 1
    assert net.connections.live == 0


def test_urgent_flags_do_not_matter() -> None:
    net = Net()
    net.opened()
    net.up(100, 500, POST, flags=ACK | PSH | 0x20)
    assert net.watchers[0].sent == POST


# Observers with a defect


class Defective(RecordingObserver):
    """An observer that raises in one method, with a prompt in the message."""

    def __init__(self, method: str) -> None:
        super().__init__()
        setattr(self, method, self._raise)

    def _raise(self, *_: object) -> None:
        raise ValueError("secret prompt")


@pytest.mark.parametrize("method", ["feed", "half_closed", "aborted"])
def test_an_observer_error_affects_its_own_connection_only(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    net = Net()
    watchers: list[RecordingObserver] = [
        RecordingObserver(),
        Defective(method),
        RecordingObserver(),
        Defective(method),
    ]
    net.watchers = watchers
    made = iter(watchers)
    net.connections = ConnectionTable({8000}, lambda: next(made), net.skipped.append, 100)
    ports = range(40_000, 40_004)
    for port in ports:
        net.opened(port)
    for port in ports:
        net.up(100, 500, POST, port=port)
        net.down(500, 100 + len(POST), b"answer", port=port)
    for port in ports:
        net.up(100 + len(POST), 506, flags=RST if method == "aborted" else ACK | FIN, port=port)
    assert [watcher.answered for watcher in watchers[::2]] == [b"answer"] * 2
    end = "aborted" if method == "aborted" else "closed"
    assert [watcher.events[-1][0] for watcher in watchers[::2]] == [end] * 2
    assert [watcher.events[-1][0] for watcher in watchers[1::2]] == ["gap"] * 2
    assert net.skipped.count("observer_error") == 2
    assert len(caplog.records) == 1
    assert "ValueError in test_connection_table.py" in caplog.text
    assert "secret" not in caplog.text


def first_is_defective(method: str) -> tuple[Net, list[RecordingObserver]]:
    """Return a network whose first observer fails in a method, and its observers."""
    net = Net()
    made = iter([Defective(method), RecordingObserver()])
    watchers: list[RecordingObserver] = []

    def new() -> RecordingObserver:
        watchers.append(next(made))
        return watchers[-1]

    net.connections = ConnectionTable({8000}, new, net.skipped.append, 100)
    return net, watchers


def test_an_observer_error_in_a_sweep_does_not_affect_other_connections() -> None:
    net, watchers = first_is_defective("expire")
    for port in (40_000, 40_001):
        net.opened(port)
    net.connections.sweep(net.time)
    assert watchers[1].events == [("expire", net.time)]
    assert net.skipped == ["observer_error"]
    assert net.connections.watched == 1


def test_an_observer_error_while_forgetting_does_not_affect_other_connections() -> None:
    net, watchers = first_is_defective("gap")
    for port in (40_000, 40_001):
        net.opened(port)
        watchers[-1].live = 1
    net.connections.forget_all(net.time)
    assert watchers[1].gaps(SERVER) == 1
    assert net.skipped == ["observer_error"]
