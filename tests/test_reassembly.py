"""Reassemble TCP streams from segments in any order, with duplicates and losses."""

from __future__ import annotations

import gc
import re
import weakref
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.protocol.events import CLIENT, SERVER, Direction
from exporter.taps.capture import reassembly
from exporter.taps.capture.reassembly import CaptureState, TcpConnection
from tests.recording_observer import RecordingObserver
from tests.tcp_segments import ACK, FIN, RST

MASK = 0xFFFFFFFF
# Where sequence numbers wrap around in the midst of a test, and where they do not.
STARTS = st.sampled_from([0, 1000, MASK - 30, MASK, 0x7FFFFFF0])


@dataclass
class Wire:
    """A connection, and the segments of it by their places in the streams."""

    client_start: int = 1000
    server_start: int = MASK - 20
    watcher: RecordingObserver = field(default_factory=RecordingObserver)
    capture_state: CaptureState = field(default_factory=CaptureState)
    time: float = 0.0

    def __post_init__(self) -> None:
        self.connection = TcpConnection(self.watcher, self.capture_state)
        self.connection.client.begin(self.client_start, 0.0)
        self.connection.server.begin(self.server_start, 0.0)
        self.known = [0, 0]

    def send(
        self,
        direction: Direction,
        place: int,
        data: bytes = b"",
        *,
        time: float | None = None,
        ack: int | None = None,
        flags: int = ACK,
        window: int = 500,
    ) -> None:
        """``ack`` is a place in the other stream; without it, the furthest one seen in order."""
        self.time = self.time + 1 if time is None else time
        half, start, back = (
            (self.connection.client, self.client_start, self.server_start)
            if direction == CLIENT
            else (self.connection.server, self.server_start, self.client_start)
        )
        known = (half.peer.expected - back) & MASK if ack is None else ack
        seq = (start + place) & MASK
        half.handle_segment(seq, (back + known) & MASK, flags, window, data, self.time)

    def request(self, place: int, data: bytes = b"", **other: float | None) -> None:
        self.send(CLIENT, place, data, **other)

    def answer(self, place: int, data: bytes = b"", **other: float | None) -> None:
        self.send(SERVER, place, data, **other)


# --- in order ----------------------------------------------------------------------------------


def test_request_and_response_are_reassembled() -> None:
    wire = Wire()
    wire.request(0, b"POST")
    wire.answer(0, b"data: 1")
    wire.answer(7, b"data: 2")
    wire.request(4, flags=ACK | FIN)
    wire.answer(14, b"end", flags=ACK | FIN)
    assert wire.watcher.events == [
        ("data", CLIENT, b"POST", 1.0),
        ("data", SERVER, b"data: 1", 2.0),
        ("data", SERVER, b"data: 2", 3.0),
        ("closed", CLIENT, 4.0),
        ("data", SERVER, b"end", 5.0),
        ("closed", SERVER, 5.0),
    ]
    assert wire.connection.closed


def test_nothing_is_reported_after_the_end() -> None:
    wire = Wire()
    wire.request(0, flags=ACK | FIN)
    wire.answer(0, flags=ACK | FIN)
    before = list(wire.watcher.events)
    wire.request(1, b"more")
    wire.answer(1, b"more")
    wire.request(1, flags=RST)
    wire.connection.forget(9.0)
    assert wire.watcher.events == before


@pytest.mark.parametrize(
    ("direction", "outcome"),
    [(CLIENT, "aborted"), (SERVER, "server lost")],
    ids=["client", "server"],
)
def test_a_reset(direction: Direction, outcome: str) -> None:
    wire = Wire()
    wire.request(0, b"POST")
    wire.answer(0, b"data")
    wire.send(direction, 4, flags=RST, window=0)
    assert wire.watcher.events[2:] == [(outcome, 3.0)]
    assert wire.connection.closed


def test_a_reset_after_the_client_closed_its_half() -> None:
    wire = Wire()
    wire.request(0, b"POST")
    wire.request(4, flags=ACK | FIN)
    wire.answer(0, b"data")
    wire.request(5, flags=RST, window=0)
    assert wire.watcher.events[1:] == [
        ("closed", CLIENT, 2.0),
        ("data", SERVER, b"data", 3.0),
        ("aborted", 4.0),
    ]


