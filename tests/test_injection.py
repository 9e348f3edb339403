"""Injection: request the engine's timing, and remove it from responses."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.protocol.http1_framing import HEAD_BYTES
from exporter.protocol.injection import Injection
from exporter.protocol.timing_removal import MAX_RESPONSE, OUTPUTS

TIMES = {
    "arrival_time_ns": 1_000_000_000,
    "first_scheduled_time_ns": 1_100_000_000,
    "first_token_time_ns": "1300000000",  # the LLM API's model writes texts
    "last_token_time_ns": 1_900_000_000,
}


def input_of(model: str) -> str:
    return {"chat": "return_perf_metrics", "a b": "sampling_param_return_perf_metrics"}.get(
        model, ""
    )


def request(path: str, body: bytes, *fields: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: triton", *fields, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def injected_body(path: str, body: bytes, *fields: str) -> bytes:
    """Return the body that the server gets, and check its content length."""
    sent = Injection(input_of).from_client(request(path, body, *fields))
    head, _, rest = sent.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(rest)}".encode() in head.split(b"\r\n")
    return rest


def chunked(*chunks: bytes, content_type: str = "text/event-stream; charset=utf-8") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    return head.encode() + body


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


def answered(
    request_: bytes, answer: bytes, cut: Callable[[bytes], Sequence[bytes]] = lambda b: [b]
):
    injection = Injection(input_of)
    for part in cut(request_):
        injection.from_client(part)
    return b"".join(map(injection.from_server, cut(answer))) + injection.server_ended()


STREAM = "/v2/models/chat/generate_stream"
ASK = request(STREAM, b'{"text_input":"Hi","max_tokens":2}')


def test_a_model_with_the_input_gets_the_parameter() -> None:
    body = injected_body(STREAM, b' {"text_input": "Hi"}')
    assert body == b' {"return_perf_metrics":true,"text_input": "Hi"}'
    body = injected_body("/v2/models/a%20b/versions/2/generate", b'{"text_input":"Hi"}')
    assert body == b'{"sampling_param_return_perf_metrics":true,"text_input":"Hi"}'


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("/v2/models/other/generate_stream", b'{"text_input":"Hi"}', ()),
        ("/v2/models/chat/infer", b'{"inputs":[]}', ()),
        (STREAM, b'{"return_perf_metrics":false,"text_input":"Hi"}', ()),
        (STREAM, b"[1]", ()),
        (STREAM, b"{}", ()),
        (STREAM, b"no JSON", ()),
        (STREAM, b'{"text_input":"Hi"}', ("Expect: 100-continue",)),
        (STREAM, b'{"text_input":"%s"}' % (b"x" * 2**20), ()),
        (STREAM, b"[" * 100_000, ()),
    ],
)
def test_other_requests_and_their_responses_pass_unchanged(
    path: str, body: bytes, fields: tuple[str, ...]
) -> None:
    request_ = request(path, body, *fields)
    assert Injection(input_of).from_client(request_) == request_
    answer = chunked(event(text_output="a", **TIMES))
    assert answered(request_, answer) == answer


def test_a_chunked_request_and_the_next_one_pass_unchanged() -> None:
    request_ = (
        f"POST {STREAM} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        '9\r\n{"a":"b"}\r\n0\r\nTrailer: 1\r\n\r\n'
    ).encode()
    injection = Injection(input_of)
    assert injection.from_client(request_) == request_
    assert b"return_perf_metrics" in injection.from_client(ASK)


def test_only_the_timing_is_removed_from_events() -> None:
    plain = event(model_name="chat", model_version="1", text_output='say "data: {}" \\ \u00e9')
    last = {"model_name": "chat", "sequence_index": 0, "text_output": "b"}
    assert answered(ASK, chunked(plain, event(**TIMES, **last))) == chunked(plain, event(**last))


def test_an_event_with_timing_only_is_removed() -> None:
    plain = event(model_name="chat", model_version="1", text_output="a")
    timing = event(model_name="chat", model_version="1", **TIMES)
    assert answered(ASK, chunked(plain, timing)) == chunked(plain)


def test_an_event_may_come_in_two_chunks_or_share_one() -> None:
    first, last = event(text_output="a"), event(text_output="b", **TIMES)
    both = first + last
    answer = chunked(both[:20], both[20:-5], both[-5:])
    body = answered(ASK, answer).partition(b"\r\n\r\n")[2]
    assert dechunked(body) == first + event(text_output="b")


def dechunked(body: bytes) -> bytes:
    data = b""
    while (size := int((line := body.split(b"\r\n", 1)[0]), 16)) > 0:
        start = len(line) + 2
        data += body[start : start + size]
        body = body[start + size + 2 :]
    assert body == b"0\r\n\r\n"
    return data


def test_a_whole_response_gets_a_new_length() -> None:
    request_ = request("/v2/models/chat/generate", b'{"text_input":"Hi"}')
    body = json.dumps({"model_name": "chat", **TIMES, "text_output": "a"}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    answer = answered(request_, head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert json.loads(rest) == {"model_name": "chat", "text_output": "a"}
    assert b"Content-Length: %d" % len(rest) in head.split(b"\r\n")


def test_a_chunked_response_is_changed_as_a_whole() -> None:
    request_ = request("/v2/models/chat/generate", b'{"text_input":"Hi"}')
    body = json.dumps({"model_name": "chat", **TIMES, "text_output": "a"}).encode()
    answer = answered(request_, chunked(body[:30], body[30:], content_type="application/json"))
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert json.loads(dechunked(rest)) == {"model_name": "chat", "text_output": "a"}
    assert b"Transfer-Encoding: chunked" in head


def test_a_response_too_large_to_buffer_passes_unchanged() -> None:
    request_ = request("/v2/models/chat/generate", b'{"text_input":"Hi"}')
    body = json.dumps({**TIMES, "text_output": "a" * MAX_RESPONSE}).encode()
    answer = chunked(body[: 2**20], body[2**20 :], content_type="application/json")
    got = answered(request_, answer).partition(b"\r\n\r\n")[2]
    assert dechunked(got) == body


def test_trtllm_serve_gets_the_header_and_its_timing_is_removed() -> None:
    request_ = request("/v1/chat/completions", b'{"model":"m","stream":true}')
    sent = Injection(input_of).from_client(request_)
    assert sent == request_.replace(b"\r\n\r\n", b"\r\nX-TRTLLM-return-metrics: 1\r\n\r\n")
    timing = b'event: trtllm.perf_metrics\ndata: {"Server-Timing":"server_queue;dur=1"}\n\n'
    answer = chunked(b'data: {"choices":[]} \n\n', b"data: [DONE]\n\n", timing)
    kept = chunked(b'data: {"choices":[]} \n\n', b"data: [DONE]\n\n")
    assert answered(request_, answer) == kept
    whole = b"HTTP/1.1 200 OK\r\nserver-timing: server_queue;dur=1\r\nContent-Length: 2\r\n\r\n{}"
    assert answered(request_, whole) == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def test_a_client_that_requests_timing_keeps_it() -> None:
    request_ = request("/v1/completions", b'{"model":"m"}', "x-trtllm-return-metrics: 1")
    whole = b"HTTP/1.1 200 OK\r\nServer-Timing: server_queue;dur=1\r\nContent-Length: 2\r\n\r\n{}"
    assert Injection(input_of).from_client(request_) == request_
    assert answered(request_, whole) == whole


def test_responses_belong_to_requests_in_order() -> None:
    """Pipelined requests, with a 100 response and one without a body between."""
    probe = b"HEAD /v2/health/ready HTTP/1.1\r\n\r\n"
    empty = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    early = b"HTTP/1.1 100 Continue\r\n\r\n"
    timed, plain = chunked(event(text_output="a", **TIMES)), chunked(event(text_output="a"))
    other = request("/v2/models/other/generate_stream", b'{"text_input":"Hi"}')
    got = answered(probe + ASK + other + ASK, empty + early + timed + timed + timed)
    assert got == empty + early + plain + timed + plain


def test_a_response_until_close_is_changed_too() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    answer = head + event(text_output="a", **TIMES) + b": half an"
    assert answered(ASK, answer) == head + event(text_output="a") + b": half an"


def test_bytes_that_are_not_http_pass_unchanged() -> None:
    noise = b"x" * (HEAD_BYTES + 1)
    injection = Injection(input_of)
    assert injection.from_client(noise) == noise
    assert injection.from_client(b"more") == b"more"
    assert Injection(input_of).from_client(b"\x16\x03") == b""
    half = Injection(input_of)
    half.from_client(b"\x16\x03")
    assert half.client_ended() == b"\x16\x03"


texts = st.text(max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(texts, values, max_size=5), st.booleans(), st.data())
def test_any_document_keeps_every_other_member(
    fields: dict[str, object], spaced: bool, data: st.DataObject
) -> None:
    fields = {name: value for name, value in fields.items() if name not in OUTPUTS} | {"x": 1}
    items = data.draw(st.permutations([*fields.items(), *TIMES.items()]))
    body = b"data: " + json.dumps(dict(items), indent=None if not spaced else 1).encode()
    if b"\n\n" in body:
        return
    got = answered(ASK, chunked(body + b"\n\n")).partition(b"\r\n\r\n")[2]
    kept = dict(item for item in items if item[0] not in TIMES)
    text = dechunked(got).removeprefix(b"data: ").strip()
    assert list(json.loads(text).items()) == list(kept.items())


def cut_at(places: Sequence[int]) -> Callable[[bytes], list[bytes]]:
    def cut(data: bytes) -> list[bytes]:
        ends = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
        return [data[start:end] for start, end in pairwise(ends)]

    return cut


@given(st.lists(st.integers(0, 2000), max_size=12))
def test_any_split_gives_the_same_bytes(places: list[int]) -> None:
    other = request("/v2/models/other/generate", b'{"text_input":"Hi"}')
    requests = ASK + request("/v1/completions", b'{"model":"m"}') + other
    answers = (
        chunked(event(text_output="a"), event(text_output="b", **TIMES))
        + chunked(b"data: {}\n\n", b'event: trtllm.perf_metrics\ndata: {"a":1}\n\n')
        + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull"
    )
    cut = cut_at(places)
    injection = Injection(input_of)
    assert b"".join(map(injection.from_client, cut(requests))) == Injection(input_of).from_client(
        requests
    )
    assert answered(requests, answers, cut) == answered(requests, answers)


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_noise_never_raises(parts: list[bytes]) -> None:
    injection = Injection(input_of)
    for part in parts:
        injection.from_client(ASK[: len(part)] + part)
        injection.from_server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + part)


@given(st.lists(st.binary(max_size=60), max_size=8), st.sampled_from(
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
     b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"\r\n\r",
     b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"]
))  # fmt: skip
def test_invalid_responses_pass_unchanged(parts: list[bytes], begin: bytes) -> None:
    for request_ in (request("/v2/models/other/generate", b"{}"), ASK):
        injection = Injection(input_of)
        injection.from_client(request_)
        sent = b"".join(map(injection.from_server, [begin, *parts])) + injection.server_ended()
        assert sent == begin + b"".join(parts)
        injection = Injection(input_of)
        sent = b"".join(map(injection.from_client, parts)) + injection.client_ended()
        assert sent == b"".join(parts)


def test_after_an_upgrade_both_directions_pass_unchanged() -> None:
    request_ = b"GET /chat HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    injection = Injection(input_of)
    assert injection.from_client(request_) == request_
    switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
    assert injection.from_server(switch) == switch
    for frames in (b"\x81\x05hello", ASK):
        assert injection.from_client(frames) == frames
        assert injection.from_server(frames) == frames


@pytest.mark.parametrize(
    "request_", [ASK, request("/v1/completions", b"{}")], ids=["kserve", "openai"]
)
def test_the_cost_of_an_event_grows_with_its_size_alone(request_: bytes) -> None:
    def cost(size: int) -> float:
        long = event(text_output="x" * size)
        parts = [long[at : at + 4096] for at in range(0, len(long), 4096)]
        injection = Injection(input_of)
        injection.from_client(request_)
        begun = time.process_time()
        answer = chunked(*parts)
        sent = [injection.from_server(answer[at : at + 8192]) for at in range(0, len(answer), 8192)]
        spent = time.process_time() - begun
        assert dechunked(b"".join(sent).partition(b"\r\n\r\n")[2]) == long
        return spent

    small, large = (min(cost(size) for _ in range(3)) for size in (2**19, 2**22))
    assert large < 24 * small  # 8 times the size; its square would be 64 times the cost


def test_a_request_truncated_in_its_body_passes_unchanged() -> None:
    injection = Injection(input_of)
    head, _, _ = request(STREAM, b"x" * 1000).partition(b"\r\n\r\n")
    sent = head + b"\r\n\r\nDELETE / HTTP/1.1\r\nHost: triton\r\n\r\n"
    assert injection.from_client(sent) + injection.client_ended() == sent


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (
            request("/v2/models/chat/generate", b'{"text_input":"Hi"}'),
            b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        ),
        (ASK, chunked(event(text_output="a"))[: -len(b"\n\r\n0\r\n\r\n")]),
        (ASK, chunked(event(text_output="a"), b"data: {")[: -len(b"0\r\n\r\n")]),
    ],
    ids=["in a body", "in a chunk", "between chunks"],
)
def test_a_truncated_response_is_forwarded_as_received(request_: bytes, answer: bytes) -> None:
    assert answered(request_, answer) == answer


def test_empty_lines_before_a_request_are_ignored() -> None:
    timed = event(text_output="a", **TIMES)
    answer = answered(b"\r\n\r\n" + ASK, chunked(timed))
    assert answer == chunked(event(text_output="a"))
