"""Split server-sent events incrementally (WHATWG HTML, section 9.2).

Lines end in CRLF, LF or CR.  Comments, ``id`` and ``retry`` are skipped.  The ``data`` lines of an
event are one string.  An event is passed on with the last byte of its empty line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from exporter.protocol.json_scan import Found, JsonScanner, Wanted

EVENT_BYTES = 64 * 1024
"""The size limit of buffered events; longer ones are scanned for the wanted members."""
SCANNED_BYTES = 16 * 1024 * 1024
"""The bytes of a longer event that are scanned."""

_EMPTY_EVENT = len(b"data: \n\n")  # not an event, as it has no data
_NAMED = re.compile(rb"event: ([^\r\n]*+)\ndata: ([^\r\n]++)\n\n")
"""A chunk that is one complete named event: the usual case in APIs with typed events."""
_RETURN = b"\r"[0]
_LINE_END = re.compile(rb"\r\n?|\n")

EventCallback = Callable[[bytes, bytes, float], None]
"""Called with an event's name, its data and the time."""
FoundCallback = Callable[[dict[str, Found], float], None]
"""Called with the wanted members of an event that was too long to buffer, and the time."""


class SseSplitter:
    """Split a response fed in chunks into events; ``between``: the next byte begins an event."""

    __slots__ = (
        "_after_return",
        "_data",
        "_in_long_line",
        "_line",
        "_long",
        "_name",
        "_on_event",
        "_on_long_event",
        "_wanted",
        "between",
    )

    def __init__(
        self, take: EventCallback, take_long: FoundCallback, wanted: Mapping[str, Wanted]
    ) -> None:
        self._on_event = take
        self._on_long_event = take_long
        self._wanted = wanted
        self._line = bytearray()
        self._data: bytearray | None = None
        self._name = b""
        self._long: JsonScanner | None = None
        self._in_long_line = 0  # too long to buffer: 1 in a data line, 2 in any other
        self._after_return = False
        self.between = True

    @property
    def held(self) -> int:
        """The number of buffered bytes of the incomplete event."""
        long = self._long.held if self._long else 0
        return len(self._line) + len(self._data or b"") + len(self._name) + long

    def feed(self, chunk: bytes, time: float) -> None:
        """Feed the next chunk; the events that it completes happened at ``time``."""
        if (
            self.between
            and chunk.startswith(b"data: ")
            and chunk.endswith(b"\n\n")
            and chunk.find(b"\n") == len(chunk) - 2
            and _RETURN not in chunk
            and _EMPTY_EVENT < len(chunk) <= EVENT_BYTES
        ):
            take = self._on_event
            take(b"", chunk[6:-2], time)
        elif self.between and (event := _NAMED.fullmatch(chunk)) and len(chunk) <= EVENT_BYTES:
            self._on_event(event[1], event[2], time)
        elif chunk:
            self._feed(chunk, time)

    def _feed(self, chunk: bytes, time: float) -> None:
        at = int(self._after_return and chunk.startswith(b"\n"))
        for end in _LINE_END.finditer(chunk, at):
            self._end_line(chunk[at : end.start()], time)
            at = end.end()
        if at < len(chunk):
            self._hold(chunk[at:])
        self._after_return = chunk.endswith(b"\r")
        begun = (
            self._line or self._data is not None or self._long or self._in_long_line or self._name
        )
        self.between = not (begun or self._after_return)

    def _hold(self, chunk: bytes) -> None:
        """Buffer the start of a line, or scan it if it gets too long."""
        if not self._in_long_line:
            self._line += chunk
            if len(self._line) <= EVENT_BYTES:
                return
            field, chunk = _field(bytes(self._line))
            self._line.clear()
            self._in_long_line = 1 if field == b"data" else 2
        if self._in_long_line == 1:
            self._scan(chunk)

    def _end_line(self, rest: bytes, time: float) -> None:
        if self._in_long_line or len(self._line) + len(rest) > EVENT_BYTES:
            self._hold(rest)
            self._in_long_line = 0
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

    def _scan(self, chunk: bytes) -> None:
        if self._long is None:
            self._long = JsonScanner(self._wanted, SCANNED_BYTES)
            self._long.feed(bytes(self._data or b""))
            self._data = None
        self._long.feed(chunk)

    def _end_event(self, time: float) -> None:
        data, long, name = self._data, self._long, self._name
        self._data, self._long, self._name = None, None, b""
        if long:
            self._on_long_event(long.found, time)
        elif data:
            self._on_event(name, bytes(data), time)


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.removeprefix(b" ")