def test_data_after_a_fin_is_ignored() -> None:
    wire = Wire()
    wire.request(0, flags=ACK | FIN)
    wire.request(1, b"more")
    wire.answer(0, b"data")
    assert wire.watcher.events == [("closed", CLIENT, 1.0), ("data", SERVER, b"data", 3.0)]


@pytest.mark.parametrize("direction", [CLIENT, SERVER])
@pytest.mark.parametrize("away", [-5, -1, 1, 2, 1000, 1 << 16, 1 << 29, 1 << 31])
def test_a_reset_with_another_sequence_number_is_forged(direction: Direction, away: int) -> None:
    wire = Wire()
    wire.request(0, b"POST")
    wire.answer(0, b"data")
    for flags in (RST, RST | ACK):
        wire.send(direction, 4 + away, flags=flags, window=0, ack=1000)
    wire.request(4, b"more")
    wire.answer(4, b"more")
    assert wire.watcher.carried(CLIENT) == [b"POSTmore"]
    assert wire.watcher.carried(SERVER) == [b"datamore"]
    wire.send(direction, 8, flags=RST, window=0)
    assert wire.connection.closed


def test_the_reset_that_answers_a_challenge_ends_the_connection() -> None:
    wire = Wire()
    wire.request(0, b"POST")
    wire.request(400, flags=RST, window=0)
    assert not wire.connection.closed
    wire.request(4, flags=RST, window=0)
    assert wire.watcher.events[-1] == ("aborted", 3.0)


@pytest.mark.parametrize("place", [4, 5])
def test_a_reset_beside_a_fin_is_exact(place: int) -> None:
    wire = Wire()
    wire.request(0, b"POST", flags=ACK | FIN)
    wire.request(place, flags=RST, window=0)
    assert wire.watcher.events[-1] == ("aborted", 2.0)


def test_a_reset_at_the_end_of_what_is_held_is_exact() -> None:
    wire = Wire()
    wire.answer(0, b"data")
    wire.answer(8, b"held")
    wire.answer(12, flags=RST, window=0)
    assert wire.connection.closed
    assert wire.watcher.gaps(SERVER) == 1


@pytest.mark.parametrize(("ack", "closes"), [(0, True), (1, False), (None, False)])
def test_a_refusal_acknowledges_the_opening(ack: int | None, closes: bool) -> None:
    watcher = RecordingObserver()
    connection = TcpConnection(watcher, CaptureState())
    connection.client.begin(1000, 0.0)
    flags = RST if ack is None else RST | ACK
    connection.server.handle_segment(0, 1000 + (ack or 0), flags, 0, b"", 1.0)
    assert connection.closed is closes


def test_a_reset_after_dropped_packets_loses_what_is_under_way() -> None:
    wire = Wire()
    wire.request(0, b"POST")
    wire.watcher.live = 1
    wire.capture_state.dropped_at = 1.5
    wire.answer(400, flags=RST, window=0)
    assert wire.watcher.events[1:] == [("gap", SERVER, 2.0)]
    assert wire.connection.closed


def test_reset_from_the_past_is_ignored() -> None:
    wire = Wire()
    wire.request(0, b"POST")
    wire.request(2, flags=RST)
    wire.answer(0, b"data")
    assert wire.watcher.answered == b"data"


# --- out of order ------------------------------------------------------------------------------


def test_bytes_behind_a_hole_have_the_time_when_it_is_filled() -> None:
    wire = Wire()
    wire.request(2, b"ST", time=1.0)
    wire.request(4, b" /", time=2.0)
    wire.request(0, b"PO", time=3.0)
    assert wire.watcher.events == [
        ("data", CLIENT, b"PO", 3.0),
        ("data", CLIENT, b"ST", 3.0),
        ("data", CLIENT, b" /", 3.0),
    ]


