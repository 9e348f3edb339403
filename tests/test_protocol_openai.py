"""OpenAI's API: requests, chunks, usage and unary responses."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.protocol.events import CLIENT, SERVER, ObserverSettings, Stages, Stream
from exporter.protocol.http1 import Http1Observer
from exporter.protocol.sse import EVENT_BYTES
from tests.event_log import WireLog

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def request_bytes(body: object, path: str = "/v1/chat/completions") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def event(data: object, end: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + end


def chunk(delta: object, finish: str | None = None, index: int = 0, **more: object) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return event({"id": "1", "object": "chat.completion.chunk", "choices": [choice], **more})


def text(words: str, finish: str | None = None, **more: object) -> bytes:
    return event({"choices": [{"index": 0, "text": words, "finish_reason": finish}], **more})


def used(tokens: int, prompt: int = 5, cached: int | None = None) -> dict[str, object]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    total = {"total_tokens": prompt + tokens}
    return {"prompt_tokens": prompt, **total, "completion_tokens": tokens, **details}


def stream_of(body: object, path: str = "/v1/chat/completions") -> Stream:
    log = WireLog()
    Http1Observer(log, ObserverSettings()).feed(CLIENT, request_bytes(body, path), 1.0)
    return log.at_start[0]


def streamed(
    events: Iterable[bytes], *, end: bool = True, path: str = "/v1/chat/completions"
) -> WireLog:
    """Feed a stream with an event every second; return its events."""
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, request_bytes({"model": "m", "stream": True}, path), 0.0)
    observer.feed(SERVER, SSE, 0.5)
    time = 0.0
    for data in events:
        time += 1.0
        observer.feed(SERVER, b"%x\r\n%s\r\n" % (len(data), data), time)
    if end:
        observer.feed(SERVER, b"0\r\n\r\n", time)
    return log


def chunks(log: WireLog) -> list[tuple[float, int]]:
    """Return when text came, and how many tokens."""
    return [event[2:] for event in log.events if event[0] == "chunk"]


def whole(answer: bytes, *fields: str, status: int = 200) -> WireLog:
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, request_bytes({"model": "m"}), 1.0)
    head = [f"HTTP/1.1 {status} Word", f"Content-Length: {len(answer)}", *fields, "", ""]
    observer.feed(SERVER, "\r\n".join(head).encode() + answer, 2.0)
    return log


# Requests


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/completions", "completions"),
        ("/some/prefix/v1/completions?x=/v1/chat/completions", "completions"),
        ("http://host:1/v1/chat/completions", "chat"),
        ("/v1/chat%2Fcompletions", "chat"),
    ],
)
def test_requests_for_tokens(path: str, endpoint: str) -> None:
    stream = stream_of(
        {"model": "org/name", "stream": True, "n": 2, "user": "tokenslo-probe"}, path
    )

    assert (stream.endpoint, stream.model, stream.version) == (endpoint, "org/name", "")
    assert (stream.streaming, stream.choices) == (True, 2)
    assert (stream.request_id, stream.arrived) == ("tokenslo-probe", 1.0)


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ({}, ("", False, 1, "")),
        ({"model": 5, "stream": "true", "n": "2", "user": {"a": 1}}, ("", False, 1, "")),
        ({"model": None, "stream": 1, "n": -1, "user": ["x"]}, ("", False, 1, "")),
        ({"n": 1, "best_of": 4}, ("", False, 4, "")),
        ({"n": 10**9}, ("", False, 1024, "")),
        ({"prompt": "a"}, ("", False, 1, "")),
        ({"prompt": ["a", "", "c", "d"]}, ("", False, 4, "")),
        ({"prompt": [1, 2, 3]}, ("", False, 1, "")),
        ({"prompt": [[1, 2], [3]], "n": 3}, ("", False, 6, "")),
        ({"prompt": [7] * 100_000, "model": "m"}, ("m", False, 1, "")),
        ({"prompt": ["a,b"] * 2000, "model": "m"}, ("m", False, 128, "")),
        ({"model": 'ä\n"\\ \ud800'}, ('ä\n"\\ ?', False, 1, "")),
        ({"model": "m" * 257}, ("", False, 1, "")),
        ({"messages": [{"model": "x", "stream": True, "user": "y"}]}, ("", False, 1, "")),
        ({"messages": '"model":"x","stream":true', "stream": True}, ("", True, 1, "")),
        ({"model": "x", "stream": False, "model ": "y"}, ("x", False, 1, "")),
        (b'{"model":"a","model":"b","stream":true}', ("b", True, 1, "")),
        (b'{"mod\\u0065l" :\t"\\u0061\\"" , "stream":true}', ('a"', True, 1, "")),
        (b'["model","a"]', ("", False, 1, "")),
        (b'"model"', ("", False, 1, "")),
        (b"\xff\xfe\x00", ("", False, 1, "")),
        (b"", ("", False, 1, "")),
    ],
)
def test_request_body_fields(body: object, known: tuple[object, ...]) -> None:
    stream = stream_of(body)

    assert (stream.model, stream.streaming, stream.choices, stream.request_id) == known


def test_the_model_is_found_behind_a_prompt_of_any_size() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (2 << 20)}}
    content = [{"type": "text", "text": 'what is "this"?'}, image]
    messages = [{"role": "user", "content": content}] * 2
    data = request_bytes({"messages": messages, "model": "m", "stream": True, "n": 2})
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    for at in range(0, len(data), 65_536):
        observer.feed(CLIENT, data[at : at + 65_536], 1.0)
        assert observer.held < 1000
    observer.aborted(2.0)

    stream = log.at_start[0]
    assert (stream.model, stream.streaming, stream.choices) == ("m", True, 2)
    assert log.of(0)[-1] == ("ended", 2.0, "client_disconnected", "", None)


# Streams


@pytest.mark.parametrize(
    "bears",
    [
        chunk({"content": "a"}),
        chunk({"role": "assistant", "content": "a"}),
        chunk({"content": None, "reasoning_content": "a"}),
        chunk({"content": "", "reasoning": "a"}),
        chunk({"refusal": "a"}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}),
        chunk({"content": " "}),
        chunk({"content": '\u2028\n\r"\\'}),
        text("a"),
        text("a", "stop"),
        event({"choices": [{"text": "a"}]}),
        event({"choices": [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]}),
        b'data:{"choices":[{"text":"a"}]}\n\n',
        b'data: {"choices":[{"text":"\t"}]}\n\n',
        b'data: {"choices":[{"text":"a"}]} \n\n',
        b'data: {"choices":\rdata: [{"text":"a"}]}\r\r',
        b'data: {"choices":\rdata: [{"text":"a"}]}\n\n',
        b'event: a\r\nid: 5\r\nretry: 1\r\n: note\r\ndata: {"choices":[{"text":"a"}]}\r\n\r\n',
    ],
)
def test_which_chunks_have_text(bears: bytes) -> None:
    assert chunks(streamed([bears])) == [(1.0, 0)]


@pytest.mark.parametrize(
    "bears_not",
    [
        chunk({"role": "assistant"}),
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": None, "tool_calls": [], "reasoning_content": ""}),
        chunk({"content": ""}, "stop"),
        chunk({}, "stop"),
        chunk({"content": "b"}, index=1),
        text(""),
        event({"choices": [], "usage": used(7)}),
        event({"choices": [], "prompt_filter_results": "text"}),
        event({"id": "content", "choices": [{"index": 0, "delta": {"role": '"content":"x"'}}]}),
        event({"note": '{"choices":[{"index":0,"text":"x"}]}'}),
        DONE,
        b"data: [DONE] \n\n",
        b": ping\n\n",
        b"event: ping\ndata: {}\n\n",
        b"data\n\n",
        b"data:\n\n",
        b'datas: {"choices":[{"text":"a"}]}\n\n',
        b'data: {"choices":[{"text":"a"}]}\n',
    ],
)
def test_event_without_text_is_no_chunk(bears_not: bytes) -> None:
    log = streamed([bears_not])

    assert chunks(log) == []
    assert log.events[-1][0] == "ended"


def test_continuous_usage_gives_tokens_per_chunk() -> None:
    log = streamed(
        [
            chunk({"role": "assistant", "content": ""}, usage=used(0)),
            chunk({"content": "a"}, usage=used(1)),
            chunk({"content": "b"}, usage=used(3)),
            chunk({"content": ""}, usage=used(4)),
            chunk({"content": "the rest of it"}, usage=used(4)),
            chunk({"content": "c"}, usage=used(6, cached=3)),
            chunk({"content": ""}, "length", usage=used(6)),
            event({"choices": [], "usage": used(6)}),
            DONE,
        ]
    )

    assert chunks(log) == [(2.0, 1), (3.0, 2), (4.0, 1), (6.0, 2)]
    stream = log.streams[0]
    assert (stream.input_tokens, stream.output_tokens, stream.cached_tokens) == (5, 6, 3)
    assert stream.counted


def test_usage_only_in_the_last_text_chunk_is_the_total() -> None:
    log = streamed([text("a"), text("b", usage=None), text("c", "stop", usage=used(9))])

    assert chunks(log) == [(1.0, 0), (2.0, 0), (3.0, 0)]
    assert log.streams[0].output_tokens == 9


def test_a_stream_without_usage_is_not_counted() -> None:
    stream = streamed([text("a"), DONE]).streams[0]

    assert (stream.counted, stream.output_tokens, stream.input_tokens) == (False, None, None)


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ([text("a"), text("", "stop"), DONE], ("ok", "stop")),
        ([text("a"), text("", "tool_calls"), DONE], ("ok", "tool_calls")),
        ([text("a"), DONE], ("ok", "")),
        ([text("a"), text("", "timeout"), DONE], ("timeout", "total")),
        ([text("a"), text("", "cancelled"), DONE], ("cancelled", "cancelled")),
        ([text("a"), text("", "abort"), DONE], ("cancelled", "abort")),
        ([text("a"), text("", "error"), DONE], ("error", "error")),
        ([text("a"), event({"error": {"message": "text"}}), DONE], ("error", "in_band")),
        ([event({"error": "text"})], ("error", "in_band")),
        ([event({"object": "error", "message": "text", "code": 500})], ("error", "in_band")),
        ([event({"error": None, "choices": []}), DONE], ("ok", "")),
        ([text("a"), b"data: half an ev"], ("truncated", "unended")),
    ],
)
def test_how_streams_end(events: list[bytes], end: tuple[str, str]) -> None:
    assert streamed(events).of(0)[-1] == ("ended", float(len(events)), *end, None)


def test_a_disconnect_after_the_end_marker_is_ok() -> None:
    for leave in ("aborted", "half_closed", "server_lost"):
        log = WireLog()
        observer = Http1Observer(log, ObserverSettings())
        observer.feed(CLIENT, request_bytes({"model": "m", "stream": True}), 0.0)
        data = text("a", "stop") + DONE
        observer.feed(SERVER, SSE + b"%x\r\n%s\r\n" % (len(data), data), 1.0)
        if leave == "half_closed":
            observer.half_closed(CLIENT, 2.0)
        if leave == "server_lost":
            observer.server_lost(3.0)
        observer.aborted(3.0)

        assert log.of(0)[1:] == [("chunk", 1.0, 0), ("ended", 3.0, "ok", "stop", None)]


@pytest.mark.parametrize(("mark", "outcome"), [(DONE, "ok"), (b"", "truncated")])
def test_stream_that_ends_with_its_connection_needs_the_end_marker(
    mark: bytes, outcome: str
) -> None:
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, request_bytes({"model": "m", "stream": True}), 0.0)
    head = b"HTTP/1.0 200 OK\r\nContent-Type: Text/Event-Stream\r\n\r\n"
    observer.feed(SERVER, head + text("a") + mark, 1.0)
    observer.half_closed(SERVER, 2.0)

    assert log.of(0)[-1][2] == outcome


def reachable(root: object) -> Iterable[object]:
    """Yield everything that an object holds on to, but for what the program itself is made of."""
    seen, todo = {id(root)}, [root]
    while todo:
        thing = todo.pop()
        yield thing
        for other in gc.get_referents(thing):
            if id(other) not in seen and not isinstance(other, (type, ModuleType, FunctionType)):
                seen.add(id(other))
                todo.append(other)


def test_no_text_is_held_after_its_event() -> None:
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings(salt=b"salt"))
    prompt = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "SECRET"}]}
    observer.feed(CLIENT, request_bytes(prompt), 1.0)
    observer.feed(SERVER, SSE, 1.0)
    logprobs = {"logprobs": {"content": [{"token": "SECRET", "logprob": -1.0}]}}
    for data in (
        chunk({"content": "SECRET"}),
        chunk({"content": "SECRET SECRET"}),
        chunk({"content": "SECRET"}, **logprobs),
        chunk({"content": "a", "reasoning_content": "SECRET"}),
        event({**logprobs, "choices": [{"text": "SECRET"}]}),
        chunk({"content": "SECRET" * EVENT_BYTES}),
    ):
        observer.feed(SERVER, b"%x\r\n%s\r\n" % (len(data), data), 2.0)
        for thing in reachable(observer):
            assert not (isinstance(thing, str) and "SECRET" in thing)
            assert not (isinstance(thing, bytes | bytearray) and b"SECRET" in thing)
    assert len(chunks(log)) == 6


def test_invalid_json_is_skipped_once() -> None:
    log = streamed([text("a"), b"data: hello\n\n", b"data: [1]\n\n", text("b"), DONE])

    assert chunks(log) == [(1.0, 0), (4.0, 0)]
    assert [event for event in log.events if event[0] == "skipped"] == [("skipped", "event")]


def test_timing_of_trtllm_serve_comes_after_the_end_mark() -> None:
    timing = {"Server-Timing": "server_queue;dur=2.5, server_ttft;dur=12.5, server_e2e;dur=112.5"}
    log = streamed([text("a"), DONE, b"event: trtllm.perf_metrics\n" + event(timing)])

    assert log.streams[0].stages == Stages(0.0025, pytest.approx(0.01), pytest.approx(0.1))
    assert log.of(0)[-1] == ("ended", 3.0, "ok", "", None)


@pytest.mark.parametrize(
    ("timing", "stages"),
    [
        ("server_queue;dur=1, server_ttft;dur=3, server_e2e;dur=7", (0.001, 0.002, 0.004)),
        ("cache;dur=1, server_queue ; dur=1.0", (0.001, None, None)),
        ("server_ttft;dur=3, server_e2e;dur=7", (None, None, 0.004)),
        ("server_queue;dur=5, server_ttft;dur=3", (0.005, None, None)),
        ("server_queue;dur=-1", None),
        ("nothing", None),
    ],
)
def test_timing_in_the_header_of_a_whole_response(
    timing: str, stages: tuple[float | None, ...] | None
) -> None:
    found = whole(b"{}", f"Server-Timing: {timing}").streams[0].stages

    if stages is None:
        assert found is None
    else:
        assert found is not None
        assert (found.queue, found.prefill, found.decode) == pytest.approx(stages)


def test_event_of_equal_length_may_differ() -> None:
    log = streamed([text("a"), text("b"), text("c", "ab"), event({"choices": [], "error": 1})])

    assert chunks(log) == [(1.0, 0), (2.0, 0), (3.0, 0)]
    assert log.of(0)[-1][2:4] == ("error", "in_band")
    assert streamed([text("a"), text("b"), text("c", "ab")]).of(0)[-1][2:4] == ("ok", "ab")


def test_text_in_either_field_is_found() -> None:
    log = streamed(
        [
            chunk({"content": "a", "reasoning_content": ""}),
            chunk({"content": "", "reasoning_content": "b"}),
            chunk({"content": "a", "reasoning_content": "b"}),
            chunk({"content": "", "reasoning_content": "b"}),
            chunk({"content": "a", "reasoning_content": ""}),
            chunk({"content": "", "reasoning_content": ""}),
            chunk({"content": "a", "name": "b"}),
            chunk({"content": "", "name": "b"}),
            chunk({"tool_calls": [{"index": 0}], "name": "b"}),
            chunk({"tool_calls": [{"index": 0}], "name": ""}),
        ]
    )

    assert [time for time, _ in chunks(log)] == [1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 9.0, 10.0]


def test_trailing_bytes_are_invalid_json() -> None:
    log = streamed([text("a"), text("b"), text("c")[:-2] + b"x\n\n"])

    assert chunks(log) == [(1.0, 0), (2.0, 0)]
    assert ("skipped", "event") in log.events


def test_chunks_of_other_choices_are_counted_separately() -> None:
    events = [chunk({"content": "a"}, index=number % 3) for number in range(9)]
    log = streamed([*events, chunk({"content": ""}, index=1), DONE])

    assert chunks(log) == [(1.0, 0), (4.0, 0), (7.0, 0)]
    assert log.streams[0].other_chunks == 6


def test_continuous_usage_of_one_choice_is_not_the_total() -> None:
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, request_bytes({"model": "m", "stream": True, "n": 2}), 0.0)
    observer.feed(SERVER, SSE, 0.5)
    events = [chunk({"content": "a"}, index=number % 2, usage=used(number // 2 + 1))
              for number in range(6)]  # fmt: skip
    for number, data in enumerate(events, 1):
        observer.feed(SERVER, b"%x\r\n%s\r\n" % (len(data), data), float(number))

    assert (log.streams[0].counted, log.streams[0].other_chunks) == (False, 3)
    data = event({"choices": [], "usage": used(6)}) + DONE
    observer.feed(SERVER, b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data), 7.0)

    assert (log.streams[0].counted, log.streams[0].output_tokens) == (True, 6)
    assert chunks(log) == [(1.0, 0), (3.0, 0), (5.0, 0)]


TIMING = {"time_to_first_token_ms": 30.0, "generation_time_ms": 400, "queue_time_ms": 20.0,
          "mean_itl_ms": 4.0, "tokens_per_second": 200.0}  # fmt: skip


def test_vllm_timing_in_the_usage_chunk() -> None:
    last = event({"choices": [], "usage": used(1), "metrics": TIMING})
    log = streamed([text("a"), text("", "stop"), last, DONE])

    assert log.streams[0].stages == Stages(0.02, 0.03, 0.4)


@pytest.mark.parametrize(
    ("metrics", "stages"),
    [
        (TIMING, Stages(0.02, 0.03, 0.4)),
        ({**TIMING, "queue_time_ms": None}, Stages(None, 0.03, 0.4)),
        ({**TIMING, "queue_time_ms": -1}, Stages(None, 0.03, 0.4)),
        ({**TIMING, "queue_time_ms": "1"}, Stages(None, 0.03, 0.4)),
        ({"mean_itl_ms": 4.0}, None),
        (None, None),
        ("x", None),
    ],
)
def test_vllm_timing_in_whole_responses(metrics: object, stages: Stages | None) -> None:
    answer = {"choices": [{"index": 0, "text": "a"}], "usage": used(1), "metrics": metrics}

    assert whole(json.dumps(answer).encode()).streams[0].stages == stages


# Whole answers


def test_a_whole_response_has_usage_and_a_reason() -> None:
    choices = [{"index": 0, "message": {"content": "text"}, "finish_reason": "length"}]
    log = whole(json.dumps({"choices": choices, "usage": used(6, cached=2)}).encode())

    stream = log.streams[0]
    assert log.of(0) == [("started", 1.0), ("ended", 2.0, "ok", "length", None)]
    assert (stream.input_tokens, stream.output_tokens, stream.cached_tokens) == (5, 6, 2)
    assert (stream.counted, stream.streaming) == (True, False)


def test_a_large_whole_response_is_scanned_and_not_buffered() -> None:
    content = 'a "quoted\\" text, "usage":{"completion_tokens":1} ' * 40000
    logprobs = [{"token": "a]}", "top": [{"token": "{["}]}] * 3000
    choice = {"message": {"content": content}, "logprobs": logprobs, "finish_reason": "stop"}
    answer = json.dumps({"choices": [choice, choice], "usage": used(77)}).encode()
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, request_bytes({"model": "m"}), 1.0)
    observer.feed(SERVER, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer), 2.0)
    for at in range(0, len(answer), 10007):
        observer.feed(SERVER, answer[at : at + 10007], 3.0)
        assert observer.held < 1000

    assert log.of(0)[-1] == ("ended", 3.0, "ok", "stop", None)
    assert log.streams[0].output_tokens == 77


@pytest.mark.parametrize(
    ("answer", "status", "end"),
    [
        (b'{"error":{"message":"x"}}', 200, ("error", "in_band")),
        (b'{"error":{"message":"x"}}', 400, ("invalid", "400")),
        (b"not json", 200, ("ok", "")),
        (b"", 200, ("ok", "")),
        (b'{"choices":[{"finish_reason":"cancelled"}]}', 200, ("cancelled", "cancelled")),
    ],
)
def test_outcomes_of_whole_responses(answer: bytes, status: int, end: tuple[str, str]) -> None:
    assert whole(answer, status=status).of(0)[-1] == ("ended", 2.0, *end, None)


# Reading without parsing gives what parsing gives

WORDS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ['"', "\\", '\\"', '","content":"x', '"}}]}', "[DONE]", "\n\ndata: ", "é\u2028"]
    ),
)
NAMES = st.sampled_from(["a", "content", "text", "usage", 'x"y'])
EXTRAS = st.dictionaries(
    NAMES.map(lambda name: f"x_{name}"),
    st.one_of(st.none(), st.integers(), WORDS, st.lists(WORDS, max_size=2)),
    max_size=2,
)


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw the chunks of a stream: most alike but for their text, some not."""
    chat = draw(st.booleans())
    extras, inner = draw(EXTRAS), draw(EXTRAS)
    counted = draw(st.sampled_from([None, "never", "always"]))
    found, tokens = [], 0
    for _ in range(draw(st.integers(1, 8))):
        tokens += draw(st.integers(0, 2))
        words = draw(WORDS)
        choice: dict[str, Any] = {"index": draw(st.sampled_from([0, 0, 0, 1]))}
        choice |= {"delta": {"content": words, **inner}} if chat else {"text": words, **inner}
        choice["finish_reason"] = draw(st.sampled_from([None, None, None, "stop"]))
        document: dict[str, Any] = {"id": "1", "model": "m", **extras, "choices": [choice]}
        if draw(st.integers(0, 5)) == 0:
            document["created"] = draw(st.integers(0, 2))
        if draw(st.integers(0, 9)) == 0:
            document["choices"] = []
        if counted:
            usage = {"prompt_tokens": 1, "completion_tokens": tokens}
            document["usage"] = usage if counted == "always" else None
        if draw(st.integers(0, 3)) == 0:
            items = list(document.items())
            document = dict(draw(st.permutations(items)))
        found.append(document)
    return found


