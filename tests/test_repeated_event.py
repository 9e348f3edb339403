"""Chunks that repeat an event are read as the parsers read them, and without the parsers."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.protocol.events import CLIENT, SERVER, ObserverSettings
from exporter.protocol.http1 import Http1Observer
from exporter.protocol.http_exchange import HttpExchange
from exporter.protocol.sse import SseSplitter
from tests.event_log import Event, WireLog

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n%b\r\n"
KSERVE = b'{"model_name":"m","model_version":"1","text_output":"%b"}'
OPENAI = b'{"model":"m","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}'
PATHS = {KSERVE: b"/v2/models/m/generate_stream", OPENAI: b"/v1/chat/completions"}
NUMBERED = b'{"choices":[{"index":0,"text":"%b"}],"sequence_number":3}'
TEXTS = (
    *(b"a", b"", b" word", b"\xe2\x82\xac", b"\\n", b"\\\\", b"x" * 2000),
    *(b'\\"', b'a\\"', b"a\\", b'a"', b'a","b":"c', b"a\n", b"a\r", b"a\r\n", b"a\n\ndata: b"),
)


def chunk(body: bytes, form: bytes = b"%x\r\n%b\r\n", more: int = 0) -> bytes:
    return form % (len(body) + more, body)


def pieces(event: bytes) -> st.SearchStrategy[bytes]:
    """Return what a server may send: chunks that repeat an event, almost repeat it, or do not."""
    text = st.sampled_from(TEXTS)
    body = text.map(lambda text: b"data: " + event % text + b"\n\n")
    plain = st.sampled_from((b"a", b" word", b"b")).map(
        lambda text: chunk(b"data: " + event % text + b"\n\n")
    )
    return st.one_of(
        plain,
        plain,
        plain,
        body.map(chunk),
        body.map(lambda body: chunk(body, b"%X\r\n%b\r\n")),
        body.map(lambda body: chunk(body, b"0%x\r\n%b\r\n")),
        body.map(lambda body: chunk(body, b"%x;a=b\r\n%b\r\n")),
        body.map(lambda body: chunk(body * 2)),
        body.map(lambda body: chunk(body[:-1])),
        body.map(lambda body: chunk(b"event: a\n" + body)),
        body.map(lambda body: chunk(body.replace(b"\n", b"\r\n"))),
        st.tuples(body, st.sampled_from((-1, 1, 2))).map(lambda each: chunk(each[0], more=each[1])),
        text.map(lambda text: chunk(b"data: " + NUMBERED % text + b"\n\n")),
        st.sampled_from((b": ping\n\n", b"\n", b"data: [DONE]\n\n", b"data: {}\n\n", b"da")).map(
            chunk
        ),
        st.just(b"0\r\n\r\n"),
    )


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """Draw an event, and a response in segments: mostly one for each piece."""
    event = draw(st.sampled_from((KSERVE, OPENAI)))
    segments = draw(st.lists(pieces(event), max_size=12))
    chance = random.Random(draw(st.integers(0, 2**32)))
    for _ in range(draw(st.integers(0, 2)) if segments else 0):
        at = chance.randrange(len(segments))
        data = bytearray(segments[at])
        data[chance.randrange(len(data))] = chance.choice(b'"\\\r\n0a')
        cut = chance.choice((0, chance.randrange(len(data))))
        segments[at : at + 1] = [bytes(part) for part in (data[:cut], data[cut:]) if part]
    return event, segments


def observed(event: bytes, segments: list[bytes], coding: bytes = b"") -> tuple[object, ...]:
    """Return all that an observer reports on a response, and what it holds after each segment."""
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    request = b"POST %b HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}" % PATHS[event]
    observer.feed(CLIENT, request, 0.0)
    observer.feed(SERVER, HEAD % coding, 1.0)
    held = []
    for time, segment in enumerate(segments, 2):
        observer.feed(SERVER, segment, float(time))
        held.append((observer.held, observer.live, observer.inactive))
    observer.half_closed(CLIENT, 90.0)
    observer.aborted(91.0)
    return log.events, log.streams and log.final_streams(), held


def as_parsed(event: bytes, segments: list[bytes]) -> tuple[object, ...]:
    """Return the same for an observer that parses every segment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HttpExchange, "repeated", None)
        return observed(event, segments)


@settings(max_examples=300, deadline=None)
@given(response=responses())
def test_segments_are_read_as_by_the_parsers(response: tuple[bytes, list[bytes]]) -> None:
    event, segments = response
    assert observed(event, segments) == as_parsed(event, segments)


@pytest.mark.parametrize("event", PATHS)
def test_texts_are_read_as_by_the_parsers(event: bytes) -> None:
    repeated = chunk(b"data: " + event % b"a" + b"\n\n")
    before, after = event.split(b"%b")
    bodies = [before + text + after for text in TEXTS] + [b"x" + after, before + b"x", b"x"]
    for body in bodies:
        segments = [repeated] * 3 + [chunk(b"data: " + body + b"\n\n"), repeated]
        assert observed(event, segments) == as_parsed(event, segments), body


@pytest.mark.parametrize("event", PATHS)
def test_segments_inside_a_chunk_or_an_event_repeat_nothing(event: bytes) -> None:
    body = b"data: " + event % b"a" + b"\n\n"
    repeated = chunk(body)
    inside_chunk = chunk(body + repeated)
    for middle in (
        [chunk(b"da"), repeated],
        [chunk(b": comment"), repeated],
        [inside_chunk[: -len(repeated) - 2], repeated, b"\r\n"],
    ):
        segments = [repeated] * 3 + middle + [repeated] * 3 + [b"0\r\n\r\n"]
        assert observed(event, segments) == as_parsed(event, segments)


@pytest.mark.parametrize("event", PATHS)
def test_repeated_events_are_read_without_the_parsers(
    event: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    split, parsed = SseSplitter.feed, []

    def feed(splitter: SseSplitter, data: bytes, time: float) -> None:
        parsed.append(data)
        split(splitter, data, time)

    monkeypatch.setattr(SseSplitter, "feed", feed)
    texts = (b"%d" % number for number in range(100))
    segments = [chunk(b"data: " + event % text + b"\n\n") for text in texts]
    events = observed(event, segments)[0]
    assert len(parsed) == 2, "the first event is a template, the second confirms it"
    assert [each[:3] for each in chunks(events)] == [
        ("chunk", 0, float(time)) for time in range(2, 102)
    ]


def test_text_that_needs_a_parser_and_empty_text_are_counted_alike() -> None:
    texts = (b"a", b"b", b"", b'\\"', b"c", b"\\\\", b"", b"d")
    segments = [chunk(b"data: " + OPENAI % text + b"\n\n") for text in texts]
    assert [each[2] for each in chunks(observed(OPENAI, segments)[0])] == [2, 3, 5, 6, 7, 9]


def test_plain_bytes_in_a_compressed_stream_repeat_no_event() -> None:
    body = b"data: " + OPENAI % b"a" + b"\n\n"
    deflate = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    packed = [chunk(deflate.compress(body) + deflate.flush(zlib.Z_SYNC_FLUSH)) for _ in range(3)]
    events, _, _ = observed(OPENAI, [*packed, chunk(body)], b"Content-Encoding: gzip\r\n")
    assert len(chunks(events)) == 3


def chunks(events: object) -> list[Event]:
    assert isinstance(events, list)
    return [each for each in events if each[0] == "chunk"]
