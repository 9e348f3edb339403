"""Parse HTTP/1.1 messages of one direction, strictly by RFC 9112.

Bytes that two parsers could read as different messages are refused: see :class:`MalformedMessage`.
Bodies are passed on in the parts in which they arrive, without their framing.  Only heads, chunk
size lines and trailers are buffered until they are complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

HEAD_BYTES: Final = 64 * 1024
"""The size limit of a head, and of trailers."""
CHUNK_LINE_BYTES: Final = 16 * 1024
"""The size limit of a chunk size line with its extensions; the same as in Node.js."""
MAX_LENGTH: Final = 2**60

Fields = list[tuple[bytes, bytes]]
"""The header fields in order, names in lower case, values without space around them."""


class MalformedMessage(Exception):  # noqa: N818 - the peer's message, not an error of this code
    """Bytes that are not an HTTP/1 message, or are ambiguous.

    ``reason`` is one of
    ``version``, ``start_line``, ``field``, ``bare_newline`` (CR or LF alone, NUL), ``folded``,
    ``length`` (Content-Length malformed, repeated and different, or with Transfer-Encoding),
    ``encoding`` (a Transfer-Encoding other than chunked), ``chunk``, ``too_long``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BodyFraming(Enum):
    """How the end of a body is determined."""

    NONE = auto()
    LENGTH = auto()
    CHUNKED = auto()
    UNTIL_CLOSE = auto()


class Framing(NamedTuple):
    """The framing of a body: its end, and its length in bytes if declared.

    ``interim``: the head is a 1xx response, and the final response follows.
    """

    body: BodyFraming
    length: int = 0
    interim: bool = False


class RequestHead(NamedTuple):
    """The head of a request."""

    method: bytes
    target: bytes
    version: bytes
    fields: Fields


class ResponseHead(NamedTuple):
    """The head of a response."""

    status: int
    version: bytes
    fields: Fields


_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") ([!-~\x80-\xff]+) HTTP/(1\.[01])")
_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-9][0-9]{2})(?: [^\x00-\x08\x0a-\x1f\x7f]*)?")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*+([^\x00-\x08\x0a-\x1f\x7f]*)")
_STRAY = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|\x00")
_LENGTH = re.compile(rb"[0-9]{1,18}")
SMALL_CHUNKS: Final = {b"%x\r\n" % size: size for size in range(1, 1024)}
"""The sizes of small chunks by their size line, as servers write it."""
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\x00-\x08\x0a-\x1f\x7f]*)?\r\n")


def request(head: bytes) -> RequestHead:
    """Read a request's head, without the empty line that ends it."""
    line, fields = _read(head, _REQUEST_LINE)
    return RequestHead(line[1], line[2], line[3], fields)


def response(head: bytes) -> ResponseHead:
    """Read a response's head, without the empty line that ends it."""
    line, fields = _read(head, _STATUS_LINE)
    return ResponseHead(int(line[2]), line[1], fields)


def values(fields: Fields, name: bytes) -> list[bytes]:
    """Return the values of a field, one for each occurrence."""
    return [value for key, value in fields if key == name]


def has_token(fields: Fields, name: bytes, token: bytes) -> bool:
    """Whether a list-valued field has a member, case-insensitively."""
    found = b",".join(values(fields, name)).lower().split(b",")
    return token in (member.strip(b" \t") for member in found)


def body_of(version: bytes, fields: Fields) -> Framing | None:
    """Return the framing that the fields declare, None if they declare none (RFC 9112, 6.3)."""
    encodings = values(fields, b"transfer-encoding")
    lengths = set(values(fields, b"content-length"))
    if encodings:
        if lengths:
            raise MalformedMessage("length")
        if len(encodings) > 1 or encodings[0].lower() != b"chunked" or version == b"1.0":
            raise MalformedMessage("encoding")
        return Framing(BodyFraming.CHUNKED)
    if not lengths:
        return None
    length = lengths.pop()
    if lengths or not _LENGTH.fullmatch(length):
        raise MalformedMessage("length")
    return Framing(BodyFraming.LENGTH, int(length)) if int(length) else Framing(BodyFraming.NONE)


def body_of_request(found: RequestHead) -> Framing:
    """Return how the body of a request ends."""
    return body_of(found.version, found.fields) or Framing(BodyFraming.NONE)


