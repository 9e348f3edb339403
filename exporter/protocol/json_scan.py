"""Scan JSON incrementally and keep only the wanted members.

The wanted members are a tree in the shape of the document: a mapping for an object (``*`` stands
for all other members), a list of one element for an array, and a :class:`Keep` for a value.  The
result has the same shape.  Everything else is skipped by a regular expression and not kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum, auto

NAME_BYTES = 256
"""The size limit of names and keys; longer ones are not kept."""
COMMAS = 4096
"""The limit of scanned members and elements in wanted containers; the scan ends after it."""
MEMBERS = 128
"""The limit of kept members of one object or array, the first ones; the rest of an array is
skipped."""
SKIPS = 65_536
"""The limit of steps in skipped values; the scan ends after it.  A step is a bracket nested too
deep for the regular expression, so the limit bounds the work of any document."""


class Keep(Enum):
    """How much of a value to keep; numbers, true, false and null are always kept."""

    NAME = auto()
    """A string as it is; an object or array as whether it is not empty."""
    MARK = auto()
    """A non-empty string as ``x``; an object or array as whether it is not empty."""


Wanted = Mapping[str, "Wanted"] | list["Wanted"] | Keep
Found = dict[str, "Found"] | list["Found"] | str | int | float | bool | None

_SPACES = b" \t\r\n"
_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_TEXT = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT = rb'(?:[^"\[\]{}]++|' + _TEXT + rb")*+"


def _nested(inner: bytes) -> bytes:
    """Return a pattern of the content of an object or array, with ``inner`` for nested ones."""
    return rb'(?:[^"\[\]{}]++|' + _TEXT + rb"|\[" + inner + rb"\]|\{" + inner + rb"\})*+"


_SKIPPED = re.compile(_nested(_nested(_nested(_FLAT))), re.DOTALL)
_SPACE = re.compile(rb"[ \t\r\n]*+")
_OPENING, _CLOSING = re.compile(rb"[\[{]++"), re.compile(rb"[\]}]++")
_LITERAL = re.compile(rb"[0-9A-Za-z+.\-]*+")
_QUOTE, _BACKSLASH = b'"'[0], b"\\"[0]


class Expected(Enum):
    """The token that the scanner expects next."""

    VALUE = auto()
    ELEMENT = auto()  # a value, or the end of an array that is empty
    KEY = auto()  # or the end of the object
    COLON = auto()
    COMMA = auto()  # or the end of the object or array
    TEXT = auto()  # the rest of one
    LITERAL = auto()
    SKIPPED = auto()  # the rest of an unwanted value
    NOTHING = auto()


class JsonScanner:
    """Scan a document fed in parts; ``found`` holds the wanted members so far.

    Of a repeated member the last one counts, as with the json module.  Invalid JSON ends the scan
    where the scanner notices it; skipped values are not validated.  Bytes after ``limit`` are
    skipped; without a limit the scan reads to the end.
    """

    __slots__ = (
        "_commas",
        "_depth",
        "_escaped",
        "_expected",
        "_filled",
        "_is_key",
        "_key",
        "_remaining",
        "_skips",
        "_stack",
        "_token",
        "_wanted",
        "found",
    )

    def __init__(self, wanted: Mapping[str, Wanted], limit: int | None = None) -> None:
        self.found: dict[str, Found] = {}
        self._depth = self._commas = self._skips = 0
        self._remaining = limit
        self._expected = Expected.VALUE
        self._stack: list[tuple[Wanted, Found]] = []
        self._wanted: Wanted | None = wanted
        self._key = ""
        self._token: bytearray | None = None
        self._is_key = self._escaped = self._filled = False

    @property
    def held(self) -> int:
        """The number of buffered bytes."""
        return len(self._token or b"")

    def feed(self, data: bytes) -> None:
        """Scan the next part of the document."""
        if self._remaining is not None:
            data = data[: self._remaining]
            self._remaining -= len(data)
        at, end = 0, len(data)
        while at < end and self._expected is not Expected.NOTHING:
            at = self._step(data, at)
        if self._remaining == 0:
            self._stop()

    def _step(self, data: bytes, at: int) -> int:
        """Scan one token from ``at`` on; return the offset after it."""
        awaits = self._expected
        if awaits is Expected.TEXT:
            return self._text(data, at)
        if awaits is Expected.SKIPPED:
            return self._skip(data, at)
        if awaits is Expected.LITERAL:
            return self._literal(data, at)
        after = _end(_SPACE, data, at)
        if after > at:
            return after
        byte = data[at : at + 1]
        if awaits is Expected.COLON:
            self._expected = Expected.VALUE if byte == b":" else Expected.NOTHING
        elif awaits is Expected.COMMA:
            self._comma(byte)
        elif awaits is Expected.KEY:
            self._before_key(byte)
        elif awaits is Expected.ELEMENT and byte == b"]":
            self._leave()
        else:
            return at + self._value(byte)
        return at + 1

    def _comma(self, byte: bytes) -> None:
        container = self._stack[-1][1]
        if byte == b"," and isinstance(container, list) and len(container) >= MEMBERS:
            self._stack.pop()
            self._wanted, self._depth, self._expected = None, 1, Expected.SKIPPED
        elif byte == b",":
            self._commas += 1
            if self._commas > COMMAS:
                self._stop()
                return
            self._expected = Expected.KEY if isinstance(container, dict) else Expected.VALUE
            self._wanted = self._of_element()
        elif byte == (b"}" if isinstance(container, dict) else b"]"):
            self._leave()
        else:
            self._stop()

    def _before_key(self, byte: bytes) -> None:
        if byte == b'"':
            self._begin_text(is_key=True, kept=True)
        elif byte == b"}":
            self._leave()
        else:
            self._stop()

    def _value(self, byte: bytes) -> int:
        """Begin a value; return the number of its bytes consumed."""
        wanted = self._wanted
        if not self._stack and byte != b"{":
            self._stop()
        elif byte == b'"':
            self._begin_text(is_key=False, kept=wanted is Keep.NAME)
        elif isinstance(wanted, Mapping if byte == b"{" else list) and byte in (b"{", b"["):
            self._enter(wanted)
        elif byte in (b"{", b"["):
            self._depth, self._filled = 1, False
            self._expected = Expected.SKIPPED
        elif _LITERAL.fullmatch(byte):
            self._token, self._expected = bytearray(), Expected.LITERAL
            return 0
        else:
            self._stop()
        return 1

    def _enter(self, wanted: Wanted) -> None:
        container: Found = {} if isinstance(wanted, Mapping) else []
        if not self._stack and isinstance(container, dict):
            self.found = container
        else:
            self._put(container)
        self._stack.append((wanted, container))
        self._expected = Expected.KEY if isinstance(container, dict) else Expected.ELEMENT
        self._wanted = self._of_element()

    def _leave(self) -> None:
        self._stack.pop()
        self._expected = Expected.COMMA if self._stack else Expected.NOTHING

    def _of_element(self) -> Wanted | None:
        """Return the selection for the next element if the innermost container is an array."""
        wanted, container = self._stack[-1]
        if isinstance(wanted, list) and isinstance(container, list) and len(container) < MEMBERS:
            return wanted[0]
        return None

    def _begin_text(self, *, is_key: bool, kept: bool) -> None:
        self._expected, self._is_key, self._filled = Expected.TEXT, is_key, False
        self._token = bytearray() if kept else None

    def _text(self, data: bytes, at: int) -> int:
        begin = at
        if self._escaped:
            self._escaped = False
            at += 1
        end = _end(_REST, data, at)
        closed = end < len(data) and data[end] == _QUOTE
        if end < len(data) and not closed:  # a backslash at the end of the data
            self._escaped = True
            end += 1
        self._filled = self._filled or end > begin
        if self._token is not None:
            self._token += data[begin : min(end, begin + NAME_BYTES + 1)]
            del self._token[NAME_BYTES + 1 :]
        if closed:
            self._end_text()
            return end + 1
        return end

    def _end_text(self) -> None:
        token, self._token = self._token, None
        text = _decoded(bytes(token)) if token is not None and len(token) <= NAME_BYTES else None
        if self._is_key:
            self._key, self._wanted = text or "", self._of_member(text)
            self._expected = Expected.COLON
            return
        if token is None:
            text = "x" if self._filled else ""
        self._put(text)
        self._expected = Expected.COMMA

    def _of_member(self, key: str | None) -> Wanted | None:
        wanted, container = self._stack[-1]
        if key is None or not isinstance(wanted, Mapping) or not isinstance(container, dict):
            return None
        full = len(container) >= MEMBERS and key not in container
        return None if full else wanted.get(key, wanted.get("*"))

    def _literal(self, data: bytes, at: int) -> int:
        end = _end(_LITERAL, data, at)
        token = self._token if self._token is not None else bytearray()
        token += data[at : min(end, at + NAME_BYTES + 1)]
        del token[NAME_BYTES + 1 :]
        if end == len(data):
            return end
        self._token = None
        try:
            value = json.loads(bytes(token)) if len(token) <= NAME_BYTES else None
        except ValueError:
            self._stop()
            return end
        self._put(value)
        self._expected = Expected.COMMA
        return end

    def _skip(self, data: bytes, at: int) -> int:
        begin = at
        if self._escaped or self._token is not None:
            at = self._skip_text(data, at)
        while self._depth and at < len(data):
            self._skips += 1
            if self._skips > SKIPS:
                self._stop()
                return len(data)
            run = at = _end(_SKIPPED, data, at)
            if at == len(data):
                break
            if data[at] == _QUOTE:
                self._token = bytearray()
                at = self._skip_text(data, at + 1)
            elif data[at] in b"[{":
                at = _end(_OPENING, data, at)
                self._depth += at - run
            else:
                at = min(_end(_CLOSING, data, at), at + self._depth)
                self._depth -= at - run
        last = at if self._depth else at - 1
        self._filled = self._filled or bool(data[begin:last].strip(_SPACES))
        if not self._depth:
            self._put(self._filled)
            self._expected = Expected.COMMA
        return at

    def _skip_text(self, data: bytes, at: int) -> int:
        """Skip the rest of a string; its ``_token`` stays an empty buffer."""
        if self._escaped:
            self._escaped = False
            at += 1
        end = _end(_REST, data, at)
        if end == len(data):
            return end
        if data[end] == _BACKSLASH:
            self._escaped = True
        else:
            self._token = None
        return end + 1

    def _put(self, value: Found) -> None:
        """Keep a value if it is wanted."""
        container = self._stack[-1][1]
        if self._wanted is None:
            return
        if isinstance(container, dict):
            container[self._key] = value
        elif isinstance(container, list):
            container.append(value)

    def _stop(self) -> None:
        self._expected, self._token = Expected.NOTHING, None


def loaded(data: bytes) -> dict[str, Found] | None:
    """Parse a complete document with the json module; None if it is not an object."""
    try:
        document = json.loads(data.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def name(value: Found) -> str:
    """Return a value that is a printable name, an empty string for any other."""
    if not isinstance(value, str) or len(value) > NAME_BYTES:
        return ""
    return value.encode("utf-8", "replace").decode()


def count(value: Found) -> int | None:
    """Return a value that is a count, None for any other."""
    return value if type(value) is int and 0 <= value < 2**53 else None


def _end(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    """Return the end of a pattern's match at an offset, the offset itself without a match."""
    found = pattern.match(data, at)
    return found.end() if found else at


def _decoded(raw: bytes) -> str | None:
    text = raw.decode("utf-8", "replace")
    if "\\" not in text:
        return text
    try:
        value: str = json.loads(f'"{text}"', strict=False)
    except ValueError:
        return None
    return value
