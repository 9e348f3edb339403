"""Detect the protocol of a connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.protocol import http2
from exporter.protocol.detection import EARLY_BYTES, PREFACE, observe
from exporter.protocol.events import CLIENT, SERVER, Observer, ObserverSettings
from exporter.protocol.http1 import Http1Observer
from exporter.protocol.http2 import Http2Observer
from tests.event_log import RECORDED, WireLog, cut, recorded, show

REQUEST = b"POST /v2/models/m/generate HTTP/1.1\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def watched() -> tuple[WireLog, Observer]:
    log = WireLog()
    return log, observe(log, ObserverSettings())


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("size", [1, 1000])
def test_http1_events_equal_those_of_its_observer(name: str, size: int) -> None:
    lines = cut(recorded(name), lambda: size)
    direct = WireLog()
    show(Http1Observer(direct, ObserverSettings()), lines)
    log, observer = watched()
    show(observer, lines)

    assert log.events == direct.events
    assert (observer.inactive, observer.refusal, observer.live) == (False, "", 0)


class Spy:
    """Keeps what it is fed, in the place of the observer of HTTP/2."""

    inactive, refusal, live = False, "", 3

    def __init__(self, *_: object) -> None:
        self.fed: list[tuple[int, bytes, float]] = []
        self.others: list[str] = []
        Spy.made = self

    made: Spy

    def feed(self, direction: int, data: bytes, time: float) -> None:
        self.fed.append((direction, data, time))

    def __getattr__(self, name: str) -> object:
        return lambda *_: self.others.append(name)


@pytest.mark.parametrize("size", [1, 5, 24, 100])
def test_http2_is_detected_by_its_preface(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(http2, "Http2Observer", Spy)
    log, observer = watched()
    observer.feed(SERVER, b"settings", 0.5)
    data = PREFACE + b"frames"
    for at in range(0, len(data), size):
        observer.feed(CLIENT, data[at : at + size], 1.0)
    observer.feed(SERVER, b"more", 2.0)
    observer.half_closed(CLIENT, 3.0)
    observer.gap(CLIENT, 3.0)
    observer.backpressure(1.0)
    observer.expire(4.0)
    observer.server_lost(4.0)
    observer.aborted(4.0)

    spy = Spy.made
    assert spy.fed[0] == (SERVER, b"settings", 0.5)
    assert b"".join(what for direction, what, _ in spy.fed if direction == CLIENT) == data
    assert spy.fed[-1] == (SERVER, b"more", 2.0)
    assert spy.others == [
        "half_closed", "gap", "backpressure", "expire", "server_lost", "aborted",
    ]  # fmt: skip
    assert (observer.live, observer.inactive, log.events) == (3, False, [])


def test_http2_connection_is_passed_to_its_observer() -> None:
    log, observer = watched()
    observer.feed(CLIENT, PREFACE + b"\0\0\0\4\0\0\0\0\0", 1.0)
    observer.feed(SERVER, b"\0\0\0\4\0\0\0\0\0", 1.0)

    assert (observer.inactive, observer.refusal, log.events) == (False, "", [])
    assert callable(Http2Observer)


def test_tls_is_skipped() -> None:
    log, observer = watched()
    observer.feed(CLIENT, b"\x16", 1.0)
    observer.feed(CLIENT, b"\x03\x01\x02", 1.0)
    observer.feed(CLIENT, REQUEST, 2.0)

    assert (observer.inactive, observer.refusal) == (True, "")
    assert log.events == [("skipped", "tls")]


def test_a_server_that_sends_without_its_client_is_skipped() -> None:
    log, observer = watched()
    for _ in range(2):
        observer.feed(SERVER, b"x" * (EARLY_BYTES // 2 + 1), 1.0)

    assert observer.inactive
    assert log.events == [("skipped", "unknown")]


def test_unknown_protocol_is_refused() -> None:
    log, observer = watched()
    observer.feed(CLIENT, b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", 1.0)

    assert (observer.inactive, observer.refusal) == (True, "start_line")
    assert log.events == [("skipped", "start_line")]


def test_a_connection_in_use_is_joined_at_a_request() -> None:
    log, observer = watched()
    observer.gap(CLIENT, 0.0)
    observer.gap(SERVER, 0.0)
    observer.feed(SERVER, b"the end of something\r\n\r\n", 1.0)
    observer.feed(CLIENT, b"and of this", 1.5)
    observer.feed(CLIENT, REQUEST, 2.0)
    observer.feed(SERVER, ANSWER, 3.0)

    assert log.events == [
        ("skipped", "midway"),
        ("started", 0, 2.0),
        ("ended", 0, 3.0, "ok", "", None),
    ]
    assert not observer.inactive


def test_no_request_is_active_before_detection() -> None:
    log, observer = watched()
    observer.backpressure(1.0)
    observer.feed(CLIENT, b"", 0.0)
    observer.half_closed(CLIENT, 1.0)
    observer.half_closed(SERVER, 1.0)
    observer.expire(2.0)
    observer.aborted(3.0)
    observer.server_lost(3.0)

    assert (observer.live, observer.inactive, observer.refusal, log.events) == (0, False, "", [])


@given(
    segments=st.lists(
        st.tuples(
            st.sampled_from([CLIENT, SERVER]),
            st.one_of(
                st.binary(max_size=30),
                st.sampled_from([PREFACE, PREFACE[:3], REQUEST, ANSWER, b"\x16\x03"]),
            ),
        ),
        max_size=8,
    ),
    gap=st.integers(0, 8),
)
def test_random_bytes_do_no_harm(segments: list[tuple[int, bytes]], gap: int) -> None:
    _, observer = watched()
    for number, (direction, data) in enumerate(segments):
        if number == gap:
            observer.gap(SERVER, 1.0)
        observer.feed(CLIENT if direction == CLIENT else SERVER, data, 1.0)
    observer.aborted(2.0)
    assert observer.live == 0
