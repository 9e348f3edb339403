"""Read chunks that repeat an event except for its text in one step instead of by three parsers.

Most segments of a stream are one HTTP chunk with one server-sent event, which matches the template
of the events before it (:mod:`exporter.protocol.event_template`).
"""

from __future__ import annotations

from typing import Final

from exporter.protocol.event_template import EventTemplate
from exporter.protocol.events import Listener, Stream
from exporter.protocol.http1_framing import SMALL_CHUNKS

_QUOTE, _BACKSLASH, _RETURN, _NEWLINE = b'"\\\r\n'
_SIZE_LINES: Final = {len(line) + size + len(b"\r\n"): line for line, size in SMALL_CHUNKS.items()}
"""The size line of a segment that is one chunk, by the length of the segment."""


class RepeatedEvent:
    """Report the chunks of a stream that repeat an event.

    ``before`` and ``after`` are the bytes of a chunk around the text, without its size line.
    """

    __slots__ = ("_after", "_before", "_listener", "_size", "_stream")

    def __init__(self, before: bytes, after: bytes, stream: Stream, listener: Listener) -> None:
        self._before = before
        self._after = after
        self._size = len(before) + len(after)
        self._stream = stream
        self._listener = listener

    def feed(self, segment: bytes, time: float) -> bool:
        """Return whether a segment is a chunk that repeats the event, and report its text if any.

        It is False, too, for a repeated event that takes a parser: with a quote in its text, a
        backslash at the end, or extensions of the chunk.
        """
        line = _SIZE_LINES.get(len(segment))
        if line is None:
            return False
        text = segment.removeprefix(line).removeprefix(self._before).removesuffix(self._after)
        if (
            len(line) + self._size + len(text) != len(segment)  # something was not removed
            or _QUOTE in text
            or _RETURN in text
            or _NEWLINE in text
        ):
            return False
        if text:
            if text[-1] == _BACKSLASH:
                return False
            self._listener.chunk(self._stream, time, 0)
        return True


def repeated_event(
    template: EventTemplate, stream: Stream, listener: Listener
) -> RepeatedEvent | None:
    """Return the reader of chunks that match a template.

    None if more than the text differs, or if an event has several lines.
    """
    fixed = template.before + template.after
    if template.usage or template.tail or b"\n" in fixed or b"\r" in fixed:
        return None
    return RepeatedEvent(
        b"data: " + template.before, template.after + b"\n\n\r\n", stream, listener
    )
