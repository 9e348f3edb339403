"""HTTP/2 as seen from the middle: frames, headers, streams, and whatever else may come."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from itertools import repeat

import pytest
from hpack import Decoder, Encoder, NeverIndexedHeaderTuple
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.protocol.detection import PREFACE
from exporter.protocol.events import CLIENT, SERVER, Direction, ObserverSettings
from exporter.protocol.grpc_calls import MAX_REQUESTS
from exporter.protocol.http2 import (
    FIELD_BURST,
    FIELDS_PER_SECOND,
    LARGE_DATA,
    MAX_CALLS,
    Http2Observer,
)
from exporter.protocol.http2_frames import MAX_FIELDS, MAX_HEADER_BYTES
from tests.event_log import Line, WireLog, show
from tests.grpc_connection import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INFER,
    PADDED,
    PING,
    PRIORITY,
    PUSH,
    RST,
    SETTINGS,
    STREAM_INFER,
    WINDOW,
    WITH_PRIORITY,
    GrpcConnection,
    capture,
    captures,
    enveloped,
    frame,
    infer_request,
    observe_lines,
    split,
    stream_response,
)

CALL = {":method": "POST", ":path": STREAM_INFER, "content-type": "application/grpc"}


def conversation() -> GrpcConnection:
    """Return a connection with every kind of frame in it, in every form that they may have."""
    connection = GrpcConnection(ObserverSettings(tenant_header="x-team", salt=b"salt"))
    connection.send(
        CLIENT,
        frame(SETTINGS, 0, 0, struct.pack(">HI", 1, 0)),
        frame(WINDOW, 0, 0, b"\0\0\1\0"),
        frame(PING, 0, 0, bytes(8)),
        frame(PRIORITY, 0, 1, bytes(5)),
        frame(0x42, 0xFF, 7, b"an unknown frame"),
    )
    block = connection.block(CLIENT, CALL | {"x-team": "blue", "user-agent": "a" * 300})
    priority = struct.pack(">IB", 0, 16)
    flags = PADDED | WITH_PRIORITY
    connection.send(
        CLIENT,
        frame(HEADERS, flags, 1, b"\7" + priority + block[:5] + bytes(7)),
        frame(CONTINUATION, 0, 1, block[5:20]),
        frame(CONTINUATION, END_HEADERS, 1, block[20:]),
    )
    one, two = enveloped(infer_request("a")), enveloped(infer_request("b", text=b"long " * 3000))
    connection.send(
        CLIENT,
        frame(DATA, PADDED, 1, b"\3" + one[:10] + bytes(3)),
        frame(DATA, 0, 1, one[10:] + two[:3]),
        frame(DATA, 0, 1),
        frame(DATA, PADDED, 1, b"\0" + two[3:9000]),
        frame(DATA, 0, 1, two[9000:]),
        frame(DATA, PADDED | END_STREAM, 1, b"\5" + bytes(5)),
    )
    connection.headers(SERVER, 1, {":status": "100"})
    connection.headers(SERVER, 1, {":status": "200"})
    three = [enveloped(stream_response(one)) for one in "aba"]
    connection.send(
        SERVER,
        frame(DATA, 0, 1, three[0] + three[1] + three[2][:30]),
        frame(PING, 1, 0, bytes(8)),
        frame(DATA, PADDED, 1, b"\xff" + three[2][30:] + bytes(255)),
    )
    connection.respond(stream_response("b", b"x" * 20000), stream_response("a", None, final=True))
    connection.status()
    return connection


def test_frames_of_every_form() -> None:
    log = conversation().log
    assert log.timeless() == [
        ("started", 0),
        ("started", 1),
        ("chunk", 0, 0),
        ("chunk", 1, 0),
        ("chunk", 0, 0),
        ("chunk", 1, 0),
        ("ended", 0, "ok", "", False),
        ("ended", 1, "ok", "", False),
    ]
    assert [(stream.request_id, stream.tenant) for stream in log.streams] == [
        ("a", "blue"),
        ("b", "blue"),
    ]


# Splits

SPLIT = {name: capture(name) for name in captures()}
SPLIT["conversation"] = conversation().lines


def _described(log: WireLog) -> list[object]:
    return [
        *log.timeless(),
        *[(one.model, one.version, one.request_id, one.prompt) for one in log.streams],
    ]


@pytest.mark.parametrize("name", SPLIT)
def test_byte_by_byte_is_the_same(name: str) -> None:
    lines = SPLIT[name]
    assert observe_lines(split(lines, repeat(1))).events == observe_lines(lines).events


@given(st.sampled_from(sorted(SPLIT)), st.sampled_from((3, 30, 300)), st.integers())
def test_any_split_is_the_same(name: str, most: int, seed: int) -> None:
    lines, rng = SPLIT[name], random.Random(seed)
    cuts = iter(lambda: rng.randint(1, most), 0)
    in_pieces, whole = observe_lines(split(lines, cuts)), observe_lines(lines)
    assert in_pieces.events == whole.events
    assert _described(in_pieces) == _described(whole)


@given(st.sampled_from(sorted(SPLIT)), st.integers(1, 5))
def test_merged_segments_give_the_same_events(name: str, most: int) -> None:
    lines = SPLIT[name]
    together: list[Line] = []
    for way, at, what in lines:
        last = together[-1] if together else None
        if (
            last
            and last[0] == way
            and isinstance(what, bytes)
            and isinstance(last[2], bytes)
            and len(together) % most
        ):
            together[-1] = (way, at, last[2] + what)
        else:
            together.append((way, at, what))
    assert _described(observe_lines(together)) == _described(observe_lines(lines))


@pytest.mark.parametrize("padding", [None, 0, 3])
def test_data_that_end_a_stream_end_it_with_their_last_byte(padding: int | None) -> None:
    message = enveloped(stream_response("a"))
    payload = message if padding is None else bytes([padding]) + message + bytes(padding)
    flags = END_STREAM | (0 if padding is None else PADDED)
    for data in (
        frame(DATA, flags, 1, payload),
        frame(DATA, 0, 1, message) + frame(DATA, PADDED | END_STREAM, 1, b"\0"),
        frame(DATA, 0, 1, message) + frame(DATA, END_STREAM, 1),
    ):
        connection = GrpcConnection()
        connection.call(infer_request("a"))
        for at in range(len(data)):
            assert connection.observer.live == 1
            connection.send(SERVER, data[at : at + 1])
        assert [event[0] for event in connection.log.events] == ["started", "chunk", "ended"]


# What breaks the rules

HEAD = frame(HEADERS, 0, 1, b"")
BREAKS = {
    "data on no stream": frame(DATA, 0, 0, b"x"),
    "headers on no stream": frame(HEADERS, END_HEADERS, 0),
    "settings on a stream": frame(SETTINGS, 0, 1),
    "a short reset": frame(RST, 0, 1, b"xxx"),
    "a long ping": frame(PING, 0, 0, bytes(9)),
    "a short priority": frame(PRIORITY, 0, 1, bytes(4)),
    "a short window update": frame(WINDOW, 0, 0, bytes(3)),
    "more padding than data": frame(DATA, PADDED, 1, b"\2x"),
    "padding without its length": frame(DATA, PADDED, 1) + b"xxxxxxxxx",
    "more padding than headers": frame(HEADERS, PADDED | END_HEADERS, 1, b"\2x"),
    "headers without their priority": frame(HEADERS, WITH_PRIORITY | END_HEADERS, 1, b"xxx"),
    "a continuation of nothing": frame(CONTINUATION, END_HEADERS, 1),
    "a continuation of another": HEAD + frame(CONTINUATION, END_HEADERS, 3),
    "data in between": HEAD + frame(DATA, 0, 1, b"x"),
    "a ping in between": HEAD + frame(PING, 0, 0, bytes(8)),
    "headers that are none": frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff"),
    "an index of nothing": frame(HEADERS, END_HEADERS, 1, b"\xff\x20"),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_malformed_connection_makes_the_observer_inactive(what: str) -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"), stream=5)
    connection.send(CLIENT, BREAKS[what])
    assert connection.log.events[1:] == [("skipped", "malformed"), ("lost", 0)]
    assert (
        connection.observer.inactive,
        connection.observer.live,
        connection.observer.refusal,
    ) == (True, 0, "")
    connection.respond(stream_response("a"), stream=5)
    connection.observer.gap(CLIENT, 9.0)
    connection.observer.aborted(9.0)
    assert len(connection.log.events) == 3


def test_a_short_goaway_breaks_the_rules() -> None:
    connection = GrpcConnection()
    connection.send(SERVER, frame(GOAWAY, 0, 0, bytes(7)))
    assert connection.log.events == [("skipped", "malformed")]


@pytest.mark.parametrize("direction", [CLIENT, SERVER])
def test_a_side_begins_with_its_settings(direction: int) -> None:
    log = WireLog()
    observer = Http2Observer(log, ObserverSettings())
    preface = PREFACE if direction == CLIENT else b""
    observer.feed(direction, preface + frame(PING, 0, 0, bytes(8)), 1.0)
    assert log.events == [("skipped", "malformed")]


def test_a_server_that_pushes_is_not_followed() -> None:
    connection = GrpcConnection()
    connection.send(SERVER, frame(PUSH, END_HEADERS, 1, bytes(4)))
    assert connection.log.events == [("skipped", "push")]


def test_a_connection_whose_beginning_was_not_seen_cannot_be_followed() -> None:
    log = WireLog()
    observer = Http2Observer(log, ObserverSettings())
    observer.feed(SERVER, frame(SETTINGS, 0, 0), 1.0)
    observer.feed(CLIENT, b"PRI * HTTP/1.1\r\n", 1.0)
    assert (log.events, observer.inactive) == ([("skipped", "midway")], True)


@pytest.mark.parametrize("direction", [CLIENT, SERVER])
def test_after_a_gap_all_is_lost(direction: int) -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"), infer_request("b"))
    connection.observer.gap(direction, 9.0)
    assert connection.log.events[2:] == [("skipped", "gap"), ("lost", 0), ("lost", 1)]
    assert (connection.observer.inactive, connection.observer.live) == (True, 0)


# Bounds


def test_headers_beyond_the_bound() -> None:
    bomb = Encoder()
    many = bomb.encode([("x", "y" * 4000)]) + bomb.encode([("x", "y" * 4000)]) * 20
    segments = [frame(CONTINUATION, 0, 1, bytes(16000))] * 5
    for what in (
        frame(HEADERS, END_HEADERS, 1, many),
        frame(HEADERS, 0, 1, b"") + b"".join(segments),
        frame(HEADERS, 0, 1, bytes(MAX_HEADER_BYTES + 1))[:100],
    ):
        connection = GrpcConnection()
        connection.send(CLIENT, what)
        assert (connection.log.events, connection.observer.inactive) == (
            [("skipped", "headers")],
            True,
        )


def indexed(stream: int, fields: int) -> bytes:
    """Return a block of fields of one byte each, another one for each stream."""
    order = random.Random(stream)
    return frame(HEADERS, END_HEADERS, stream, bytes(order.choices(range(0x82, 0x90), k=fields)))


def test_fields_of_a_block_are_bounded() -> None:
    for fields, fits in ((MAX_FIELDS, True), (MAX_FIELDS + 1, False)):
        connection = GrpcConnection()
        connection.send(CLIENT, indexed(1, fields))
        assert connection.observer.inactive != fits


@pytest.mark.parametrize("fields", [1, 15, 100])
def test_header_fields_are_bounded_in_number_and_by_time(fields: int) -> None:
    flood, slow = (
        Http2Observer(WireLog(), ObserverSettings()),
        Http2Observer(WireLog(), ObserverSettings()),
    )
    begin = PREFACE + frame(SETTINGS, 0, 0)
    flood.feed(CLIENT, begin, 0.0)
    slow.feed(CLIENT, begin, 0.0)
    for number in range(1, FIELD_BURST):
        block = indexed(2 * number + 1, fields)
        flood.feed(CLIENT, block, 1.0)
        slow.feed(CLIENT, block, 1.0 + 2 * number * (fields + 4) / FIELDS_PER_SECOND)
        if flood.inactive:
            break
    assert number * fields <= FIELD_BURST
    assert not slow.inactive


@pytest.mark.parametrize("kind", [PING, SETTINGS, RST, CONTINUATION, DATA])
def test_small_frames_are_bounded_in_number_and_by_time(kind: int) -> None:
    payload = bytes({PING: 8, SETTINGS: 6, RST: 4, CONTINUATION: 0, DATA: 0}[kind])
    stream = 1 if kind in (RST, CONTINUATION, DATA) else 0
    logs = WireLog(), WireLog()
    flood, slow = (Http2Observer(log, ObserverSettings()) for log in logs)
    begin = PREFACE + frame(SETTINGS, 0, 0)
    if kind == CONTINUATION:
        begin += frame(HEADERS, 0, 1)
    flood.feed(CLIENT, begin, 0.0)
    slow.feed(CLIENT, begin, 0.0)
    one = frame(kind, 0, stream, payload)
    flood.feed(CLIENT, one * (FIELD_BURST // 2), 1.0)
    assert not flood.inactive
    flood.feed(CLIENT, one * FIELD_BURST, 1.0)
    assert flood.inactive
    assert logs[0].events[-1][:2] == ("skipped", "frames")
    for number in range(20):
        slow.feed(CLIENT, one * (FIELDS_PER_SECOND // 10), 1.0 + 0.11 * number)
    assert not slow.inactive


@pytest.mark.parametrize(("direction", "size"), [(CLIENT, LARGE_DATA), (SERVER, 0)])
def test_large_requests_and_tokens_are_not_bounded(direction: Direction, size: int) -> None:
    observer = Http2Observer(WireLog(), ObserverSettings())
    observer.feed(CLIENT, PREFACE, 0.0)
    observer.feed(direction, frame(SETTINGS, 0, 0), 0.0)
    for _ in range(2 * FIELD_BURST // 64):
        observer.feed(direction, frame(DATA, 0, 1, bytes(size)) * 64, 1.0)
    assert not observer.inactive


def test_a_quarter_of_a_megabyte_of_fields_does_not_stall() -> None:
    """That is 250,000 fields, each of which takes as long as any other."""
    observer = Http2Observer(WireLog(), ObserverSettings())
    blocks = b"".join(indexed(stream, 100) for stream in range(1, 4600, 2))
    assert len(blocks) > 250_000
    begun = time.process_time()
    observer.feed(CLIENT, PREFACE + frame(SETTINGS, 0, 0) + blocks, 1.0)
    spent = time.process_time() - begun
    decoder = Decoder()
    begun = time.process_time()
    for stream in range(1, 4600, 2):
        decoder.decode(indexed(stream, 100)[9:], raw=True)
    assert spent < (time.process_time() - begun) / 4
    assert observer.inactive


@given(st.lists(st.sampled_from(["blue", "red", "green"]), max_size=20))
def test_the_same_block_means_something_else_once_the_table_has_changed(teams: list[str]) -> None:
    """The newest entry of the table has always the same index."""
    connection, encoder = GrpcConnection(ObserverSettings(tenant_header="x-team")), Encoder()
    blocks = []
    for number, team in enumerate(teams):
        fields = [NeverIndexedHeaderTuple(name, value) for name, value in CALL.items()]
        blocks.append(encoder.encode([*fields, ("x-team", team)]))
        connection.send(CLIENT, frame(HEADERS, END_HEADERS, 2 * number + 1, blocks[-1]))
        connection.send_request(infer_request("a"), stream=2 * number + 1)
    assert [stream.tenant for stream in connection.log.streams] == teams


def test_the_second_block_of_two_tenants_is_the_same() -> None:
    """Or the test above proves nothing."""
    encoder = Encoder()
    blocks = [encoder.encode([("x-team", team)]) for team in ("blue", "blue", "red", "red")]
    assert blocks[1] == blocks[3]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 3)), max_size=40))
def test_repeated_header_blocks_are_decoded_again(calls: list[tuple[str, int]]) -> None:
    connection = GrpcConnection(ObserverSettings(tenant_header="x-team"))
    teams = [team * length for team, length in calls]
    for number, team in enumerate(teams):
        connection.call(infer_request("a"), stream=2 * number + 1, x_team=team)
        connection.headers(SERVER, 2 * number + 1, {":status": "200", "x-team": team})
        connection.status(stream=2 * number + 1)
    assert [stream.tenant for stream in connection.log.streams] == teams
    assert [event[3] for event in connection.log.events if event[0] == "ended"] == ["ok"] * len(
        teams
    )


def test_a_table_of_another_size_is_followed_up_to_the_bound() -> None:
    for size, fits in ((0, True), (16384, True), (MAX_HEADER_BYTES, True), (1 << 20, False)):
        connection, encoder = GrpcConnection(), Encoder()
        encoder.header_table_size = size
        for stream in (1, 3):
            block = encoder.encode([*CALL.items(), ("x", "y" * 5000)])
            connection.send(CLIENT, frame(HEADERS, END_HEADERS, stream, block))
            connection.send_request(infer_request("a"), stream=stream)
        assert len(connection.log.streams) == 2 * fits
        assert connection.observer.inactive != fits


def test_calls_above_the_limit_are_skipped() -> None:
    connection = GrpcConnection()
    for number in range(MAX_CALLS + 1):
        connection.call(infer_request("a"), stream=2 * number + 1, path=INFER)
    assert connection.observer.live == MAX_CALLS
    assert connection.log.events[-1] == ("skipped", "calls")
    connection.status(stream=1)
    connection.call(infer_request("b"), stream=9999)
    assert connection.observer.live == MAX_CALLS


def test_cancelled_calls_free_their_place_once_the_server_stops() -> None:
    connection = GrpcConnection()
    for number in range(MAX_CALLS + 1):
        stream = 2 * number + 1
        connection.call(infer_request("a"), stream=stream)
        connection.reset(CLIENT, stream=stream)
        connection.respond(stream_response("a", final=True), stream=stream)
    assert ("skipped", "calls") not in connection.log.events
    assert len(connection.log.streams) == MAX_CALLS + 1


def test_requests_above_the_limit_are_skipped() -> None:
    connection = GrpcConnection()
    connection.call()
    connection.send(
        CLIENT, frame(DATA, 0, 1, enveloped(infer_request("a", final=True)) * (MAX_REQUESTS + 1))
    )
    assert connection.observer.live == MAX_REQUESTS
    assert connection.log.events[-1] == ("skipped", "requests")
    connection.respond(stream_response("a", final=True))
    connection.send_request(infer_request("a", final=True))
    assert connection.observer.live == MAX_REQUESTS


# Streams


@pytest.mark.parametrize(
    ("last", "code", "ends"),
    [
        (0x7FFFFFFF, 0, {}),
        (1, 0, {1: ("draining", "goaway")}),
        (1, 2, {0: ("error", "reset"), 1: ("draining", "goaway")}),
        (3, 11, {0: ("error", "reset"), 1: ("error", "reset")}),
    ],
)
def test_goaway_drains_the_calls_not_started(
    last: int, code: int, ends: dict[int, tuple[str, str]]
) -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"), stream=1)
    connection.call(infer_request("b"), stream=3)
    connection.send(SERVER, frame(GOAWAY, 0, 0, struct.pack(">II", last, code) + b"why"))
    reported = {event[1]: event[3:5] for event in connection.log.events if event[0] == "ended"}
    assert reported == ends
    assert connection.observer.live == 2 - len(ends)


def test_a_client_that_goes_away_is_still_there() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"))
    connection.send(CLIENT, frame(GOAWAY, 0, 0, bytes(8)))
    connection.respond(stream_response("a", final=True))
    assert connection.log.events[-1][3:5] == ("ok", "")


def test_non_grpc_requests_are_skipped_once_each() -> None:
    connection = GrpcConnection()
    for stream, method, path, kind in (
        (1, "GET", "/v2/health/ready", ""),
        (3, "POST", "/inference.GRPCInferenceService/ServerLive", "application/grpc"),
        (5, "POST", "/grpc.health.v1.Health/Check", "application/grpc+proto"),
        (7, "POST", "/v1/chat/completions", "application/json"),
        (9, "POST", "/v1/chat/completions", "application/json"),
    ):
        fields = {":method": method, ":path": path, "content-type": kind}
        connection.headers(CLIENT, stream, fields)
        connection.send(CLIENT, frame(DATA, END_STREAM, stream, b"whatever"))
        connection.headers(SERVER, stream, {":status": "200"})
        connection.send(SERVER, frame(DATA, END_STREAM, stream, b"whatever"))
        assert connection.log.events == [("skipped", "http2")] * max(0, (stream - 5) // 2)
    connection.call(infer_request("a"), stream=11)
    assert connection.observer.live == 1


def test_the_tenant_header_is_truncated() -> None:
    connection = GrpcConnection(ObserverSettings(tenant_header="x-team"))
    for stream, team in ((1, "blue"), (3, "é" * 500)):
        connection.call(infer_request("a"), stream=stream, x_team=team)
    connection.call(infer_request("a"), stream=5)
    assert [stream.tenant for stream in connection.log.streams] == ["blue", "é" * 128, ""]


def test_a_repeated_status_is_nothing() -> None:
    """Triton sends the status of a call that timed out four times."""
    connection = GrpcConnection()
    connection.call(infer_request("a"), path=INFER)
    for _ in range(4):
        connection.status(4)
        connection.reset(SERVER, 0)
    connection.call(infer_request("b"), path=INFER, stream=3)
    connection.status(0, stream=3)
    assert [event[3] for event in connection.log.events if event[0] == "ended"] == ["timeout", "ok"]


def test_backpressure_is_that_of_every_request() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"), infer_request("b"), stream=1)
    connection.call(infer_request("c"), stream=3)
    connection.respond(stream_response("a", final=True))
    connection.observer.blocked()
    assert connection.log.events[-2:] == [("blocked", 1), ("blocked", 2)]
    connection.observer.backpressure(1.5)
    assert connection.log.events[-2:] == [("backpressure", 1, 1.5), ("backpressure", 2, 1.5)]


def test_the_server_may_speak_first() -> None:
    lines = capture("stream")
    first = [line for line in lines if line[0] == SERVER][:1]
    others = [line for line in lines if line is not first[0]]
    assert observe_lines([*first, *others]).timeless() == observe_lines(lines).timeless()


# Anything at all


def _whatever(observer: Http2Observer, log: WireLog) -> None:
    """Check what holds whatever was fed, and that all ends with the connection."""
    begun = len(log.streams)
    over = sum(event[0] in {"ended", "lost"} for event in log.events)
    assert observer.live == begun - over
    observer.expire(1e9)
    observer.aborted(1e9)
    assert observer.live == 0
    for number in range(begun):
        kinds = [event[0] for event in log.of(number)]
        assert (kinds[0], kinds.count("started")) == ("started", 1)
        assert sum(kind in {"ended", "lost"} for kind in kinds) == 1
        assert kinds[-1] in {"ended", "lost"}


@given(st.lists(st.tuples(st.sampled_from((CLIENT, SERVER)), st.binary(max_size=200)), max_size=9))
def test_random_bytes(segments: list[tuple[int, bytes]]) -> None:
    connection = GrpcConnection()
    for direction, data in segments:
        connection.observer.feed(direction, data, 1.0)
    _whatever(connection.observer, connection.log)


@given(
    st.lists(
        st.tuples(
            st.sampled_from((CLIENT, SERVER)),
            st.integers(0, 10),
            st.sampled_from((0, 1, 4, 5, 8, 9, 12, 0x24, 0x2D)),
            st.sampled_from((0, 1, 3)),
            st.sampled_from(
                (
                    b"",
                    bytes(4),
                    bytes(5),
                    bytes(8),
                    b"\x82",
                    b"\0\0\0\0\5",
                    enveloped(infer_request("a")),
                )
            )
            | st.binary(max_size=40),
        ),
        max_size=20,
    )
)
def test_random_frames(frames: list[tuple[int, int, int, int, bytes]]) -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"))
    for direction, kind, flags, stream, payload in frames:
        connection.observer.feed(direction, frame(kind, flags, stream, payload), 1.0)
    _whatever(connection.observer, connection.log)


@given(st.sampled_from(sorted(SPLIT)), st.integers())
@settings(max_examples=300)
def test_mutated_recordings(name: str, seed: int) -> None:
    rng = random.Random(seed)
    lines: list[Line] = []
    for way, at, what in SPLIT[name]:
        data = bytearray(what) if isinstance(what, bytes) else None
        if data is not None and rng.random() < 0.2:
            where = rng.randrange(len(data))
            change = rng.randrange(4)
            if change == 0:
                data[where] ^= 1 << rng.randrange(8)
            elif change == 1:
                del data[where : where + rng.randrange(1, 20)]
            elif change == 2:
                data[where:where] = rng.randbytes(rng.randrange(1, 20))
            else:
                data[where:where] = data
        lines.append((way, at, what if data is None else bytes(data)))
    if rng.random() < 0.2:
        rng.shuffle(lines)
    log = WireLog()
    observer = Http2Observer(log, ObserverSettings())
    show(observer, lines)
    _whatever(observer, log)


def test_memory_is_bounded() -> None:
    """A client that never finishes anything, on as many streams as it likes."""
    connection = GrpcConnection()
    start = frame(DATA, 0, 1, enveloped(bytes(100_000))[:16000])
    heads = [
        frame(HEADERS, END_HEADERS, 2 * n + 1, connection.block(CLIENT, CALL))
        for n in range(2 * MAX_CALLS)
    ]
    tracemalloc.start()
    for number, head in enumerate(heads):
        connection.observer.feed(CLIENT, head, 1.0)
        stream = struct.pack(">I", 2 * number + 1)
        connection.observer.feed(CLIENT, start[:5] + stream + start[9:], 1.0)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < MAX_CALLS * 12_000