def body_of_response(found: ResponseHead, method: bytes) -> Framing | None:
    """Return how the body of a response to a request with ``method`` ends.

    None if the connection switches to another protocol.
    """
    if found.status == 101 or (method == b"CONNECT" and 200 <= found.status < 300):
        return None
    if found.status < 200:
        return Framing(BodyFraming.NONE, interim=True)
    framing = body_of(found.version, found.fields) or Framing(BodyFraming.UNTIL_CLOSE)
    if method == b"HEAD" or found.status in (204, 304):
        return Framing(BodyFraming.NONE)
    return framing


HeadCallback = Callable[[bytes, float, float], Framing]
"""Called with a head (without its final empty line), the time it began, and the time."""
BodyCallback = Callable[[bytes, float], None]
"""Called with a part of a body and the time."""


class _State(Enum):
    HEAD = auto()
    BODY = auto()
    REST = auto()  # of a body that ends with the connection
    CHUNK_LINE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILERS = auto()


class MessageParser:
    """Parse the bytes of a direction; call back for heads, parts of bodies and ends of messages.

    ``on_body`` may be set anew with every head.  ``framing`` is called with each complete element
    of body framing: chunk size lines, chunk ends, trailers, and empty lines before a message.
    With it every byte is passed on exactly once, in order; a head lacks its last four bytes.
    ``feed`` raises MalformedMessage and any exception of a callback; the parser is unusable then.
    """

    __slots__ = ("_began", "_end", "_framing", "_head", "_held", "_remaining", "_state", "on_body")

    def __init__(
        self,
        head: HeadCallback,
        body: BodyCallback,
        end: Callable[[float], None],
        framing: Callable[[bytes], None] | None = None,
    ) -> None:
        self._head = head
        self._end = end
        self._framing = framing
        self.on_body = body
        self._state = _State.HEAD
        self._held = bytearray()
        self._remaining = 0
        self._began = 0.0

    @property
    def held(self) -> int:
        """The number of buffered bytes."""
        return len(self._held)

    @property
    def pending(self) -> bytes:
        """The buffered bytes."""
        return bytes(self._held)

    @property
    def between(self) -> bool:
        """Whether the parser is between two messages."""
        return self._state is _State.HEAD and not self._held

    @property
    def before_chunk(self) -> bool:
        """Whether the next byte is that of a chunk size line."""
        return self._state is _State.CHUNK_LINE and not self._held

    def feed(self, data: bytes, time: float) -> None:
        """Parse the next bytes."""
        at, end = 0, len(data)
        if self._state is _State.CHUNK_LINE and not self._held:
            # Fast path: most segments hold one small chunk or a few.
            on_body, framing = self.on_body, self._framing
            while size := SMALL_CHUNKS.get(data[at : (start := data.find(b"\n", at) + 1)]):
                after = start + size
                if not data.startswith(b"\r\n", after):
                    break
                if framing:
                    framing(data[at:start])
                    on_body(data[start:after], time)
                    framing(b"\r\n")
                else:
                    on_body(data[start:after], time)
                at = after + 2
        while at < end:
            at = self._step(data, at, time)

    def closed(self, time: float) -> bool:
        """Handle the end of the direction; return whether it is the end of a message."""
        if self._state is _State.REST:
            self._finish(time)
        return self.between

    def _step(self, data: bytes, at: int, time: float) -> int:
        state = self._state
        if state is _State.REST:
            self.on_body(data[at:], time)
            return len(data)
        if state is _State.BODY or state is _State.CHUNK:
            part = data[at : at + self._remaining]
            self._remaining -= len(part)
            self.on_body(part, time)
            if not self._remaining:
                if state is _State.BODY:
                    self._finish(time)
                else:
                    self._state = _State.CHUNK_END
            return at + len(part)
        if state is _State.HEAD:
            return self._in_head(data, at, time)
        if state is _State.CHUNK_LINE:
            return self._in_chunk_line(data, at)
        if state is _State.CHUNK_END:
            return self._in_chunk_end(data, at)
        return self._in_trailers(data, at, time)

    def _in_head(self, data: bytes, at: int, time: float) -> int:
        if not self._held:
            # Empty lines before a message are skipped (RFC 9112, section 2.2).
            while data.startswith(b"\r\n", at):
                at += 2
                self._frame(b"\r\n")
            if at == len(data):
                return at
            self._began = time
        elif self._held == b"\r":
            # The first byte of an empty line came in an earlier segment.
            if not data.startswith(b"\n", at):
                raise MalformedMessage("bare_newline")
            self._held.clear()
            self._frame(b"\r\n")
            return at + 1
        head, at = self._until(b"\r\n\r\n", data, at, HEAD_BYTES)
        if head is not None:
            framing = self._head(head[:-4], self._began, time)
            self._remaining = framing.length
            self._state = _FIRST[framing.body]
            if framing.body is BodyFraming.NONE and not framing.interim:
                self._finish(time)
        return at

    def _in_chunk_line(self, data: bytes, at: int) -> int:
        try:
            line, at = self._until(b"\r\n", data, at, CHUNK_LINE_BYTES)
        except MalformedMessage:
            raise MalformedMessage("chunk") from None
        if line is None:
            return at
        found = _CHUNK_LINE.fullmatch(line)
        if not found:
            raise MalformedMessage("chunk")
        self._frame(line)
        self._remaining = int(found[1], 16)
        self._state = _State.CHUNK if self._remaining else _State.TRAILERS
        return at

    def _in_chunk_end(self, data: bytes, at: int) -> int:
        missing = b"\r\n"[len(self._held) :]
        part = data[at : at + len(missing)]
        if not missing.startswith(part):
            raise MalformedMessage("chunk")
        self._held += part
        if part == missing:
            self._held.clear()
            self._frame(b"\r\n")
            self._state = _State.CHUNK_LINE
        return at + len(part)

    def _in_trailers(self, data: bytes, at: int, time: float) -> int:
        if not self._held or self._held == b"\r":
            rest = bytes(self._held) + data[at : at + 2]
            if rest.startswith(b"\r\n"):
                at += 2 - len(self._held)
                self._held.clear()
                self._frame(b"\r\n")
                self._finish(time)
                return at
        trailers, at = self._until(b"\r\n\r\n", data, at, HEAD_BYTES)
        if trailers is not None:
            fields = _fields(trailers[:-4].split(b"\r\n"))
            if values(fields, b"content-length") or values(fields, b"transfer-encoding"):
                raise MalformedMessage("length")
            self._frame(trailers)
            self._finish(time)
        return at

    def _frame(self, data: bytes) -> None:
        if self._framing:
            self._framing(data)

    def _finish(self, time: float) -> None:
        self._state = _State.HEAD
        self._end(time)

    def _until(self, mark: bytes, data: bytes, at: int, limit: int) -> tuple[bytes | None, int]:
        """Return the bytes up to a delimiter and the offset after it, or buffer them."""
        held = self._held
        before = len(held)
        held += data[at : at + limit - before + 1]
        found = held.find(mark, max(0, before - len(mark) + 1))
        end = found + len(mark) if found >= 0 else len(held)
        if _STRAY.search(held, max(0, before - 1), end):
            raise MalformedMessage("bare_newline")
        if end > limit:
            raise MalformedMessage("too_long")
        if found < 0:
            return None, len(data)
        whole = bytes(held[:end])
        held.clear()
        return whole, at + end - before


_FIRST: Final = {
    BodyFraming.NONE: _State.HEAD,
    BodyFraming.LENGTH: _State.BODY,
    BodyFraming.CHUNKED: _State.CHUNK_LINE,
    BodyFraming.UNTIL_CLOSE: _State.REST,
}


def _read(head: bytes, first: re.Pattern[bytes]) -> tuple[re.Match[bytes], Fields]:
    line, *rest = head.split(b"\r\n")
    found = first.fullmatch(line)
    if not found:
        raise MalformedMessage("start_line")
    return found, _fields(rest)


def _fields(lines: list[bytes]) -> Fields:
    fields = []
    for line in lines:
        if line[:1] in (b" ", b"\t"):
            raise MalformedMessage("folded")
        field = _FIELD.fullmatch(line)
        if not field:
            raise MalformedMessage("field")
        fields.append((field[1].lower(), field[2].rstrip(b" \t")))
    return fields