def expected(documents: Iterable[dict[str, Any]]) -> list[tuple[float, int]]:
    """Return the chunks of a stream by the rules, from parsed documents."""
    found: list[tuple[float, int]] = []
    before, uncounted = 0, False
    for number, document in enumerate(documents):
        choices = [choice for choice in document["choices"] if choice["index"] == 0]
        if not choices:
            continue
        words = choices[0].get("text") or choices[0].get("delta", {}).get("content")
        tokens = (document.get("usage") or {}).get("completion_tokens", 0)
        if tokens and not uncounted:
            if tokens > before:
                found.append((number + 1.0, tokens - before))
                before = tokens
        elif words:
            uncounted = True
            found.append((number + 1.0, 0))
    return found


@settings(max_examples=300, deadline=None)
@given(found=documents(), spaced=st.booleans(), raw=st.booleans())
def test_scanning_gives_what_parsing_gives(
    found: list[dict[str, Any]], spaced: bool, raw: bool
) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    events = [
        json.dumps(document, separators=separators, ensure_ascii=not raw)
        .replace("\u2028", "\\u2028")
        .encode("utf-8", "surrogatepass")
        for document in found
    ]
    log = streamed([b"data: " + data + b"\n\n" for data in events])

    assert chunks(log) == expected(found)


@settings(max_examples=60, deadline=None)
@given(found=documents())
def test_events_too_long_to_buffer_are_scanned(found: list[dict[str, Any]]) -> None:
    padding = {"prompt_logprobs": ["x{[" * 10] * (EVENT_BYTES // 30)}
    events = [event({**padding, **document}) for document in found]

    assert chunks(streamed(events)) == expected(found)
