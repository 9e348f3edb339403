"""Parse gRPC's length-prefixed messages and its status.

See "gRPC over HTTP2" (PROTOCOL-HTTP2.md) and statuscodes.md of gRPC.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from exporter.outcome_rules import ERROR_BYTES, outcome_of, wanted_headers
from slos.outcomes import Outcome

HELD_BYTES = 8192
"""Bytes of a message that are buffered, and the limit of its decompressed size."""

PREFIX_BYTES = 5
_UNKNOWN, _DIGITS = 2, 2
_HTTP_DIGITS = 3
_WINDOW_BITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}

STATUS = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND"),
    *("ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"),
    *("ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"),
    "UNAUTHENTICATED",
)
"""The name of every status code, by number."""


class MalformedStreamError(ValueError):
    """The bytes are not gRPC messages; ``args`` is the reason of the skip."""


@dataclass(frozen=True, slots=True)
class GrpcMessage:
    """A complete message; ``body`` is only its prefix unless ``whole``.

    A message that is not ``whole`` may have a ``hash`` of all its bytes.
    """

    body: bytes
    whole: bool
    hash: blake2b | None = None


class GrpcMessageReader:
    """Split one direction of a call into messages.

    ``encoding`` is the header ``grpc-encoding`` of that direction.  ``start_hash`` starts the hash
    of a message that is too long to buffer, given its prefix.
    """

    __slots__ = ("_hash", "_head", "_remaining", "_start_hash", "encoding")

    def __init__(
        self, encoding: bytes = b"", start_hash: Callable[[bytes], blake2b] | None = None
    ) -> None:
        self.encoding = encoding
        self._start_hash = start_hash
        self._head = bytearray()
        self._remaining = 0
        self._hash: blake2b | None = None

    @property
    def in_message(self) -> bool:
        """Whether a message is incomplete."""
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
                self._remaining = int.from_bytes(head[1:], "big")
            end = min(stop, start + self._remaining)
            held = min(end, start + HELD_BYTES + PREFIX_BYTES - len(head))
            head += data[start:held]
            if held < end and self._start_hash and not head[0]:
                self._hash = self._hash or self._start_hash(bytes(head[PREFIX_BYTES:]))
                self._hash.update(data[held:end])
            self._remaining -= end - start
            start = end
            if not self._remaining:
                yield self._message()

    def partial_message(self) -> GrpcMessage:
        """Return the prefix of an incomplete message; raises MalformedStreamError."""
        return _decode_message(bytes(self._head), False, None, self.encoding)

    def _message(self) -> GrpcMessage:
        head = bytes(self._head)
        whole = int.from_bytes(head[1:PREFIX_BYTES], "big") == len(head) - PREFIX_BYTES
        hashed, self._hash = self._hash, None
        self._head.clear()
        return _decode_message(head, whole, hashed, self.encoding)


def _decode_message(
    head: bytes, whole: bool, hashed: blake2b | None, encoding: bytes
) -> GrpcMessage:
    """Decode the message that starts with ``head``, its five-byte prefix included."""
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


def outcome(status: bytes, headers: Mapping[bytes, bytes]) -> tuple[Outcome, str]:
    """Return outcome and reason by ``grpc-status``, given all trailers."""
    name = STATUS[_UNKNOWN]
    if status.isdigit() and len(status) <= _DIGITS and int(status) < len(STATUS):
        name = STATUS[int(status)]
    if name == "OK":
        return "ok", ""
    return outcome_of(name, _wanted(headers), headers.get(b"grpc-message", b"")[:ERROR_BYTES])


def http_outcome(status: bytes, headers: Mapping[bytes, bytes]) -> tuple[Outcome, str]:
    """Return outcome and reason of a call whose HTTP status is not 200."""
    if not status.isdigit() or len(status) != _HTTP_DIGITS:
        return outcome_of("response_closed")
    return outcome_of(status.decode(), _wanted(headers))


def _wanted(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    return wanted_headers(
        {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
    )