def test_fin_waits_for_holes() -> None:
    wire = Wire()
    wire.request(4, flags=ACK | FIN)
    assert wire.watcher.events == []
    wire.request(0, b"POST")
    assert wire.watcher.events == [("data", CLIENT, b"POST", 2.0), ("closed", CLIENT, 2.0)]


def test_repeated_segment_is_reported_once() -> None:
    wire = Wire()
    for _ in range(3):
        wire.request(0, b"POST")
        wire.request(3, b"T")
        wire.request(4, flags=ACK | FIN)
    assert wire.watcher.events == [("data", CLIENT, b"POST", 1.0), ("closed", CLIENT, 3.0)]


def test_a_fin_may_come_with_data_new_and_old() -> None:
    wire = Wire()
    wire.request(0, b"POST", flags=ACK | FIN)
    wire.answer(0, b"data")
    wire.answer(2, b"ta", flags=ACK | FIN)
    assert wire.watcher.events == [
        ("data", CLIENT, b"POST", 1.0),
        ("closed", CLIENT, 1.0),
        ("data", SERVER, b"data", 2.0),
        ("closed", SERVER, 3.0),
    ]


def test_retransmission_may_add_the_fin() -> None:
    wire = Wire()
    wire.request(4, b" /")
    wire.request(4, b" /", flags=ACK | FIN)
    wire.request(4, b" /")
    wire.request(0, b"POST")
    assert wire.watcher.carried(CLIENT) == [b"POST /"]
    assert wire.watcher.events[-1] == ("closed", CLIENT, 4.0)


def test_new_part_of_an_overlap_is_reported() -> None:
    wire = Wire()
    wire.request(0, b"POST")
    wire.request(2, b"ST / ")
    assert wire.watcher.carried(CLIENT) == [b"POST / "]


def test_keepalive_is_ignored() -> None:
    wire = Wire()
    wire.request(0, b"POST")
    wire.request(3, b"\x00")
    wire.request(4, b" /")
    assert wire.watcher.carried(CLIENT) == [b"POST /"]


def test_segment_outside_any_window_belongs_to_another_connection() -> None:
    wire = Wire()
    wire.request(0, b"POST")
    wire.request(1 << 30 | 5, b"nonsense")
    wire.request(4, flags=RST, ack=0)
    assert wire.watcher.events == [("data", CLIENT, b"POST", 1.0), ("aborted", 3.0)]


STREAM = bytes(range(65, 65 + 60))


@st.composite
def deliveries(draw: st.DrawFn) -> list[tuple[int, bytes]]:
    """STREAM in pieces that cover it all, some twice and across each other, in any order."""
    cuts = sorted({0, len(STREAM), *draw(st.lists(st.integers(1, len(STREAM) - 1), max_size=8))})
    spans = list(pairwise(cuts))
    spans += draw(
        st.lists(
            st.tuples(st.integers(0, 59), st.integers(0, 59)).map(
                lambda ends: (min(ends), max(ends) + 1)
            ),
            max_size=6,
        )
    )
    return [(start, STREAM[start:end]) for start, end in draw(st.permutations(spans))]


@given(deliveries(), STARTS, st.sampled_from([CLIENT, SERVER]))
def test_any_order_repetition_and_overlap_gives_the_stream(
    placed: list[tuple[int, bytes]], start: int, direction: Direction
) -> None:
    wire = Wire(client_start=start, server_start=start)
    for place, data in placed:
        wire.send(direction, place, data)
    assert wire.watcher.carried(direction) == [STREAM]
    assert wire.watcher.gaps(direction) == 0
    assert wire.capture_state.held == 0
    times = [event[3] for event in wire.watcher.events]
    assert times == sorted(times)


