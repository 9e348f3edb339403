"""What gRPC puts into HTTP/2: messages with five bytes before each, and a status at the end.

See "gRPC over HTTP2" (PROTOCOL-HTTP2.md) and statuscodes.md of gRPC.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from exporter.protocol.events import Outcome
from exporter.protocol.response import of_status

HELD_BYTES = 8192
"""How much of a message is kept until the rest of it has passed, and is inflated."""

_UNKNOWN_MODEL = b"unknown model"  # Triton, with whichever status
PREFIX_BYTES = 5
_UNKNOWN, _DIGITS = 2, 2
_HTTP_DIGITS = 3
_WINDOW_BITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}

_STATUS: tuple[tuple[str, Outcome], ...] = (
    ("OK", "ok"),
    ("CANCELLED", "cancelled"),
    ("UNKNOWN", "error"),
    ("INVALID_ARGUMENT", "invalid"),
    ("DEADLINE_EXCEEDED", "timeout"),
    ("NOT_FOUND", "invalid"),
    ("ALREADY_EXISTS", "invalid"),
    ("PERMISSION_DENIED", "invalid"),
    ("RESOURCE_EXHAUSTED", "rejected"),
    ("FAILED_PRECONDITION", "invalid"),
    ("ABORTED", "error"),
    ("OUT_OF_RANGE", "invalid"),
    ("UNIMPLEMENTED", "invalid"),
    ("INTERNAL", "error"),
    ("UNAVAILABLE", "rejected"),
    ("DATA_LOSS", "error"),
    ("UNAUTHENTICATED", "invalid"),
)
"""Name and outcome of every status code, by number."""


class MalformedStreamError(ValueError):
    """The bytes are no gRPC messages; ``args`` is one word for what is wrong."""


@dataclass(frozen=True, slots=True)
class GrpcMessage:
    """A message of which all has passed; ``body`` is its beginning if it is not ``whole``.

    Then there may be a ``hash`` of all of it.
    """

    body: bytes
    whole: bool
    hash: blake2b | None = None


class GrpcMessageReader:
    """Takes one direction of a call apart into messages.

    ``encoding`` is the header ``grpc-encoding`` of that direction.  ``hashed`` begins the hash of a
    message that is too long to be held, from what is.
    """

    __slots__ = ("_hash", "_hashed", "_head", "_left", "encoding")

    def __init__(
        self, encoding: bytes = b"", hashed: Callable[[bytes], blake2b] | None = None
    ) -> None:
        self.encoding = encoding
        self._hashed = hashed
        self._head = bytearray()
        self._left = 0
        self._hash: blake2b | None = None

    @property
    def begun(self) -> bool:
        """Whether some of a message has been seen, and not all."""
        return bool(self._head)

    def feed(self, data: bytes, start: int, stop: int) -> Iterator[GrpcMessage]:
        """Yield the messages that end in ``data`` between two offsets.

        Raises MalformedStreamError.
        """
        head = self._head
        while start < stop:
            if len(head) < PREFIX_BYTES:
                more = data[start : min(stop, start + PREFIX_BYTES - len(head))]
                head += more
                start += len(more)
                if len(head) < PREFIX_BYTES:
                    return
                self._left = int.from_bytes(head[1:], "big")
            end = min(stop, start + self._left)
            held = min(end, start + HELD_BYTES + PREFIX_BYTES - len(head))
            head += data[start:held]
            if held < end and self._hashed and not head[0]:
                self._hash = self._hash or self._hashed(bytes(head[PREFIX_BYTES:]))
                self._hash.update(data[held:end])
            self._left -= end - start
            start = end
            if not self._left:
                yield self._message()

    def cut_off(self) -> GrpcMessage:
        """Return what has been seen of a message that is not over; raises MalformedStreamError."""
        return _opened(bytes(self._head), False, None, self.encoding)

    def _message(self) -> GrpcMessage:
        head = bytes(self._head)
        whole = int.from_bytes(head[1:PREFIX_BYTES], "big") == len(head) - PREFIX_BYTES
        hashed, self._hash = self._hash, None
        self._head.clear()
        return _opened(head, whole, hashed, self.encoding)


def _opened(head: bytes, whole: bool, hashed: blake2b | None, encoding: bytes) -> GrpcMessage:
    """Return the message that begins with ``head``, the five bytes before it included."""
    compressed, body = head[0], head[PREFIX_BYTES:]
    if not compressed:
        return GrpcMessage(body, whole, hashed)
    if compressed != 1:
        raise MalformedStreamError("malformed")
    if encoding not in _WINDOW_BITS:
        raise MalformedStreamError("encoding")
    inflater = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        inflated = inflater.decompress(body, HELD_BYTES)
    except zlib.error:
        raise MalformedStreamError("malformed") from None
    return GrpcMessage(inflated, whole and inflater.eof)


def outcome(status: bytes | None, message: bytes) -> tuple[Outcome, str]:
    """Return outcome and reason by the trailers ``grpc-status`` and ``grpc-message``."""
    if status is None:
        return "error", "truncated"
    name, result = _STATUS[_UNKNOWN]
    if status.isdigit() and len(status) <= _DIGITS and int(status) < len(_STATUS):
        name, result = _STATUS[int(status)]
    if name == "UNAVAILABLE" and _UNKNOWN_MODEL in message:
        result = "invalid"
    return result, "" if result == "ok" else name


def http_outcome(status: bytes) -> tuple[Outcome, str]:
    """Return outcome and reason of a call that was answered with another HTTP status than 200."""
    if not status.isdigit() or len(status) != _HTTP_DIGITS:
        return "error", "truncated"
    return of_status(int(status)), status.decode()
