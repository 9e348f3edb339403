"""Anthropic's Messages API on the wire, in the events of vLLM, trtllm-serve and SGLang."""

from __future__ import annotations

import pytest

from exporter.protocol.events import CLIENT, SERVER, ObserverSettings
from exporter.protocol.http1 import Http1Observer
from tests.event_log import WireLog
from tests.http_streams import (
    STREAM_HEAD,
    answered,
    chunk,
    chunks,
    request,
    skipped,
    streamed,
    typed,
)

PATH = "/v1/messages"
STOP = typed("message_stop")
PING = typed("ping")


def start(**usage: int) -> bytes:
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "org/model",
        "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 0, **usage},
    }  # fmt: skip
    return typed("message_start", message=message)


def begin(kind: str = "text", **members: object) -> bytes:
    return typed("content_block_start", index=0, content_block={"type": kind, **members})


def delta(text: str, kind: str = "text_delta", member: str = "text") -> bytes:
    return typed("content_block_delta", index=0, delta={"type": kind, member: text})


def last(reason: str = "end_turn", **usage: int) -> bytes:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return typed("message_delta", delta=delta, usage={"output_tokens": 3, **usage})


def end(log: WireLog) -> tuple[str, str]:
    ended = log.of(0)[-1]
    assert ended[0] == "ended"
    return ended[2], ended[3]


def test_a_request_is_counted_with_its_model() -> None:
    body = {"max_tokens": 5, "model": "m", "stream": True, "metadata": {"user_id": "u"},
            "messages": [{"role": "user", "content": "Hi"}]}  # fmt: skip
    stream = streamed(PATH, [], body).at_start[0]

    assert (stream.endpoint, stream.model, stream.request_id) == ("messages", "m", "u")
    assert stream.streaming


def test_a_stream_is_timed_by_its_deltas() -> None:
    log = streamed(PATH, [
        start(), begin(text=""), PING, delta("a"), delta("b"), delta("c"),
        typed("content_block_stop", index=0), last(), STOP,
    ])  # fmt: skip

    assert chunks(log) == [(4.0, 0), (5.0, 0), (6.0, 0)]
    stream = log.streams[0]
    assert (stream.model, stream.input_tokens, stream.output_tokens) == ("org/model", 9, 3)
    assert stream.counted
    assert end(log) == ("ok", "end_turn")
    assert skipped(log) == []


@pytest.mark.parametrize(
    ("event", "bears"),
    [
        (delta("a", "thinking_delta", "thinking"), True),
        (delta("{", "input_json_delta", "partial_json"), True),
        (delta("", "input_json_delta", "partial_json"), False),
        (delta("0f", "signature_delta", "signature"), False),
        (begin("tool_use", id="toolu_1", name="get_weather", input={}), True),
        (begin("thinking", thinking=""), False),
        (PING, False),
    ],
)
def test_which_chunks_have_text(event: bytes, bears: bool) -> None:
    assert chunks(streamed(PATH, [start(), event, last(), STOP])) == [(2.0, 0)] * bears


def test_tokens_from_the_cache_are_tokens_of_the_prompt() -> None:
    log = streamed(PATH, [start(cache_read_input_tokens=30), delta("a"), last(), STOP])

    stream = log.streams[0]
    assert (stream.input_tokens, stream.cached_tokens, stream.output_tokens) == (39, 30, 3)


def test_a_stream_that_breaks_off_has_no_number_of_output_tokens() -> None:
    log = streamed(PATH, [start(output_tokens=1), delta("a"), delta("b")], end=False)

    stream = log.streams[0]
    assert (stream.counted, stream.output_tokens, stream.input_tokens) == (False, None, 9)


def test_zero_tokens_count_as_unreported() -> None:
    events = [start(input_tokens=0), delta("a"), last(input_tokens=0, output_tokens=0), STOP]
    stream = streamed(PATH, events).streams[0]

    assert (stream.counted, stream.output_tokens, stream.input_tokens) == (False, None, None)


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([last("max_tokens"), STOP], ("ok", "max_tokens")),
        ([last("tool_use"), STOP], ("ok", "tool_use")),
        ([typed("error", error={"type": "api_error", "message": "text"})], ("error", "in_band")),
    ],
)
def test_how_streams_end(events: list[bytes], outcome: tuple[str, str]) -> None:
    assert end(streamed(PATH, [start(), delta("a"), *events])) == outcome


@pytest.mark.parametrize(("events", "outcome"), [(last(), "ok"), (STOP, "ok"), (b"", "truncated")])
def test_a_stream_needs_a_stop_reason_or_its_last_event(events: bytes, outcome: str) -> None:
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, request(PATH, {"model": "m", "stream": True}), 0.0)
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    observer.feed(SERVER, head + start() + delta("a") + events, 1.0)
    observer.half_closed(SERVER, 2.0)

    assert log.of(0)[-1][2] == outcome


def test_a_disconnect_after_message_stop_is_ok() -> None:
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, request(PATH, {"model": "m", "stream": True}), 0.0)
    events = start() + delta("a") + last() + STOP
    observer.feed(SERVER, STREAM_HEAD + chunk(events), 1.0)
    observer.aborted(2.0)

    assert end(log) == ("ok", "end_turn")


def test_a_whole_response_has_usage() -> None:
    log = answered(PATH, {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "org/model",
        "content": [{"type": "text", "text": "abc"}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 9, "output_tokens": 7, "cache_read_input_tokens": 4},
    })  # fmt: skip

    stream = log.streams[0]
    assert (stream.input_tokens, stream.output_tokens, stream.cached_tokens) == (13, 7, 4)
    assert stream.model == "org/model"
    assert end(log) == ("ok", "end_turn")


def test_an_error_has_the_outcome_of_its_status() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "text"}}

    assert end(answered(PATH, error, status=429)) == ("quota", "429")
    assert end(answered(PATH, error)) == ("error", "in_band")
