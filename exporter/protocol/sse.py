"""Splits server-sent events, wherever their bytes are cut (WHATWG HTML, section 9.2).

Lines end in CRLF, LF or CR; comments, ``id`` and ``retry`` are passed over; the lines of ``data``
are one text.  An event is told as soon as the last byte of its empty line is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from exporter.protocol.json_scan import Found, JsonScanner, Wanted

EVENT_BYTES = 64 * 1024
"""Longer events are not held, but scanned as they pass for what is wanted of them."""
SCANNED_BYTES = 16 * 1024 * 1024
"""So much of a longer event."""

_SHORTEST = len(b"data: \n\n")  # an event without data is none
_NAMED = re.compile(rb"event: ([^\r\n]*+)\ndata: ([^\r\n]++)\n\n")
"""A piece that is one whole event with a name, as most are where events are typed."""
_LINE_END = re.compile(rb"\r\n?|\n")

TakeEvent = Callable[[bytes, bytes, float], None]
"""Takes an event's name, its data and the time."""
TakeFound = Callable[[dict[str, Found], float], None]
"""Takes what is wanted of an event that was too long to hold, and the time."""


class SseSplitter:
    """Takes an answer in pieces and tells its events."""

    __slots__ = (
        "_after_return",
        "_between",
        "_data",
        "_inside",
        "_line",
        "_long",
        "_name",
        "_take",
        "_take_long",
        "_wanted",
    )

    def __init__(self, take: TakeEvent, take_long: TakeFound, wanted: Mapping[str, Wanted]) -> None:
        self._take = take
        self._take_long = take_long
        self._wanted = wanted
        self._line = bytearray()
        self._data: bytearray | None = None
        self._name = b""
        self._long: JsonScanner | None = None
        self._inside = 0  # of a line that is too long to hold: 1 of data, 2 of something else
        self._after_return = False
        self._between = True

    @property
    def held(self) -> int:
        """How many bytes of the unfinished event are held."""
        long = self._long.held if self._long else 0
        return len(self._line) + len(self._data or b"") + len(self._name) + long

    def feed(self, piece: bytes, time: float) -> None:
        """Take in the next piece; the events that it completes happened at ``time``."""
        if (
            self._between
            and piece.startswith(b"data: ")
            and piece.endswith(b"\n\n")
            and piece.find(b"\n") == len(piece) - 2
            and b"\r" not in piece
            and _SHORTEST < len(piece) <= EVENT_BYTES
        ):
            take = self._take
            take(b"", piece[6:-2], time)
        elif self._between and (event := _NAMED.fullmatch(piece)) and len(piece) <= EVENT_BYTES:
            self._take(event[1], event[2], time)
        elif piece:
            self._feed(piece, time)

    def _feed(self, piece: bytes, time: float) -> None:
        at = int(self._after_return and piece.startswith(b"\n"))
        for end in _LINE_END.finditer(piece, at):
            self._end_line(piece[at : end.start()], time)
            at = end.end()
        if at < len(piece):
            self._hold(piece[at:])
        self._after_return = piece.endswith(b"\r")
        begun = self._line or self._data is not None or self._long or self._inside or self._name
        self._between = not (begun or self._after_return)

    def _hold(self, piece: bytes) -> None:
        """Keep the beginning of a line, or look through it if it gets too long."""
        if not self._inside:
            self._line += piece
            if len(self._line) <= EVENT_BYTES:
                return
            field, piece = _field(bytes(self._line))
            self._line.clear()
            self._inside = 1 if field == b"data" else 2
        if self._inside == 1:
            self._scan(piece)

    def _end_line(self, rest: bytes, time: float) -> None:
        if self._inside or len(self._line) + len(rest) > EVENT_BYTES:
            self._hold(rest)
            self._inside = 0
            return
        line = bytes(self._line) + rest if self._line else rest
        self._line.clear()
        if not line:
            self._end_event(time)
            return
        field, value = _field(line)
        if field == b"event":
            self._name = value[:EVENT_BYTES]
        elif field == b"data":
            self._add(value)

    def _add(self, value: bytes) -> None:
        if self._long:
            self._scan(b"\n" + value)
            return
        if self._data is None:
            self._data = bytearray(value)
        else:
            self._data += b"\n" + value
        if len(self._data) > EVENT_BYTES:
            self._scan(b"")

    def _scan(self, piece: bytes) -> None:
        if self._long is None:
            self._long = JsonScanner(self._wanted, SCANNED_BYTES)
            self._long.feed(bytes(self._data or b""))
            self._data = None
        self._long.feed(piece)

    def _end_event(self, time: float) -> None:
        data, long, name = self._data, self._long, self._name
        self._data, self._long, self._name = None, None, b""
        if long:
            self._take_long(long.found, time)
        elif data:
            self._take(name, bytes(data), time)


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.removeprefix(b" ")
