"""Feed observers with HTTP/1 requests and streaming responses, event by event."""

from __future__ import annotations

import json
from collections.abc import Iterable

from exporter.protocol.events import CLIENT, SERVER, ObserverSettings
from exporter.protocol.http1 import Http1Observer
from tests.event_log import WireLog

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def request(path: str, body: object, method: str = "POST", *fields: str) -> bytes:
    """Return a request with a body, JSON unless it is bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", *fields, f"Content-Length: {len(data)}", "", ""]
    return "\r\n".join(lines).encode() + data


def event(data: object, name: str = "") -> bytes:
    """Return a server-sent event."""
    text = json.dumps(data, separators=(",", ":"))
    return (f"event: {name}\n" * bool(name) + f"data: {text}\n\n").encode()


def typed(kind: str, **members: object) -> bytes:
    """Return a server-sent event with ``kind`` as name and as type in its data."""
    return event({"type": kind, **members}, kind)


def chunk(data: bytes) -> bytes:
    """Return a chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def streamed(
    path: str, events: Iterable[bytes], body: object = None, *, end: bool = True
) -> WireLog:
    """Feed an observer with a stream, an event per second; return its events."""
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, request(path, body or {"model": "m", "stream": True}), 0.0)
    observer.feed(SERVER, STREAM_HEAD, 0.5)
    time = 0.0
    for data in events:
        time += 1.0
        observer.feed(SERVER, chunk(data), time)
    if end:
        observer.feed(SERVER, b"0\r\n\r\n", time)
    return log


def answered(
    path: str, answer: object, body: object = None, status: int = 200, *fields: str
) -> WireLog:
    """Feed an observer with a response in one chunk; return its events."""
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, request(path, body or {"model": "m"}), 1.0)
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    lines = [f"HTTP/1.1 {status} Word", f"Content-Length: {len(data)}", *fields, "", ""]
    observer.feed(SERVER, "\r\n".join(lines).encode() + data, 2.0)
    return log


def chunks(log: WireLog) -> list[tuple[float, int]]:
    """Return times and tokens of chunks."""
    return [event[2:] for event in log.events if event[0] == "chunk"]


def skipped(log: WireLog) -> list[str]:
    """Return the reasons of skipped streams and chunks."""
    return [event[1] for event in log.events if event[0] == "skipped"]
