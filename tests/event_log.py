"""A listener that records the events of observers, and recorded connections to replay.

tests/captures/record_wire.py records them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from exporter.protocol.events import CLIENT, Direction, Observer, Stream
from slos.outcomes import Outcome

Event = tuple[Any, ...]
Line = tuple[Direction, float, bytes | bool | None]
"""A direction, the time, and bytes, or None for the FIN of that side, or False for its RST."""

CAPTURES = Path(__file__).parent / "captures"
RECORDED = sorted(path.stem.removeprefix("wire_") for path in CAPTURES.glob("wire_tr*.jsonl"))
"""The recorded connections over HTTP."""


def recorded(name: str) -> list[Line]:
    """Return the traffic of a recorded connection."""
    lines = map(json.loads, (CAPTURES / f"wire_{name}.jsonl").read_text().splitlines())
    return [
        (direction, time, what.encode("latin-1") if isinstance(what, str) else what)
        for direction, time, what in lines
    ]


def show(observer: Observer, lines: Iterable[Line]) -> None:
    """Feed an observer with recorded traffic."""
    for direction, time, what in lines:
        if isinstance(what, bytes):
            observer.feed(direction, what, time)
        elif what is None:
            observer.half_closed(direction, time)
        elif direction == CLIENT:
            observer.aborted(time)
        else:
            observer.server_lost(time)


def cut(lines: Iterable[Line], sizes: Callable[[], int]) -> list[Line]:
    """Return the same bytes in segments of other sizes."""
    found: list[Line] = []
    for direction, time, what in lines:
        last = found[-1] if found else None
        if isinstance(what, bytes) and last and last[0] == direction and isinstance(last[2], bytes):
            found[-1] = (direction, time, last[2] + what)
        else:
            found.append((direction, time, what))
    segments: list[Line] = []
    for direction, time, what in found:
        if not isinstance(what, bytes):
            segments.append((direction, time, what))
            continue
        at = 0
        while at < len(what):
            size = sizes()
            segments.append((direction, time, what[at : at + size]))
            at += size
    return segments


@dataclass(slots=True)
class WireLog:
    """Records every event in order; streams are numbered from 0 as they start.

    ``events`` hold ``(kind, stream number, time, ...)``; ``skipped`` has neither number nor
    time.  ``streams`` are the observer's own objects, with their last attributes.
    ``at_start`` are copies from when they started.  A stream that is lost before its
    start has the number -1.
    """

    events: list[Event] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    at_start: list[Stream] = field(default_factory=list)

    def started(self, stream: Stream, time: float) -> None:
        self.streams.append(stream)
        self.at_start.append(replace(stream))
        self.events.append(("started", self._number(stream), time))

    def chunk(self, stream: Stream, time: float, tokens: int) -> None:
        self.events.append(("chunk", self._number(stream), time, tokens))

    def closing(self, stream: Stream, time: float) -> None:
        self.events.append(("closing", self._number(stream), time))

    def ended(
        self, stream: Stream, time: float, outcome: Outcome, reason: str, stopped: float | None
    ) -> None:
        self.events.append(("ended", self._number(stream), time, outcome, reason, stopped))

    def lost(self, stream: Stream) -> None:
        started = any(each is stream for each in self.streams)
        self.events.append(("lost", self._number(stream) if started else -1))

    def blocked(self, stream: Stream) -> None:
        self.events.append(("blocked", self._number(stream)))

    def backpressure(self, stream: Stream, seconds: float) -> None:
        self.events.append(("backpressure", self._number(stream), seconds))

    def skipped(self, reason: str) -> None:
        self.events.append(("skipped", reason))

    def of(self, number: int) -> list[Event]:
        """Return the events of one stream, without its number."""
        return [
            (event[0], *event[2:])
            for event in self.events
            if event[0] != "skipped" and event[1] == number
        ]

    def timeless(self) -> list[Event]:
        """Return all events without times, which are the same for every split of the bytes."""
        return [_TIMELESS.get(event[0], _as_is)(event) for event in self.events]

    def final_streams(self) -> list[dict[str, object]]:
        """Return the attributes of each stream after its last event, without times."""
        return [
            {name: getattr(stream, name) for name in _KNOWN if name != "arrived"}
            for stream in self.streams
        ]

    def _number(self, stream: Stream) -> int:
        for number, each in enumerate(self.streams):
            if each is stream:
                return number
        raise AssertionError("an event of a stream that never started")


_KNOWN = [field.name for field in fields(Stream)]


def _as_is(event: Event) -> Event:
    return event


_TIMELESS = {
    "started": lambda event: event[:2],
    "chunk": lambda event: (event[0], event[1], event[3]),
    "closing": lambda event: event[:2],
    "ended": lambda event: (*event[:2], event[3], event[4], event[5] is not None),
}
