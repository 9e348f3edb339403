"""Compressed bodies: read where zlib can, and outcomes where it cannot."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable

import pytest

from exporter.protocol.decompression import MAX_CHUNK_BYTES
from exporter.protocol.events import CLIENT, SERVER, Listener, ObserverSettings
from exporter.protocol.http1 import Http1Observer
from exporter.recording.goodput import GoodputObjective
from exporter.recording.stream_recorder import StreamRecorder
from slos.signals import slo_events
from tests.event_log import WireLog
from tests.http_streams import STREAM_HEAD, chunk, chunks, event, request, skipped
from tests.test_stream_recorder import spread, value

PATH = "/v1/chat/completions"
ASK = {"model": "m", "stream": True}
DONE = b"data: [DONE]\n\n"
BITS = {"gzip": 31, "deflate": 15, "raw": -15}


def token(text: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


def compressor(kind: str) -> Callable[[bytes], bytes]:
    """Return what compresses a stream piece by piece, each of which can be read at once."""
    compress = zlib.compressobj(wbits=BITS[kind])
    return lambda data: compress.compress(data) + compress.flush(zlib.Z_SYNC_FLUSH)


def head(encoding: str, start: bytes = STREAM_HEAD) -> bytes:
    return start.replace(b"\r\n\r\n", f"\r\nContent-Encoding: {encoding}\r\n\r\n".encode())


def begun(listener: Listener, encoding: str) -> Http1Observer:
    observer = Http1Observer(listener, ObserverSettings())
    observer.feed(CLIENT, request(PATH, ASK), 0.0)
    observer.feed(SERVER, head(encoding), 0.5)
    return observer


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [("gzip", "gzip"), ("GZIP", "gzip"), ("x-gzip", "gzip"), ("deflate", "deflate"),
     ("deflate", "raw")],
)  # fmt: skip
def test_a_compressed_stream_is_timed_event_by_event(encoding: str, kind: str) -> None:
    log = WireLog()
    observer = begun(log, encoding)
    compress = compressor(kind)
    usage = {"prompt_tokens": 5, "completion_tokens": 3}
    last = event({"choices": [], "usage": usage}) + DONE
    for time, data in enumerate([token("a"), token("b"), token("", "stop"), last], 1):
        observer.feed(SERVER, chunk(compress(data)), float(time))
    observer.feed(SERVER, b"0\r\n\r\n", 5.0)

    assert chunks(log) == [(1.0, 0), (2.0, 0)]
    assert log.of(0)[-1] == ("ended", 5.0, "ok", "stop", None)
    assert (log.streams[0].output_tokens, log.streams[0].opaque) == (3, False)
    assert skipped(log) == []


def test_an_event_may_be_cut_anywhere() -> None:
    compress = compressor("gzip")
    body = b"".join(map(compress, [token("a"), token("b"), DONE]))
    for size in (1, 7, len(body)):
        log = WireLog()
        observer = begun(log, "gzip")
        for at in range(0, len(body), size):
            observer.feed(SERVER, chunk(body[at : at + size]), 1.0)
        observer.feed(SERVER, b"0\r\n\r\n", 2.0)
        assert chunks(log) == [(1.0, 0), (1.0, 0)]
        assert log.of(0)[-1][2] == "ok"


def test_a_whole_response_has_version_and_tokens() -> None:
    answer = {"model_name": "m", "model_version": "3", "outputs": []}
    data = compressor("gzip")(json.dumps(answer).encode())
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, request("/v2/models/m/infer", {}), 0.0)
    lines = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n"
    observer.feed(SERVER, f"{lines}Content-Length: {len(data)}\r\n\r\n".encode() + data, 1.0)

    assert log.streams[0].version == "3"
    assert log.of(0)[-1] == ("ended", 1.0, "ok", "", None)


def test_a_compressed_request_has_its_model() -> None:
    data = zlib.compress(json.dumps({"messages": ["x" * 50_000], **ASK}).encode(), wbits=31)
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, request(PATH, data, "POST", "Content-Encoding: gzip"), 0.0)

    assert (log.at_start[0].model, log.at_start[0].streaming) == ("m", True)


def bomb() -> bytes:
    return zlib.compress(bytes(MAX_CHUNK_BYTES * 8), wbits=31)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("br", b"\x8b\x00"), ("zstd", b"\x28\xb5"), ("gzip, gzip", b"\x1f\x8b"),
     ("gzip", b"no gzip"), ("gzip", bomb())],
)  # fmt: skip
def test_unreadable_stream_has_outcome_and_duration(encoding: str, body: bytes) -> None:
    log = WireLog()
    limits = {"ttft": [0.1, 3.5], "max_gap": [0.1], "itl": [0.1], "e2e": [9.0]}
    recorder = StreamRecorder(limits, [GoodputObjective("a/b", "", {"ttft": 3.5})], expected=["m"])
    for listener in (log, recorder):
        observer = begun(listener, encoding)
        list(recorder.evaluate_active(3.0))
        observer.feed(SERVER, chunk(body), 3.0)
        list(recorder.evaluate_active(3.9))
        observer.feed(SERVER, chunk(body) + b"0\r\n\r\n", 4.0)

    assert log.of(0) == [("started", 0.0), ("ended", 4.0, "ok", "", None)]
    assert skipped(log) == ["compressed"]
    assert log.streams[0].opaque
    assert value(recorder, "requests", outcome="ok") == 1
    assert value(recorder, "streams", outcome="ok", phase="complete") == 1
    assert spread(recorder, "e2e") == (1, 4.0)
    assert spread(recorder, "ttft") == (0, 0)
    assert value(recorder, "requests_without_first_token") == 0
    assert value(recorder, "goodput", result="unknown") == 1
    assert value(recorder, "goodput", result="bad") == 0
    # Its first token is later than 0.1 s, because nothing had come before.
    late = [value(recorder, slo_events(signal), result="bad") for signal in limits]
    assert late == [1, 0, 0, 0]
    assert value(recorder, slo_events("e2e"), result="good") == 1


@pytest.mark.parametrize(("body", "phase"), [(b"", "before_first_token"), (b"x", "mid_stream")])
def test_unreadable_stream_has_disconnects(body: bytes, phase: str) -> None:
    recorder = StreamRecorder({}, [GoodputObjective("a/b", "", {"ttft": 9.5})], expected=["m"])
    observer = begun(recorder, "br")
    if body:
        observer.feed(SERVER, chunk(body), 1.0)
    assert sum(recorder.waiting().values()) == 0  # nothing shows whether it waits for a token
    observer.aborted(9.0)

    assert value(recorder, "disconnects", phase=phase) == 1
    assert value(recorder, "requests", outcome="client_disconnected") == 1
    assert value(recorder, "requests_without_first_token") == (phase == "before_first_token")
    assert value(recorder, "goodput") == 0


def test_decompression_bomb_is_inflated_up_to_the_limit() -> None:
    data = bomb()
    assert len(data) < MAX_CHUNK_BYTES // 100
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, request(PATH, data, "POST", "Content-Encoding: gzip"), 0.0)

    assert log.at_start[0].model == ""
    assert observer.held < 1000
