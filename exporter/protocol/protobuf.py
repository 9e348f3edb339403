"""Read the wire format of protobuf messages that may be truncated."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES = 10

Field = tuple[int, int, int]
"""Tag; then start and stop of a length-delimited value, or a varint and its stop."""


class MalformedMessageError(ValueError):
    """The bytes are not a protobuf message."""


def inside(message: bytes, start: int, stop: int) -> Iterator[Field]:
    """Yield the fields of a value that may be truncated."""
    return fields(message, start, min(stop, len(message)), stop <= len(message))


def fields(message: bytes, start: int, stop: int, whole: bool) -> Iterator[Field]:
    """Yield the fields between two offsets; a truncated last field may stop after them."""
    while start < stop:
        try:
            tag, start = varint(message, start, stop)
            kind = tag & 7
            if kind == _BYTES:
                length, start = varint(message, start, stop)
            elif kind == _VARINT:
                number, start = varint(message, start, stop)
                if not tag >> 3:
                    raise MalformedMessageError("a field has no number")
                yield tag, number, start
                continue
            elif kind in _FIXED:
                length = _FIXED[kind]
            else:
                raise MalformedMessageError("a wire type that is not in use")
        except IndexError:
            if whole:
                raise MalformedMessageError("a field is cut off") from None
            return
        end = start + length
        if not tag >> 3 or (whole and end > stop):
            raise MalformedMessageError("a field has no number, or more than its message")
        yield tag, start, end
        start = end


def varint(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Return a varint and its stop; raises IndexError if it does not end before ``stop``."""
    if start >= stop:
        raise IndexError
    value = data[start]
    if value < 0x80:
        return value, start + 1
    value &= 0x7F
    for index in range(1, _VARINT_BYTES):
        if start + index >= stop:
            raise IndexError
        byte = data[start + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, start + index + 1
    raise MalformedMessageError("a number of more than 64 bits")
