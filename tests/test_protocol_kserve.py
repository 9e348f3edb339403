"""KServe v2 over HTTP: paths, events and unary responses."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.protocol.events import CLIENT, SERVER, ObserverSettings, Stages, Stream
from exporter.protocol.http1 import Http1Observer
from tests.event_log import WireLog, recorded, show

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def streams_of(path: str, body: object = None, method: str = "POST") -> list[Stream]:
    data = json.dumps(body or {}).encode()
    log = WireLog()
    head = f"{method} {path} HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    Http1Observer(log, ObserverSettings()).feed(CLIENT, head + data, 1.0)
    return log.streams


def streamed(*answers: object) -> WireLog:
    """Show a stream of events, one every second."""
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, b"POST /v2/models/m/generate_stream HTTP/1.1\r\n\r\n", 0.0)
    observer.feed(SERVER, SSE, 0.5)
    for number, answer in enumerate(answers):
        data = b"data: " + json.dumps(answer, separators=(",", ":")).encode() + b"\n\n"
        observer.feed(SERVER, b"%x\r\n%s\r\n" % (len(data), data), number + 1.0)
    observer.feed(SERVER, b"0\r\n\r\n", float(len(answers)))
    return log


def bearing(log: WireLog) -> list[float]:
    return [event[2] for event in log.events if event[0] == "chunk"]


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/v2/models/m/generate", ("generate", "m", "", False)),
        ("/v2/models/m/generate_stream", ("generate_stream", "m", "", True)),
        ("/v2/models/m/versions/12/generate_stream", ("generate_stream", "m", "12", True)),
        ("/v2/models/m/versions/12/generate", ("generate", "m", "12", False)),
        ("/v2/models/m/infer", ("generate", "m", "", False)),
        ("/v2/models/a%2Fb%20%C3%A4/generate", ("generate", "a/b ä", "", False)),
        ("/v2/models/versions/generate", ("generate", "versions", "", False)),
        ("/v2/models/m/generate?a=/v1/completions", ("generate", "m", "", False)),
        ("/v2/models/%FF/generate", ("generate", "\ufffd", "", False)),
    ],
)
def test_requests_for_tokens(path: str, known: tuple[object, ...]) -> None:
    (stream,) = streams_of(path, {"id": "tokenslo-probe", "text_input": "x"})

    assert (stream.endpoint, stream.model, stream.version, stream.streaming) == known
    assert stream.request_id == "tokenslo-probe"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/models/m/generate"),
        ("POST", "/v2/models/m/ready"),
        ("POST", "/v2/models/m/generate/"),
        ("POST", "/v2/models/m/versions/generate"),
        ("POST", "/v2/models//generate"),
        ("POST", "/v2/repository/models/m/load"),
        ("POST", "/v2/repository/index"),
        ("POST", "/x/v2/models/m/generate"),
        ("GET", "/v2/health/ready"),
    ],
)
def test_all_else_is_no_request_for_tokens(method: str, path: str) -> None:
    assert streams_of(path, method=method) == []


@pytest.mark.parametrize(
    ("answer", "bears"),
    [
        ({"model_name": "m", "model_version": "1", "text_output": "a"}, True),
        ({"model_name": "m", "model_version": "1", "text_output": ""}, False),
        ({"text_output": '"'}, True),
        ({"text_output": ["", "a"]}, True),
        ({"text_output": ["", ""]}, False),
        ({"text_output": "", "sequence_id": 0}, False),
        ({"model_name": "m", "model_version": "1", "output_ids": [1]}, True),
        ({"model_name": "m", "generated": ""}, True),
        ({"model_name": "m", "model_version": "1", "id": "x", "parameters": {"a": 1}}, False),
        ({"error": "text", "text_output": "a"}, False),
        ({"id": '"text_output":"a"', "text_output": ""}, False),
    ],
)
def test_which_events_have_text(answer: object, bears: bool) -> None:
    assert bearing(streamed(answer)) == [1.0] * bears


def test_the_version_is_that_of_the_path_or_of_the_response() -> None:
    log = streamed({"model_name": "other", "model_version": "7", "text_output": "a"})

    assert (log.at_start[0].version, log.streams[0].version) == ("", "7")
    assert log.streams[0].model == "m"


def test_the_version_of_the_path_stays() -> None:
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, b"POST /v2/models/m/versions/3/generate_stream HTTP/1.1\r\n\r\n", 0.0)
    data = b'data: {"model_version":"7","text_output":"a"}\n\n'
    observer.feed(SERVER, SSE + b"%x\r\n%s\r\n" % (len(data), data), 1.0)

    assert log.streams[0].version == "3"


def test_an_error_in_the_middle_ends_the_stream_as_one() -> None:
    log = streamed({"text_output": "a"}, {"error": "boom"})

    assert log.of(0)[1:] == [("chunk", 1.0, 0), ("ended", 2.0, "error", "in_band", None)]


def test_an_in_band_error_of_a_whole_response() -> None:
    log = WireLog()
    show(Http1Observer(log, ObserverSettings()), recorded("triton_errors"))

    assert log.of(5)[-1][2:4] == ("error", "in_band")
    assert log.streams[5].endpoint == "generate"


@pytest.mark.parametrize(
    ("path", "framing", "outcome"),
    [
        ("generate", b'Content-Length: 12\r\n\r\n{"error":""}', "invalid"),
        ("generate", b'Transfer-Encoding: chunked\r\n\r\nc\r\n{"error":""}\r\n0\r\n\r\n', "error"),
        ("generate_stream", b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "error"),
        ("generate", b"\r\n", "error"),
    ],
)
def test_a_400_is_the_servers_fault_if_it_came_from_the_model(
    path: str, framing: bytes, outcome: str
) -> None:
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, f"POST /v2/models/m/{path} HTTP/1.1\r\n\r\n".encode(), 0.0)
    observer.feed(SERVER, b"HTTP/1.1 400 Bad Request\r\n" + framing, 1.0)
    observer.half_closed(SERVER, 2.0)

    assert log.of(0)[-1][2:4] == (outcome, "400")


TIMES = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")


@pytest.mark.parametrize("kind", [int, str])
def test_timing_outputs_of_tensorrt_llm_give_the_stages(kind: type) -> None:
    values = [10**15, 10**15 + 2 * 10**9, 10**15 + 5 * 10**9, 10**15 + 9 * 10**9]
    timing = {name: kind(value) for name, value in zip(TIMES, values, strict=True)}
    log = streamed({"text_output": "a", **timing})

    assert log.streams[0].stages == Stages(2.0, 3.0, 4.0)


@pytest.mark.parametrize(
    "values", [(4, 3, 2, 1), ("a", "b", "c", "d"), (0, 0, 0), (-1, 0, 1, 2), (1.5, 2, 3, 4)]
)
def test_timing_that_cannot_be_gives_none(values: tuple[object, ...]) -> None:
    timing = dict(zip(TIMES, values, strict=False))

    assert streamed({"text_output": "a", **timing}).streams[0].stages is None


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(
        st.one_of(st.text(max_size=6), st.sampled_from(['"', "\\", '","text_output":"x'])),
        min_size=1,
        max_size=8,
    ),
    constant=st.dictionaries(
        st.sampled_from(["id", "parameters", "sequence_id", "cum_log_probs", "note"]),
        st.one_of(st.integers(), st.text(max_size=4), st.booleans(), st.lists(st.floats(0, 1))),
    ),
)
def test_scanning_gives_what_parsing_gives(texts: list[str], constant: dict[str, object]) -> None:
    log = streamed(*({"model_name": "m", **constant, "text_output": text} for text in texts))

    assert bearing(log) == [number + 1.0 for number, text in enumerate(texts) if text]
