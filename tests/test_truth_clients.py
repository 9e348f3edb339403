"""The clients of the truth test, checked against scripted servers."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.truth.client_record import ClientRecord, counts, first_tokens, gaps
from tests.truth.over_http import HttpClientRequest, HttpResponseReader, HttpStreamClient, Manner

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients disconnect at any age of a token: no other token is in flight here."""
    monkeypatch.setattr("tests.truth.over_http.FRESH_SECONDS", 60.0)


def chunk(event: Any) -> bytes:
    data = b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def chat(text: str | None, tokens: int | None = None, finish: str | None = None) -> bytes:
    delta = {"role": "assistant"} if text is None else {"content": text}
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens}}
    return chunk({"choices": [{"delta": delta, "finish_reason": finish}], **usage})


@contextmanager
def server(*steps: bytes | Callable[[socket.socket], None]) -> Iterator[int]:
    """Answer one request: send bytes, or do something with the connection; then close it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                for step in steps:
                    if isinstance(step, bytes):
                        connection.sendall(step)
                    else:
                        step(connection)

        thread = threading.Thread(target=run)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def hung_up(connection: socket.socket) -> None:
    connection.settimeout(5)
    assert connection.recv(1) == b""


def reset(connection: socket.socket) -> None:
    connection.settimeout(5)
    with pytest.raises(ConnectionResetError):
        connection.recv(1)


def test_response_is_the_same_in_any_segmentation() -> None:
    whole = HEAD + chunk({"a": 1}) + chunk(b"[DONE]") + END
    for size in range(1, len(whole) + 1):
        answer = HttpResponseReader()
        segments = (whole[at : at + size] for at in range(0, len(whole), size))
        events = [event for segment in segments for event in answer.feed(segment)]
        assert events == [b'{"a": 1}', b"[DONE]"]
        assert answer.complete


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([HEAD, chat(None), chat("a"), chat("b", finish="stop"), chunk(b"[DONE]"), END],
         ("ok", "stop", 2, 2)),
        ([HEAD, chat(None, 0), chat("a", 1), chat("", 3), chat("", 3, "length"), END],
         ("ok", "length", 2, 3)),
        ([HEAD, chat("a"), chat("b"), chunk({"usage": {"completion_tokens": 5}}), END],
         ("ok", "", 2, 5)),
        ([HEAD, chat("a"), chunk({"error": "no"}), END], ("error", "in_band", 1, 1)),
        ([HEAD, chat("a")], ("truncated", "closed", 1, 1)),
        ([b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n{}"], ("error", "503", 0, 0)),
    ],
)  # fmt: skip
def test_client_result_of_each_response(
    steps: list[bytes], expected: tuple[str, str, int, int]
) -> None:
    with server(*steps) as port:
        seen = HttpStreamClient(port, HttpClientRequest("chat", "m", 9)).run()
    assert (seen.outcome, seen.reason, len(seen.arrivals), seen.tokens) == expected


@pytest.mark.parametrize(
    ("manner", "left", "tokens"),
    [
        ("close", hung_up, 1),
        ("reset", reset, 1),
        ("half-close", hung_up, 1),
        ("close early", hung_up, 0),
        ("reset early", reset, 0),
    ],
)
def test_client_disconnects_are_recorded(
    manner: Manner, left: Callable[[socket.socket], None], tokens: int
) -> None:
    with server(HEAD + chat("a") * tokens, left) as port:
        seen = HttpStreamClient(port, HttpClientRequest("chat", "m", 9, manner, after=1)).run()
    assert (seen.outcome, seen.tokens, seen.phase) == (
        "client_disconnected",
        tokens,
        "mid_stream" if tokens else "before_first_token",
    )


@pytest.mark.parametrize("manner", ["close early", "reset early", "half-close early"])
def test_client_too_late_to_disconnect_reports_a_complete_response(
    manner: Manner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(HEAD + chat("a", finish="stop") + chunk(b"[DONE]") + END) as port:
        client = HttpStreamClient(port, HttpClientRequest("chat", "m", 9, manner))
        monkeypatch.setattr(
            "tests.truth.over_http.time.sleep",
            lambda _: select.select([client.socket], [], [], 5),
        )
        seen = client.run()
    assert (seen.outcome, seen.reason, seen.tokens) == ("ok", "stop", 1)


def test_server_may_respond_after_a_half_close() -> None:
    with server(HEAD + chat("a"), hung_up, chat("b"), END) as port:
        seen = HttpStreamClient(
            port, HttpClientRequest("chat", "m", 9, "half-close", after=1)
        ).run()
    assert (seen.outcome, seen.tokens, seen.late) == ("ok", 2, 0)
    with server(HEAD + chat("a"), hung_up, chat("b")) as port:
        seen = HttpStreamClient(
            port, HttpClientRequest("chat", "m", 9, "half-close", after=1)
        ).run()
    assert (seen.outcome, seen.tokens, seen.late) == ("client_disconnected", 1, 1)


def test_expected_counters_of_client_results() -> None:
    every = [
        ClientRecord(
            "m", "end", sent=1.0, arrivals=[1.5, 1.75], tokens=2, outcome="ok", reason="STOP"
        ),
        ClientRecord(
            "m", "close", sent=1.0, arrivals=[2.0], tokens=1, outcome="client_disconnected"
        ),
        ClientRecord("m", "close early", sent=1.0, outcome="client_disconnected"),
        ClientRecord("m", "end", streaming=False, tokens=3, outcome="ok", reason="STOP"),
    ]
    lines = [
        f"{name}{{{','.join(f'{key}={value}' for key, value in labels if key != 'model')}}} {count}"
        for (name, labels), count in counts(every).items()
    ]
    assert sorted(lines) == [
        "llm_partial_response_tokens_total{} 1",
        "llm_request_failures_total{outcome=client_disconnected,reason=} 2",
        "llm_requests_total{outcome=client_disconnected} 2",
        "llm_requests_total{outcome=ok} 2",
        "llm_requests_without_first_token_total{outcome=client_disconnected} 1",
        "llm_streaming_disconnects_total{phase=before_first_token} 1",
        "llm_streaming_disconnects_total{phase=mid_stream} 1",
        "llm_streams_total{outcome=client_disconnected,phase=before_first_token} 1",
        "llm_streams_total{outcome=client_disconnected,phase=mid_stream} 1",
        "llm_streams_total{outcome=ok,phase=complete} 1",
        "llm_tokens_total{direction=output} 6",
    ]
    assert first_tokens(every) == [0.5, 1.0]
    assert gaps(every) == [0.25]
