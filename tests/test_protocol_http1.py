"""HTTP/1 connections: recorded from real servers, malformed and random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.protocol.events import CLIENT, SERVER, Direction, ObserverSettings
from exporter.protocol.http1 import HELD_BYTES, PIPELINED, Http1Observer
from exporter.protocol.http1_framing import CHUNK_LINE_BYTES, HEAD_BYTES
from tests.event_log import RECORDED, Line, WireLog, cut, recorded, show

HASHED = ObserverSettings(tenant_header="x-team", salt=b"salt")

EXPECTED_EVENTS = {
    "triton_errors": [
        "started 0",
        "ended 0 invalid 404 False",
        "started 1",
        "ended 1 invalid 400 False",
        "started 2",
        "ended 2 error 400 False",
        "started 3",
        "ended 3 error 400 False",
        "started 4",
        "chunk 4 0 x2",
        "ended 4 error in_band False",
        "started 5",
        "ended 5 error in_band False",
    ],
    "triton_half_closed": [
        "started 0",
        "chunk 0 0 x4",
        "closing 0",
        "ended 0 client_disconnected  True",
    ],
    "triton_left": [
        "started 0",
        "chunk 0 0 x4",
        "closing 0",
        "ended 0 client_disconnected  True",
    ],
    "triton_reset": [
        "started 0",
        "chunk 0 0 x4",
        "ended 0 client_disconnected  False",
    ],
    "triton_streams": [
        "started 0",
        "chunk 0 0 x6",
        "ended 0 ok  False",
        "started 1",
        "chunk 1 0",
        "ended 1 ok  False",
        "started 2",
        "chunk 2 0 x6",
        "ended 2 ok  False",
    ],
    "triton_whole": [
        "started 0",
        "ended 0 ok  False",
        "started 1",
        "ended 1 ok  False",
        "started 2",
        "ended 2 ok  False",
        "started 3",
        "ended 3 ok  False",
        "started 4",
        "ended 4 ok  False",
    ],
    "trtllm_broken_off": [
        "started 0",
        "chunk 0 0 x3",
        "ended 0 error error False",
    ],
    "trtllm_chunked": [
        "started 0",
        "chunk 0 0 x4",
        "ended 0 ok length False",
        "started 1",
        "chunk 1 0 x4",
        "ended 1 ok length False",
    ],
    "trtllm_continuous": [
        "started 0",
        "chunk 0 1 x2",
        "chunk 0 2 x5",
        "ended 0 ok length False",
        "started 1",
        "chunk 1 1 x2",
        "chunk 1 2 x5",
        "ended 1 ok length False",
    ],
    "trtllm_expect": [
        "started 0",
        "chunk 0 0 x4",
        "ended 0 ok length False",
    ],
    "trtllm_left": [
        "started 0",
        "chunk 0 0 x3",
        "closing 0",
        "ended 0 client_disconnected  True",
    ],
    "trtllm_pipelined": [
        "started 0",
        "started 1",
        "started 2",
        "ended 0 ok length False",
        "chunk 1 0 x3",
        "ended 1 ok length False",
        "ended 2 ok length False",
    ],
    "trtllm_refused": [
        "started 0",
        "ended 0 invalid 400 False",
        "started 1",
        "ended 1 invalid 400 False",
    ],
    "trtllm_streams": [
        "started 0",
        "chunk 0 0 x4",
        "ended 0 ok length False",
        "started 1",
        "chunk 1 0 x4",
        "ended 1 ok length False",
        "started 2",
        "chunk 2 0 x4",
        "ended 2 ok length False",
        "started 3",
        "chunk 3 0 x4",
        "ended 3 ok length False",
        "started 4",
        "chunk 4 0 x4",
        "ended 4 ok length False",
    ],
    "trtllm_until_close": [
        "started 0",
        "chunk 0 0 x4",
        "ended 0 ok length False",
    ],
    "trtllm_whole": [
        "started 0",
        "ended 0 ok length False",
        "started 1",
        "ended 1 ok length False",
        "started 2",
        "ended 2 ok stop False",
    ],
}


def watched(lines: Sequence[Line] = ()) -> tuple[WireLog, Http1Observer]:
    log = WireLog()
    observer = Http1Observer(log, HASHED)
    show(observer, lines)
    return log, observer


def event_lines(log: WireLog) -> list[str]:
    """Return a line for each event, times left out, with how often it came in a row."""
    texts = [" ".join(str(part) for part in event) for event in log.timeless()]
    runs = ((text, len(list(same))) for text, same in groupby(texts))
    return [f"{text} x{count}" if count > 1 else text for text, count in runs]


def post(body: bytes = b'{"text_input":"hi"}', *fields: bytes, model: str = "m") -> bytes:
    path = b"/v2/models/%s/generate_stream" % model.encode()
    lines = (b"POST %s HTTP/1.1" % path, b"Content-Length: %d" % len(body), *fields)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = chunk(b'data: {"text_output":"a"}\n\n')
LAST = b"0\r\n\r\n"
OK = b'HTTP/1.1 200 OK\r\nContent-Length: 23\r\n\r\n{"text_output": "whole"}'[:-1]


# What was recorded


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_connection_events_match_the_golden_file(name: str) -> None:
    log, observer = watched(recorded(name))

    assert event_lines(log) == EXPECTED_EVENTS[name]
    assert (observer.inactive, observer.refusal, observer.live) == (False, "", 0)


def test_times_are_those_of_the_bytes() -> None:
    lines = recorded("triton_half_closed")
    log, _ = watched(lines)

    times = [time for _, time, what in lines if not isinstance(what, bytes) or b"text_" in what]
    assert log.streams[0].arrived == times[0]
    assert [event[2] for event in log.events] == times
    assert log.events[-1] == ("ended", 0, times[-1], "client_disconnected", "", times[-1])


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("size", [1, 2, 7, 1000000])
def test_segments_of_any_fixed_size_give_the_same_events(name: str, size: int) -> None:
    lines = recorded(name)
    whole, _ = watched(lines)
    segments, _ = watched(cut(lines, lambda: size))

    assert (segments.timeless(), segments.final_streams()) == (
        whole.timeless(),
        whole.final_streams(),
    )


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(RECORDED), seed=st.integers(0, 2**32), most=st.integers(1, 400))
def test_any_segmentation_gives_the_same_events(name: str, seed: int, most: int) -> None:
    lines, chance = recorded(name), random.Random(seed)
    whole, _ = watched(lines)
    segments, _ = watched(cut(lines, lambda: chance.randint(1, most)))

    assert (segments.timeless(), segments.final_streams()) == (
        whole.timeless(),
        whole.final_streams(),
    )


# What no server or client should send


def check(log: WireLog, observer: Http1Observer) -> None:
    """Hold what is true of every connection, whatever passes."""
    open_streams: set[int] = set()
    for event in log.events:
        if event[0] == "started":
            open_streams.add(event[1])
        elif event != ("lost", -1) and event[0] != "skipped":
            assert event[1] in open_streams, "an event of a stream that is not under way"
            if event[0] in ("ended", "lost"):
                open_streams.remove(event[1])
    assert observer.live >= len(open_streams)  # which are for tokens; others are under way too
    assert observer.held <= HELD_BYTES
    assert not (observer.refusal and not observer.inactive)


@st.composite
def mangled(draw: st.DrawFn) -> list[Line]:
    """Draw a recorded connection of which bytes were changed, lost, doubled and mixed up."""
    lines = recorded(draw(st.sampled_from(RECORDED)))
    chance = random.Random(draw(st.integers(0, 2**32)))
    lines = cut(lines, lambda: chance.randint(1, 300))
    for _ in range(draw(st.integers(1, 6))):
        place = chance.randrange(len(lines))
        direction, time, what = lines[place]
        change = chance.randrange(6)
        if change == 0 and isinstance(what, bytes) and what:
            at = chance.randrange(len(what))
            byte = bytes([chance.choice(b'\r\n\0 :;"\\{}[]0f-+')])
            lines[place] = (direction, time, what[:at] + byte + what[at + chance.randint(0, 1) :])
        elif change == 1 and len(lines) > 1:
            del lines[place]
        elif change == 2:
            lines.insert(chance.randrange(len(lines)), lines[place])
        elif change == 3:
            lines[place] = (SERVER if direction == CLIENT else CLIENT, time, what)
        elif change == 4:
            lines.insert(place, (direction, time, chance.choice([None, False])))
        else:
            lines.insert(place, (direction, time, chance.randbytes(chance.randint(0, 40))))
    return lines


@settings(max_examples=400, deadline=None)
@given(lines=mangled())
def test_mangled_connections_do_no_harm(lines: list[Line]) -> None:
    log, observer = WireLog(), None
    observer = Http1Observer(log, HASHED)
    for line in lines:
        show(observer, [line])
        check(log, observer)
    observer.gap(CLIENT, 99.0)
    observer.backpressure(1.0)
    observer.expire(100.0)
    show(observer, lines)
    observer.aborted(200.0)
    check(log, observer)
    assert observer.live == 0


@settings(max_examples=200, deadline=None)
@given(
    segments=st.lists(
        st.tuples(
            st.sampled_from([CLIENT, SERVER]),
            st.one_of(
                st.binary(max_size=60),
                st.sampled_from([post(), SSE, TOKEN, LAST, OK, b"\r\n", b"data: ", b"\n\n"]),
            ),
        ),
        max_size=12,
    )
)
def test_random_bytes_do_no_harm(segments: list[tuple[Direction, bytes]]) -> None:
    log, observer = watched()
    for direction, data in segments:
        observer.feed(direction, data, 1.0)
        check(log, observer)


@pytest.mark.parametrize(
    "begin",
    [
        [(CLIENT, b"POST /" + b"x" * 70000)],
        [(CLIENT, b"POST /v2/models/m/generate HTTP/1.1\r\n"), (CLIENT, b"A: b\r\n" * 20000)],
        [(CLIENT, post(b"[" * 300000)), (CLIENT, b"[" * 300000)],
        [(CLIENT, post(b'{"id":"' + b"\\" * 300001)), (CLIENT, b"x" * 300000)],
        [(CLIENT, post()), (SERVER, b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20000)],
        [(CLIENT, post()), (SERVER, SSE + b"ffffffff\r\ndata: "), (SERVER, b"x" * 1000000)],
        [(CLIENT, post()), (SERVER, SSE + b"ffffffff\r\nevent: "), (SERVER, b"x" * 1000000)],
        [(CLIENT, post()), (SERVER, SSE + b"ffffffff\r\n" + b"data: x\n" * 100000)],
        [(CLIENT, post()), (SERVER, SSE + b"ffffffff\r\n:"), (SERVER, b"x" * 1000000)],
        [(CLIENT, post()), (SERVER, SSE + LAST[:3] + b"A: b\r\n" * 20000)],
        [
            (CLIENT, post()),
            (SERVER, OK[:39].replace(b"23", b"99999999") + b'{"a":"' + b"x" * 900000),
        ],
        [(CLIENT, post(model="m" * 60000) * PIPELINED)],
        [(CLIENT, post(b"{}", b"X-Team: " + b"t" * 60000) * PIPELINED)],
    ],
)
@pytest.mark.parametrize("size", [100000, 997])
def test_memory_is_bounded(begin: list[tuple[Direction, bytes]], size: int) -> None:
    log, observer = watched()
    for direction, data in begin:
        for at in range(0, len(data), size):
            observer.feed(direction, data[at : at + size], 1.0)
            check(log, observer)


@pytest.mark.parametrize(
    ("request_bytes", "refusal"),
    [
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "length"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", "length"),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "length"),
        (b"POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\n", "length"),
        (b"POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n", "length"),
        (b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", "length"),
        (b"POST / HTTP/1.1\r\nContent-Length: 0x5\r\n\r\n", "length"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n", "length"),
        (b"POST / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", "length"),
        (b"POST / HTTP/1.1\r\nContent-Length:\r\n\r\n", "length"),
        (b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n", "length"),
        (b"POST / HTTP/1.1\r\nContent-Length : 5\r\n\r\n", "field"),
        (b"POST / HTTP/1.1\r\n Content-Length: 5\r\n\r\n", "folded"),
        (b"POST / HTTP/1.1\r\nA: b\r\n Content-Length: 5\r\n\r\n", "folded"),
        (b"POST / HTTP/1.1\r\nA: b\r\n\tc\r\n\r\n", "folded"),
        (b"POST / HTTP/1.1\r\n: b\r\n\r\n", "field"),
        (b"POST / HTTP/1.1\r\nno colon\r\n\r\n", "field"),
        (b"POST / HTTP/1.1\r\nA: b\x01\r\n\r\n", "field"),
        (b"POST / HTTP/1.1\r\nA: b\x0bc\r\n\r\n", "field"),
        (b"POST / HTTP/1.1\r\nA: b\0\r\n\r\n", "bare_newline"),
        (b"POST / HTTP/1.1\nA: b\r\n\r\n", "bare_newline"),
        (b"POST / HTTP/1.1\r\nA: b\n\r\n", "bare_newline"),
        (b"POST / HTTP/1.1\r\nA: b\rContent-Length: 5\r\n\r\n", "bare_newline"),
        (b"POST / HTTP/1.1\r\nA: b\n\n", "bare_newline"),
        (b"\nPOST / HTTP/1.1\r\n\r\n", "bare_newline"),
        (b"\rPOST / HTTP/1.1\r\n\r\n", "bare_newline"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "encoding"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", "encoding"),
        (b"POST / HTTP/1.1" + b"\r\nTransfer-Encoding: chunked" * 2 + b"\r\n\r\n", "encoding"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", "encoding"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: \x0bchunked\r\n\r\n", "field"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n", "encoding"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "encoding"),
        (b"POST / HTTP/2.0\r\n\r\n", "start_line"),
        (b"POST / HTTP/1.2\r\n\r\n", "start_line"),
        (b"POST / http/1.1\r\n\r\n", "start_line"),
        (b"POST  / HTTP/1.1\r\n\r\n", "start_line"),
        (b"POST /\r\n\r\n", "start_line"),
        (b"POST / x HTTP/1.1\r\n\r\n", "start_line"),
        (b"PO(ST / HTTP/1.1\r\n\r\n", "start_line"),
        (b"GET / HTTP/1.1\r\n" + b"A: " + b"b" * HEAD_BYTES, "too_long"),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\n\r\n", "closed"),
        (b"GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n", "closed"),
        (b"GET / HTTP/1.1\r\n\r\n" * (PIPELINED + 1), "pipelined"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [10**6, 1])
def test_ambiguous_requests_are_refused(request_bytes: bytes, refusal: str, size: int) -> None:
    log, observer = watched()
    for at in range(0, len(request_bytes), size):
        observer.feed(CLIENT, request_bytes[at : at + size], 1.0)

    assert (observer.refusal, observer.inactive) == (refusal, True)
    assert log.events == [("skipped", refusal)]


CHUNKED = b"POST /v2/models/m/generate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("extension", [256, 4096, CHUNK_LINE_BYTES - 10])
def test_long_extensions_of_chunks_pass(extension: int) -> None:
    body = b"5;x=" + b"y" * extension + b"\r\nhello\r\n0\r\n\r\n"
    for size in (10**6, 7):
        _, observer = watched()
        observer.feed(CLIENT, CHUNKED, 1.0)
        for at in range(0, len(body), size):
            observer.feed(CLIENT, body[at : at + size], 1.0)
        assert (observer.refusal, observer.inactive) == ("", False)


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (b"+5\r\nhello\r\n", "chunk"),
        (b"-5\r\nhello\r\n", "chunk"),
        (b"0x5\r\nhello\r\n", "chunk"),
        (b"0_5\r\nhello\r\n", "chunk"),
        (b" 5\r\nhello\r\n", "chunk"),
        (b"5 \r\nhello\r\n", "chunk"),
        (b"\r\nhello\r\n", "chunk"),
        (b"5\nhello\r\n", "chunk"),
        (b"5;a\nb\r\nhello\r\n", "chunk"),
        (b"5\rhello\r\n", "chunk"),
        (b"5;a=\x01\r\nhello\r\n", "chunk"),
        (b"5" * 16 + b"\r\n", "chunk"),
        (b"5 5\r\nhello\r\n", "chunk"),
        (b"5;" + b"x" * CHUNK_LINE_BYTES + b"\r\n", "chunk"),
        (b"5\r\nhelloX\r\n", "chunk"),
        (b"5\r\nhello\n", "chunk"),
        (b"5\r\nhello\r\r", "chunk"),
        (b"0\r\nContent-Length: 5\r\n\r\n", "length"),
        (b"0\r\nTransfer-Encoding: chunked\r\n\r\n", "length"),
        (b"0\r\nA : b\r\n\r\n", "field"),
        (b"0\r\nA: b\n\r\n", "bare_newline"),
        (b"0\r\n\rA", "bare_newline"),
        (b"0\r\nA: " + b"b" * HEAD_BYTES, "too_long"),
    ],
)
@pytest.mark.parametrize("size", [10**6, 1])
def test_ambiguous_chunks_are_refused(body: bytes, refusal: str, size: int) -> None:
    log, observer = watched()
    observer.feed(CLIENT, CHUNKED, 1.0)
    for at in range(0, len(body), size):
        observer.feed(CLIENT, body[at : at + size], 1.0)

    assert (observer.refusal, observer.inactive) == (refusal, True)
    assert log.events == [("skipped", refusal)]


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\r\n\r\n" + post(),
        post().replace(b"Content-Length: 19", b"Content-Length: 19\r\ncontent-length:\t19 "),
        post().replace(b"POST /", b"POST http://server:8000/"),
        post().replace(b"_stream HTTP", b"_stream?key=1 HTTP"),
        post().replace(b"1.1", b"1.0"),
        CHUNKED + b'5 ; a="b"\r\n{"a":\r\n0002\r\n1}\r\n000\r\nA: b\r\nC: d\r\n\r\n',
        CHUNKED.replace(b"chunked", b"Chunked") + b'A;x\r\n{"a":    1\r\n1\r\n}\r\n0;x=y\r\n\r\n',
    ],
)
def test_unusual_requests_are_accepted(request_bytes: bytes) -> None:
    log, observer = watched([(CLIENT, 1.0, request_bytes), (SERVER, 2.0, OK)])

    assert not observer.refusal
    assert event_lines(log) == ["started 0", "ended 0 ok  False"]
    assert log.streams[0].model == "m"


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "encoding"),
        (b"HTTP/1.1 20 OK\r\n\r\n", "start_line"),
        (b"SSH-2.0-server\r\n\r\n", "start_line"),
        (SSE + b"zz\r\n", "chunk"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x00", "upgrade"),
    ],
)
def test_a_malformed_response_makes_the_observer_inactive(answer: bytes, word: str) -> None:
    log, observer = watched([(CLIENT, 1.0, post()), (SERVER, 2.0, answer), (SERVER, 3.0, TOKEN)])

    assert (observer.inactive, observer.refusal, observer.live) == (True, "", 0)
    assert event_lines(log) == ["started 0", "lost 0", f"skipped {word}"]


def test_an_unsolicited_response_makes_the_observer_inactive() -> None:
    log, observer = watched([(SERVER, 1.0, b"HTTP/1.1 408 Request Timeout\r\n\r\n")])

    assert observer.inactive
    assert event_lines(log) == ["skipped unsolicited"]


# Messages and their ends


@pytest.mark.parametrize(
    ("request_bytes", "answer"),
    [
        (b"HEAD /v2 HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
        (b"GET /v2 HTTP/1.1\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"GET /v2 HTTP/1.1\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"),
        (b"GET /v2 HTTP/1.1\r\n\r\n", b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"),
        (b"GET /v2 HTTP/1.1\r\n\r\n", b"HTTP/1.1 103 Hints\r\n\r\n" * 3 + OK),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 No\r\nContent-Length: 2\r\n\r\nno"),
        (
            b"GET / HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n",
        ),
    ],
)
def test_other_requests_are_parsed_but_not_reported(request_bytes: bytes, answer: bytes) -> None:
    log, observer = watched(
        [
            (CLIENT, 1.0, request_bytes),
            (SERVER, 2.0, answer),
            (CLIENT, 3.0, post()),
            (SERVER, 4.0, SSE + TOKEN),
        ]
    )

    assert event_lines(log) == ["started 0", "chunk 0 0"]
    assert observer.live == 1


def test_a_tunnel_is_skipped() -> None:
    log, observer = watched(
        [
            (CLIENT, 1.0, b"CONNECT a:1 HTTP/1.1\r\n\r\n"),
            (SERVER, 2.0, b"HTTP/1.1 200 OK\r\n\r\n"),
            (CLIENT, 3.0, b"\x16\x03\x01"),
        ]
    )

    assert (observer.inactive, observer.refusal) == (True, "")
    assert event_lines(log) == ["skipped connect"]


def test_a_response_may_start_before_the_request_is_complete() -> None:
    early = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
    head, rest = post(b"{}" * 50)[:-50], post(b"{}" * 50)[-50:]
    log, observer = watched(
        [
            (CLIENT, 1.0, head),
            (SERVER, 2.0, early[:5]),
            (SERVER, 3.0, early[5:]),
            (CLIENT, 4.0, rest + post()),
            (SERVER, 5.0, OK),
        ]
    )

    assert event_lines(log) == [
        "started 0",
        "ended 0 invalid 413 False",
        "started 1",
        "ended 1 ok  False",
    ]
    assert [stream.arrived for stream in log.streams] == [2.0, 4.0]
    assert log.streams[0].prompt == 0
    assert not observer.inactive


def test_request_and_response_may_overlap() -> None:
    path = b"POST /v1/completions HTTP/1.1\r\nContent-Length: 40\r\n\r\n"
    log, _ = watched(
        [
            (CLIENT, 1.0, path + b'{"model":"m",'),
            (SERVER, 2.0, b'HTTP/1.1 200 OK\r\nContent-Length: 38\r\n\r\n{"usage":'),
            (CLIENT, 3.0, b'{"completion_tokens":99}}  '),
            (SERVER, 4.0, b'{"completion_tokens":5}, "a":1}'[:29]),
        ]
    )

    assert event_lines(log) == ["started 0", "ended 0 ok  False"]
    assert (log.streams[0].model, log.streams[0].output_tokens) == ("m", 5)


def test_pipelined_responses_belong_to_requests_in_order() -> None:
    log, observer = watched()
    observer.feed(CLIENT, post(model="a") + b"GET /metrics HTTP/1.1\r\n\r\n" + post(model="b"), 1.0)
    assert observer.live == 3
    observer.feed(SERVER, SSE + TOKEN + LAST + OK + SSE + TOKEN + TOKEN + LAST, 2.0)

    assert event_lines(log) == [
        "started 0",
        "started 1",
        "chunk 0 0",
        "ended 0 ok  False",
        "chunk 1 0 x2",
        "ended 1 ok  False",
    ]
    assert [stream.model for stream in log.streams] == ["a", "b"]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "ok"), (202, "ok"), (302, "invalid"), (400, "invalid"), (404, "invalid"),
        (408, "timeout"), (422, "invalid"), (429, "quota"), (499, "cancelled"), (500, "error"),
        (502, "error"), (503, "error"), (504, "timeout"),
    ],
)  # fmt: skip
def test_the_status_determines_the_outcome(status: int, outcome: str) -> None:
    answer = b"HTTP/1.1 %d Word\r\nContent-Length: 2\r\n\r\n{}" % status
    log, _ = watched([(CLIENT, 1.0, post()), (SERVER, 2.0, answer)])

    reason = "" if outcome == "ok" else str(status)
    assert log.of(0)[-1] == ("ended", 2.0, outcome, reason, None)


# How connections end

REQUEST: Line = (CLIENT, 1.0, post())
BEGUN: Line = (SERVER, 2.0, SSE + TOKEN)
MORE: Line = (SERVER, 4.0, TOKEN)
END: Line = (SERVER, 5.0, LAST)
CLIENT_FIN: Line = (CLIENT, 3.0, None)
CLIENT_RST: Line = (CLIENT, 6.0, False)
SERVER_FIN: Line = (SERVER, 6.0, None)
SERVER_RST: Line = (SERVER, 6.0, False)


@pytest.mark.parametrize(
    ("lines", "closing", "end"),
    [
        ([REQUEST, SERVER_FIN], False, (6.0, "error", "closed", None)),
        ([REQUEST, SERVER_RST], False, (6.0, "error", "reset", None)),
        ([REQUEST, CLIENT_RST], False, (6.0, "client_disconnected", "", None)),
        ([REQUEST, BEGUN, SERVER_FIN], False, (6.0, "truncated", "closed", None)),
        ([REQUEST, BEGUN, SERVER_RST], False, (6.0, "truncated", "reset", None)),
        ([REQUEST, BEGUN, CLIENT_RST], False, (6.0, "client_disconnected", "", None)),
        ([REQUEST, CLIENT_FIN, SERVER_FIN], True, (6.0, "client_disconnected", "", 6.0)),
        ([REQUEST, CLIENT_FIN, CLIENT_RST], True, (6.0, "client_disconnected", "", None)),
        ([REQUEST, BEGUN, CLIENT_FIN, CLIENT_RST], True, (6.0, "client_disconnected", "", None)),
        (
            [REQUEST, BEGUN, CLIENT_FIN, MORE, CLIENT_RST],
            True,
            (6.0, "client_disconnected", "", 4.0),
        ),
        (
            [REQUEST, BEGUN, CLIENT_FIN, MORE, SERVER_FIN],
            True,
            (6.0, "client_disconnected", "", 6.0),
        ),
        (
            [REQUEST, BEGUN, CLIENT_FIN, MORE, SERVER_RST],
            True,
            (6.0, "client_disconnected", "", 6.0),
        ),
        ([REQUEST, BEGUN, CLIENT_FIN, MORE, END], True, (5.0, "ok", "", None)),
        ([REQUEST, CLIENT_FIN, BEGUN, END, CLIENT_RST], True, (5.0, "ok", "", None)),
    ],
)
def test_ends_of_connections(lines: list[Line], closing: bool, end: tuple[object, ...]) -> None:
    log, observer = watched([*lines, (SERVER, 7.0, TOKEN), (CLIENT, 8.0, post())])

    events = log.of(0)
    assert events[-1] == ("ended", *end)
    assert [event for event in events if event[0] == "closing"] == [("closing", 3.0)] * closing
    assert observer.live == 0


def test_nothing_comes_from_a_client_after_its_end() -> None:
    log, _ = watched([REQUEST, CLIENT_FIN, (CLIENT, 4.0, post())])

    assert event_lines(log) == ["started 0", "closing 0"]


def test_nothing_ends_by_a_half_closed_connection_alone() -> None:
    log, observer = watched([REQUEST, CLIENT_FIN])
    observer.expire(10000.0)

    assert event_lines(log) == ["started 0", "closing 0"]
    assert observer.live == 1


def test_pending_requests_end_with_the_connection() -> None:
    log, _ = watched([REQUEST, (CLIENT, 1.5, post()), BEGUN, CLIENT_FIN, MORE, CLIENT_RST])

    assert log.of(0)[-1] == ("ended", 6.0, "client_disconnected", "", 4.0)
    assert log.of(1)[1:] == [("closing", 3.0), ("ended", 6.0, "client_disconnected", "", None)]


def test_an_incomplete_request_is_not_reported() -> None:
    log, observer = watched([(CLIENT, 1.0, post()[:-1]), (CLIENT, 2.0, None), SERVER_FIN])

    assert log.events == []
    assert observer.live == 0


def test_a_half_closed_client_may_still_receive_its_response() -> None:
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 9\r\n\r\n"
    log, _ = watched([(CLIENT, 1.0, post()[:-1]), (CLIENT, 2.0, None), (SERVER, 3.0, answer)])

    assert log.events == [("started", 0, 3.0), ("closing", 0, 3.0)]


def test_a_body_until_the_end_of_the_connection_is_whole_then() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    log, _ = watched([REQUEST, (SERVER, 2.0, head + b'data: {"text_output":"a"}\n\n'), SERVER_FIN])

    assert event_lines(log) == ["started 0", "chunk 0 0", "ended 0 ok  False"]


# Gaps, back-pressure, tenants, prompts


def test_the_next_request_after_missing_bytes_is_reported() -> None:
    log, observer = watched([REQUEST, BEGUN])
    observer.gap(SERVER, 3.0)
    show(
        observer,
        [
            (SERVER, 3.1, TOKEN + LAST),
            (CLIENT, 3.2, b"rest of something\r\n\r\n" + post()),
            (CLIENT, 4.0, post()),
            (SERVER, 5.0, SSE + TOKEN + LAST),
        ],
    )

    assert event_lines(log) == ["started 0", "chunk 0 0", "lost 0", "started 1", "chunk 1 0",
                         "ended 1 ok  False"]  # fmt: skip
    assert not observer.inactive


def test_after_a_gap_what_cannot_be_followed_is_lost_again() -> None:
    log, observer = watched()
    observer.gap(SERVER, 1.0)
    show(observer, [REQUEST, (SERVER, 2.0, TOKEN), (CLIENT, 3.0, post()), (SERVER, 4.0, OK)])

    assert event_lines(log) == ["started 0", "lost 0", "started 1", "ended 1 ok  False"]


def test_backpressure_belongs_to_the_active_response() -> None:
    log, observer = watched()
    observer.backpressure(1.0)
    show(observer, [REQUEST, (CLIENT, 1.5, post()), BEGUN])
    observer.backpressure(2.0)

    assert [event for event in log.events if event[0] == "backpressure"] == [
        ("backpressure", 0, 2.0)
    ]


def test_the_tenant_is_in_the_configured_header() -> None:
    log, _ = watched([(CLIENT, 1.0, post(b"{}", b"X-TEAM: blue ")), (CLIENT, 2.0, post())])

    assert [stream.tenant for stream in log.streams] == ["blue", ""]


def test_without_a_configured_header_there_is_no_tenant() -> None:
    log = WireLog()
    Http1Observer(log, ObserverSettings()).feed(CLIENT, post(b"{}", b"X-Team: blue"), 1.0)

    assert log.streams[0].tenant == ""


def prompt(request_bytes: bytes, salt: bytes = b"salt", size: int = 10**6) -> int:
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings(salt=salt))
    for at in range(0, len(request_bytes), size):
        observer.feed(CLIENT, request_bytes[at : at + size], 1.0)
    return log.streams[0].prompt


def test_equal_requests_have_equal_prompts_and_others_do_not() -> None:
    body = b'{"text_input":"the same"}'
    same = {prompt(post(body)), prompt(post(body), size=1), prompt(post(body, b"A: b"))}
    chunked = b"POST /v2/models/m/generate_stream HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    same.add(prompt(chunked + chunk(body[:4]) + chunk(body[4:]) + LAST))

    assert len(same) == 1
    others = {prompt(post(body + b" ")), prompt(post(body, model="n")), prompt(post(body), b"x")}
    assert len(others - same) == 3
    assert all(0 < value < 2**64 for value in same | others)
    assert prompt(post(b"")) == 0


def test_a_long_salt_is_as_good_as_any() -> None:
    assert prompt(post(), b"s" * 1000)
