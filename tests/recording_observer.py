"""An observer that records the events of a connection."""

from __future__ import annotations

from itertools import groupby

from exporter.protocol.events import CLIENT, SERVER, Direction

Event = tuple[object, ...]


class RecordingObserver:
    """``events`` are (what, direction if it has one, …, time), with bytes as they were fed."""

    refusal = ""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.stops = 0
        self.inactive = False
        self.live = 0

    def feed(self, direction: Direction, data: bytes, time: float) -> None:
        assert data
        self.events.append(("data", direction, data, time))

    def half_closed(self, direction: Direction, time: float) -> None:
        self.events.append(("closed", direction, time))

    def aborted(self, time: float) -> None:
        self.events.append(("aborted", time))

    def server_lost(self, time: float) -> None:
        self.events.append(("server lost", time))

    def gap(self, direction: Direction, time: float) -> None:
        self.events.append(("gap", direction, time))

    def blocked(self) -> None:
        self.stops += 1

    def backpressure(self, seconds: float) -> None:
        self.events.append(("blocked", seconds))

    def expire(self, time: float) -> None:
        self.events.append(("expire", time))

    def carried(self, direction: Direction) -> list[bytes]:
        """Return the bytes of a direction, split at gaps."""
        recorded = [
            (event[0], event[2])
            for event in self.events
            if event[0] in ("data", "gap") and event[1] == direction
        ]
        return [
            b"".join(data for _, data in run if isinstance(data, bytes))
            for what, run in groupby(recorded, key=lambda each: each[0])
            if what == "data"
        ]

    def gaps(self, direction: Direction) -> int:
        return sum(event[:2] == ("gap", direction) for event in self.events)

    @property
    def sent(self) -> bytes:
        return b"".join(self.carried(CLIENT))

    @property
    def answered(self) -> bytes:
        return b"".join(self.carried(SERVER))