# --- lost --------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), min_size=2, max_size=15), STARTS)
def test_each_hole_is_one_gap_and_no_byte_is_wrong(seen: list[bool], start: int) -> None:
    wire = Wire(server_start=start)
    width = 4
    for number, is_seen in enumerate(seen):
        if is_seen:
            place = number * width
            wire.answer(place, STREAM[place : place + width])
    wire.connection.skip_holes(before=100.0)
    runs = [b""]
    for number, is_seen in enumerate(seen):
        if is_seen:
            runs[-1] += STREAM[number * width : (number + 1) * width]
        elif runs[-1] or number == 0:
            runs.append(b"")
    expected = [run for run in runs if run]
    assert wire.watcher.carried(SERVER) == expected
    holes = "".join("x" if is_seen else " " for is_seen in seen)
    assert wire.watcher.gaps(SERVER) == len(re.findall(" +x", holes))
    assert wire.capture_state.held == 0


def test_hole_expires_and_later_bytes_keep_their_times() -> None:
    wire = Wire()
    wire.answer(0, b"one", time=1.0)
    wire.answer(6, b"three", time=2.0)
    wire.answer(11, b"four", time=3.0)
    wire.connection.skip_holes(before=2.0)
    assert wire.watcher.events[1:] == []
    wire.connection.skip_holes(before=2.1)
    assert wire.watcher.events[1:] == [
        ("gap", SERVER, 2.0),
        ("data", SERVER, b"three", 2.0),
        ("data", SERVER, b"four", 3.0),
    ]
    wire.answer(3, b"two", time=4.0)  # too late
    wire.answer(15, b"five", time=5.0)
    assert wire.watcher.events[4:] == [("data", SERVER, b"five", 5.0)]


def test_segments_dropped_by_the_kernel_are_not_awaited() -> None:
    wire = Wire()
    wire.answer(0, b"one", time=1.0)
    wire.capture_state.dropped_at = 2.0
    wire.answer(6, b"three", time=2.0)
    wire.answer(14, b"five", time=2.5)  # nothing was dropped since
    assert wire.watcher.events[1:] == [("gap", SERVER, 2.0), ("data", SERVER, b"three", 2.0)]


def test_acknowledgement_of_unseen_bytes_reports_the_loss() -> None:
    wire = Wire()
    wire.request(0, b"ask")
    wire.answer(0, b"one")
    wire.request(3, b"next", ack=6)
    wire.answer(6, b"three")
    assert wire.watcher.events[2:] == [
        ("gap", SERVER, 3.0),
        ("data", CLIENT, b"next", 3.0),
        ("data", SERVER, b"three", 4.0),
    ]


def test_acknowledgement_drops_the_holes_before_it() -> None:
    wire = Wire()
    wire.answer(0, b"one", time=1.0)
    wire.answer(6, b"three", time=2.0)
    wire.answer(15, b"five", time=3.0)
    wire.request(0, b"half way", ack=12, time=4.0)
    wire.request(8, b"all", ack=19, time=5.0)
    assert wire.watcher.events[1:] == [
        ("gap", SERVER, 2.0),
        ("data", SERVER, b"three", 2.0),
        ("data", CLIENT, b"half way", 4.0),
        ("gap", SERVER, 4.0),
        ("data", SERVER, b"five", 4.0),
        ("data", CLIENT, b"all", 5.0),
    ]


def test_reset_drops_every_hole() -> None:
    wire = Wire()
    wire.answer(2, b"b")
    wire.answer(4, b"d")
    wire.request(0, flags=RST, ack=0)
    kinds = [event[0] for event in wire.watcher.events]
    assert kinds == ["gap", "data", "gap", "data", "aborted"]


def test_times_never_go_back() -> None:
    wire = Wire()
    wire.answer(3, b"two", time=1.0)
    wire.request(0, b"POST", time=2.0)
    wire.connection.skip_holes(before=9.0)
    assert wire.watcher.events == [
        ("data", CLIENT, b"POST", 2.0),
        ("gap", SERVER, 2.0),
        ("data", SERVER, b"two", 2.0),
    ]


@pytest.mark.parametrize(("bound", "value"), [("MAX_HELD_SEGMENTS", 3), ("MAX_HELD_BYTES", 1000)])
def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, bound: str, value: int) -> None:
    monkeypatch.setattr(reassembly, bound, value)
    wire = Wire()
    for place in (2, 4, 6):
        wire.answer(place, b"x")
    assert wire.watcher.events == []
    wire.answer(8, b"y")
    assert wire.watcher.carried(SERVER) == [b"x"]
    assert wire.watcher.gaps(SERVER) == 1
    wire.answer(10, b"x")
    assert wire.watcher.carried(SERVER) == [b"x", b"x"]


