"""Server-sent events in segments, against the algorithm of the standard read literally."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.protocol.json_scan import Found, Keep
from exporter.protocol.sse import EVENT_BYTES, SseSplitter

Event = tuple[bytes, bytes]


def split(data: bytes, sizes: list[int] | None = None) -> tuple[list[Event], list[object]]:
    """Return the events, and what was found of those too long to hold."""
    events: list[Event] = []
    found: list[object] = []

    def take(name: bytes, data: bytes, time: float) -> None:
        events.append((name, data))

    def take_long(document: dict[str, Found], time: float) -> None:
        found.append(document)

    splitter, at = SseSplitter(take, take_long, {"a": Keep.NAME}), 0
    for size in [*(sizes or []), len(data)]:
        splitter.feed(data[at : at + size], 1.0)
        at += size
        assert splitter.held <= 3 * EVENT_BYTES
    return events, found


def literally(data: bytes) -> list[Event]:
    """Return the events by WHATWG HTML, section 9.2.6; those without data are none."""
    events, lines, name = [], [], b""
    for line in re.split(rb"\r\n|\n|\r", data)[:-1]:
        field, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if not line:
            if text := b"\n".join(lines):
                events.append((name, text))
            lines, name = [], b""
        elif field == b"data":
            lines.append(value)
        elif field == b"event":
            name = value
    return events


PARTS = st.sampled_from(
    [b"data: ", b"data:", b"data", b"event: x", b":", b": note", b"id: 1", b"a", b" ", b"\n", b"\r",
     b"\r\n", b"\n\n", b"\r\n\r\n", b"data: a\n\n", b"data: b\ndata: c\n\n", b"dat"]
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(parts=st.lists(PARTS, max_size=25), seed=st.integers(0, 2**32))
def test_events_are_those_of_the_standard_however_they_are_cut(
    parts: list[bytes], seed: int
) -> None:
    data, chance = b"".join(parts), random.Random(seed)
    wanted = literally(data)

    assert split(data) == (wanted, [])
    assert split(data, [1] * len(data)) == (wanted, [])
    assert split(data, [chance.randint(0, 12) for _ in data]) == (wanted, [])
    assert split(data, list(map(len, parts))) == (wanted, [])


LONG = b"x" * (EVENT_BYTES + 1)


@pytest.mark.parametrize("size", [1000, EVENT_BYTES, 10**6])
@pytest.mark.parametrize(
    ("data", "events", "found"),
    [
        (b'data: {"b":"' + LONG + b'","a":"1"}\n\n', [], [{"a": "1"}]),
        (b'data: {"b":"' + LONG + b'",\r\ndata: "a":"1"}\r\n\r\n', [], [{"a": "1"}]),
        (b'data: {"a":\ndata: "1","b":"' + LONG + b'"}\n\n', [], [{"a": "1"}]),
        (b'data: {"a":"1",\n' + b"data:      \n" * 20000 + b"data: }\n\n", [], [{"a": "1"}]),
        (b": " + LONG + b"\ndata: a\n\n", [(b"", b"a")], []),
        (b"data: a\n: " + LONG + b"\n\n", [(b"", b"a")], []),
        (b"event: " + LONG + b"\ndata: a\n\n", [(b"", b"a")], []),
        (b"data: " + LONG + b"\n\ndata: a\n\n", [(b"", b"a")], [{}]),
        (b"data: " + LONG[:-7] + b"\n\n", [(b"", LONG[:-7])], []),
    ],
)
def test_event_too_long_to_buffer_is_scanned(
    data: bytes, events: list[Event], found: list[object], size: int
) -> None:
    sizes = [size] * (len(data) // size)

    assert split(data, sizes) == (events, found)
