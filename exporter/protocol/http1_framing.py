"""HTTP/1.1 messages of one direction, told apart by RFC 9112 and by nothing more lenient.

Whatever two readers may take for different messages is refused: see :class:`MalformedMessage`.
Bodies are handed on in the pieces they come in, without their framing; only heads, lines of chunk
sizes and trailers are held until they are whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

HEAD_BYTES: Final = 64 * 1024
"""The longest head, and the longest trailers."""
CHUNK_LINE_BYTES: Final = 16 * 1024
"""The longest line of a chunk's size, with its extensions: as long as Node.js takes."""
MAX_LENGTH: Final = 2**60

Fields = list[tuple[bytes, bytes]]
"""The header fields in order, names in lower case, values without space around them."""


class MalformedMessage(Exception):  # noqa: N818 - what it is, not that it is an error of ours
    """Bytes that are no HTTP/1 message, or that may be read in two ways; one word says why.

    ``version``, ``start_line``, ``field``, ``bare_newline`` (CR or LF alone, NUL), ``folded``,
    ``length`` (Content-Length malformed, twice and different, or beside Transfer-Encoding),
    ``encoding`` (a Transfer-Encoding other than chunked), ``chunk``, ``too_long``.
    """

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


class BodyFraming(Enum):
    """How the end of a body is found."""

    NONE = auto()
    LENGTH = auto()
    CHUNKED = auto()
    UNTIL_CLOSE = auto()


class Framing(NamedTuple):
    """What kind of body follows a head, and how many bytes it has if that is known.

    ``interim`` says that the head alone was no message: the real one follows (1xx).
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
_SIZES: Final = {b"%x\r\n" % size: size for size in range(1, 1024)}
"""The lines of small chunks, as servers write them."""
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
    """Return the values of a field, one for each time it is there."""
    return [value for key, value in fields if key == name]


def has_token(fields: Fields, name: bytes, token: bytes) -> bool:
    """Whether a field that is a list has a member, in any case of letters."""
    found = b",".join(values(fields, name)).lower().split(b",")
    return token in (member.strip(b" \t") for member in found)


def body_of(version: bytes, fields: Fields) -> Framing | None:
    """Return what the fields say of the body's end, None if nothing (RFC 9112, section 6.3)."""
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
    """Return how the body of a response to such a request ends.

    None if there are no more messages: from here on the connection speaks something else.
    """
    if found.status == 101 or (method == b"CONNECT" and 200 <= found.status < 300):
        return None
    if found.status < 200:
        return Framing(BodyFraming.NONE, interim=True)
    framing = body_of(found.version, found.fields) or Framing(BodyFraming.UNTIL_CLOSE)
    if method == b"HEAD" or found.status in (204, 304):
        return Framing(BodyFraming.NONE)
    return framing


TakeHead = Callable[[bytes, float, float], Framing]
"""Takes a head without the empty line that ends it, when it began and the time."""
TakeBody = Callable[[bytes, float], None]
"""Takes a piece of a body and the time."""


class _State(Enum):
    HEAD = auto()
    BODY = auto()
    REST = auto()  # of a body that ends with the connection
    CHUNK_LINE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILERS = auto()


class MessageParser:
    """Takes the bytes of a direction; tells heads, pieces of bodies and ends of messages.

    ``take_body`` may be set anew with every head.  ``framing`` takes what frames bodies, each part
    of it whole: lines of chunk sizes, ends of chunks, trailers, and empty lines before a message.
    With it every byte is handed out exactly once, in order; a head comes without its last four.
    ``feed`` raises Malformed and whatever the functions it calls raise, and is of no more use then.
    """

    __slots__ = ("_awaits", "_began", "_end", "_framing", "_head", "_held", "_left", "take_body")

    def __init__(
        self,
        head: TakeHead,
        body: TakeBody,
        end: Callable[[float], None],
        framing: Callable[[bytes], None] | None = None,
    ) -> None:
        self._head = head
        self._end = end
        self._framing = framing
        self.take_body = body
        self._awaits = _State.HEAD
        self._held = bytearray()
        self._left = 0
        self._began = 0.0

    @property
    def held(self) -> int:
        """How many bytes are held."""
        return len(self._held)

    @property
    def pending(self) -> bytes:
        """The bytes that are held."""
        return bytes(self._held)

    @property
    def between(self) -> bool:
        """Whether no message has begun that has not ended."""
        return self._awaits is _State.HEAD and not self._held

    def feed(self, data: bytes, time: float) -> None:
        """Take in the next bytes."""
        at, end = 0, len(data)
        if self._awaits is _State.CHUNK_LINE and not self._held:
            # Mostly a segment is one chunk, or a few, and not large.
            take_body, framing = self.take_body, self._framing
            while size := _SIZES.get(data[at : (start := data.find(b"\n", at) + 1)]):
                after = start + size
                if not data.startswith(b"\r\n", after):
                    break
                if framing:
                    framing(data[at:start])
                    take_body(data[start:after], time)
                    framing(b"\r\n")
                else:
                    take_body(data[start:after], time)
                at = after + 2
        while at < end:
            at = self._step(data, at, time)

    def closed(self, time: float) -> bool:
        """Take in that the direction ends here; return whether that is the end of a message."""
        if self._awaits is _State.REST:
            self._finish(time)
        return self.between

    def _step(self, data: bytes, at: int, time: float) -> int:
        awaits = self._awaits
        if awaits is _State.REST:
            self.take_body(data[at:], time)
            return len(data)
        if awaits is _State.BODY or awaits is _State.CHUNK:
            piece = data[at : at + self._left]
            self._left -= len(piece)
            self.take_body(piece, time)
            if not self._left:
                if awaits is _State.BODY:
                    self._finish(time)
                else:
                    self._awaits = _State.CHUNK_END
            return at + len(piece)
        if awaits is _State.HEAD:
            return self._in_head(data, at, time)
        if awaits is _State.CHUNK_LINE:
            return self._in_chunk_line(data, at)
        if awaits is _State.CHUNK_END:
            return self._in_chunk_end(data, at)
        return self._in_trailers(data, at, time)

    def _in_head(self, data: bytes, at: int, time: float) -> int:
        if not self._held:
            # Empty lines before a message are passed over (RFC 9112, section 2.2).
            while data.startswith(b"\r\n", at):
                at += 2
                self._frame(b"\r\n")
            if at == len(data):
                return at
            self._began = time
        elif self._held == b"\r":
            # Half of such a line came before.
            if not data.startswith(b"\n", at):
                raise MalformedMessage("bare_newline")
            self._held.clear()
            self._frame(b"\r\n")
            return at + 1
        head, at = self._until(b"\r\n\r\n", data, at, HEAD_BYTES)
        if head is not None:
            framing = self._head(head[:-4], self._began, time)
            self._left = framing.length
            self._awaits = _FIRST[framing.body]
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
        self._left = int(found[1], 16)
        self._awaits = _State.CHUNK if self._left else _State.TRAILERS
        return at

    def _in_chunk_end(self, data: bytes, at: int) -> int:
        missing = b"\r\n"[len(self._held) :]
        piece = data[at : at + len(missing)]
        if not missing.startswith(piece):
            raise MalformedMessage("chunk")
        self._held += piece
        if piece == missing:
            self._held.clear()
            self._frame(b"\r\n")
            self._awaits = _State.CHUNK_LINE
        return at + len(piece)

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
        self._awaits = _State.HEAD
        self._end(time)

    def _until(self, mark: bytes, data: bytes, at: int, limit: int) -> tuple[bytes | None, int]:
        """Return what ends in a mark, and where that is; or hold all there is, and None."""
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