def test_all_connections_share_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassembly, "MAX_TOTAL_HELD_BYTES", 1000)
    one = Wire()
    other = Wire(capture_state=one.capture_state)
    for place in (2, 4, 6):
        one.answer(place, b"x")
    other.answer(2, b"x")
    assert (one.watcher.events, other.watcher.carried(SERVER)) == ([], [b"x"])
    one.connection.forget(9.0)
    assert one.capture_state.held == 0


def test_repetitions_behind_a_hole_are_held_once() -> None:
    wire = Wire()
    for _ in range(1000):
        wire.answer(5, b"again")
    assert wire.capture_state.held < 1000
    wire.answer(0, b"first")
    assert wire.watcher.carried(SERVER) == [b"firstagain"]


@pytest.mark.parametrize("live", [0, 1])
def test_forgetting_a_connection_is_a_gap_only_with_requests_in_flight(live: int) -> None:
    wire = Wire()
    wire.request(0, b"POST")
    wire.watcher.live = live
    wire.connection.forget(2.0)
    assert wire.watcher.events[1:] == [("gap", SERVER, 2.0)] * live
    assert wire.connection.closed


def test_closed_connections_are_removed_directly() -> None:
    wire = Wire()
    there = weakref.ref(wire.watcher)
    gc.disable()
    try:
        wire.connection.break_cycle()
        del wire
        assert there() is None
    finally:
        gc.enable()


# --- clients that do not read --------------------------------------------------------------------


def test_client_is_blocked_until_its_window_opens() -> None:
    wire = Wire()
    wire.answer(0, b"one", time=1.0)
    wire.request(0, window=0, ack=3, time=2.0)
    wire.request(0, window=0, ack=3, time=3.0)  # the answer to a probe
    wire.answer(3, b"two", time=4.5)
    wire.answer(6, b"three", time=5.0)
    assert wire.watcher.events[1:] == [
        ("blocked", 2.5),
        ("data", SERVER, b"two", 4.5),
        ("data", SERVER, b"three", 5.0),
    ]


@pytest.mark.parametrize("flags", [ACK, RST])
def test_client_is_blocked_until_a_window_update_or_its_end(flags: int) -> None:
    wire = Wire()
    wire.request(0, window=0, time=1.0)
    wire.answer(-3 & MASK, b"old", time=2.0)
    wire.request(0, b"x" if flags == ACK else b"", flags=flags, time=3.0)
    assert wire.watcher.events[0] == ("blocked", 2.0)


def test_a_server_without_room_is_not_a_slow_client() -> None:
    wire = Wire()
    wire.answer(0, b"one", window=0)
    wire.answer(3, b"two")
    wire.request(0, b"POST", window=500)
    assert [event[0] for event in wire.watcher.events] == ["data", "data", "data"]


# --- anything ----------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.sampled_from([CLIENT, SERVER]),
            st.one_of(st.integers(0, 40), st.integers(0, MASK)),
            st.one_of(st.integers(0, 40), st.integers(0, MASK)),
            st.sampled_from([ACK, ACK, ACK, ACK | FIN, RST, 0, 0xFF & ~2]),
            st.sampled_from([500, 0]),
            st.binary(max_size=20),
        ),
        max_size=40,
    )
)
def test_no_segments_break_reassembly(
    segments: list[tuple[Direction, int, int, int, int, bytes]],
) -> None:
    wire = Wire()
    for direction, place, ack, flags, window, data in segments:
        wire.send(direction, place, data, ack=ack, flags=flags, window=window)
    wire.connection.skip_holes(before=1e9)
    wire.connection.forget(1e9)
    assert wire.capture_state.held == 0
    times = [
        event[-1] for event in wire.watcher.events if event[0] != "blocked" and event[-1] != 1e9
    ]
    assert times == sorted(times)
