"""Split a body into JSON objects as it arrives: an array, or concatenated objects.

The server delivers each object once, so a truncated body yields its objects up to the last complete
one.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator

MAX_OBJECT = 1024 * 1024
"""Characters after which an incomplete object is skipped."""

_START = re.compile(r"[{]")
_NEXT = re.compile(r"\}\s*,?\s*(?=\{)|\n(?=\{)")
_SEPARATORS = frozenset("[],\ufeff \t\r\n")
# A number or a literal may continue in the next chunk.
_UNDECIDED = 16


class JsonSplitter:
    """Splits bytes into objects; ``malformed`` counts skipped parts."""

    def __init__(self) -> None:
        self.malformed = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[dict[str, object]]:
        """Yield the objects that are complete now; the iterator must be exhausted."""
        text = self._decoder.decode(data)
        waiting, self._text = bool(self._text), self._text + text
        # An object cannot end where nothing closes one.
        if not waiting or "}" in text or len(self._text) > MAX_OBJECT:
            yield from self._objects(last=False)

    def end(self) -> Iterator[dict[str, object]]:
        """Yield the remaining objects at the end of the body; an incomplete one is malformed."""
        self._text += self._decoder.decode(b"", final=True)
        yield from self._objects(last=True)

    def _objects(self, *, last: bool) -> Iterator[dict[str, object]]:
        position = 0
        while (start := _START.search(self._text, position)) is not None:
            self._skip(self._text[position : start.start()])
            position = start.start()
            try:
                value, position = _DECODER.raw_decode(self._text, position)
            except (ValueError, RecursionError) as error:
                if not last and self._may_continue(error, position):
                    self._text = self._text[position:]
                    return
                self._skip("{")
                following = _NEXT.search(self._text, position + 1)
                position = following.end() if following else len(self._text)
            else:
                self._skipping = False
                yield value
        self._skip(self._text[position:])
        self._text = ""

    def _may_continue(self, error: Exception, start: int) -> bool:
        """Return whether more text could complete the object that starts here."""
        if len(self._text) - start > MAX_OBJECT or not isinstance(error, json.JSONDecodeError):
            return False
        return (
            error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _UNDECIDED
        )

    def _skip(self, text: str) -> None:
        if not _SEPARATORS.issuperset(text):
            self.malformed += not self._skipping
            self._skipping = True


_DECODER = json.JSONDecoder()
