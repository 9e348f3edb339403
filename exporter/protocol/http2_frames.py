"""Validate HTTP/2 frames and decode header blocks; the state of one direction (RFC 9113)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from exporter.protocol.detection import PREFACE
from exporter.protocol.events import SERVER, Direction

MAX_HEADER_BYTES = 65536
"""The size limit of a header block, compressed and decompressed, and of an HPACK table."""
MAX_FIELDS = 128
"""The limit of fields in a header block; servers refuse more than about 100."""
_CACHED_BLOCKS, _CACHED_BYTES = 64, 512

# Frame types and flags (RFC 9113, section 6).
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)
END_STREAM, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x4, 0x8, 0x20

_OF_STREAMS = frozenset((DATA, HEADERS, PRIORITY, RST_STREAM, PUSH_PROMISE, CONTINUATION))
_OF_CONNECTION = frozenset((SETTINGS, PING, GOAWAY))
_LENGTHS: Final[Mapping[int, int]] = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
BUFFERED = frozenset((HEADERS, CONTINUATION, RST_STREAM, GOAWAY, PUSH_PROMISE))
_PRIORITY_BYTES = 5

Headers = dict[bytes, bytes]


class MalformedConnectionError(ValueError):
    """The connection cannot be parsed; ``args`` is the reason of the skip."""


class DirectionState:
    """The parser state of one direction.

    ``rest`` is the start of a frame that is buffered until it is complete.  Of a frame that is not
    buffered, ``remaining`` bytes of ``stream`` (0 for none) follow, then ``padding`` bytes;
    ``ends`` is its END_STREAM flag.  ``block`` is an incomplete header block of ``stream``.
    ``ready``: the initial SETTINGS arrived, and no header block is incomplete.  ``blocks`` are
    header blocks decoded since the last change of the HPACK table.
    """

    __slots__ = (
        "block",
        "blocks",
        "decoder",
        "direction",
        "ends",
        "has_settings",
        "opened",
        "padding",
        "ready",
        "remaining",
        "rest",
        "stream",
    )

    def __init__(self, direction: Direction) -> None:
        self.direction: Direction = direction
        self.opened = direction == SERVER
        self.has_settings = self.ready = self.ends = False
        self.rest = b""
        self.stream = self.remaining = self.padding = 0
        self.block = bytearray()
        self.blocks: dict[bytes, Headers] = {}
        self.decoder = Decoder(max_header_list_size=MAX_HEADER_BYTES)
        # A size that SETTINGS allow takes effect only with the encoder's own update.
        self.decoder.max_allowed_table_size = MAX_HEADER_BYTES


def skip_preface(side: DirectionState, data: bytes) -> int:
    """Return the offset of the first frame after the client's preface."""
    if not data.startswith(PREFACE[: len(data)]):
        raise MalformedConnectionError("midway")
    if len(data) < len(PREFACE):
        side.rest = data
        return 0
    side.opened = True
    return len(PREFACE)


def check_frame(side: DirectionState, kind: int, length: int, stream: int) -> None:
    """Raise MalformedConnectionError if the frame is not allowed in this state."""
    if not side.has_settings:
        side.has_settings = side.ready = kind == SETTINGS
    continued = bool(side.has_settings and not side.ready)
    if (
        not side.has_settings
        or continued != (kind == CONTINUATION)
        or (continued and stream != side.stream)
        or (kind in _OF_STREAMS and not stream)
        or (kind in _OF_CONNECTION and stream)
        or length != _LENGTHS.get(kind, length)
    ):
        raise MalformedConnectionError("malformed")
    if kind in BUFFERED and length > MAX_HEADER_BYTES:
        raise MalformedConnectionError("headers")


def header_fragment(payload: bytes, flags: int) -> bytes:
    """Return the header block fragment of a HEADERS frame."""
    start, stop = 0, len(payload)
    if flags & PADDED and payload:
        start, stop = 1, stop - payload[0]
    if flags & WITH_PRIORITY:
        start += _PRIORITY_BYTES
    if start > stop:
        raise MalformedConnectionError("malformed")
    return payload[start:stop]


def decode_headers(side: DirectionState, block: bytes) -> tuple[Headers, int]:
    """Return headers by name, the first value of each, and the number of fields."""
    headers: Headers = {}
    table = side.decoder.header_table
    before = _newest(table), len(table.dynamic_entries), table.maxsize
    try:
        fields = list(side.decoder.decode(block, raw=True))
    except OversizedHeaderListError:
        raise MalformedConnectionError("headers") from None
    except HPACKError:
        raise MalformedConnectionError("malformed") from None
    if len(fields) > MAX_FIELDS:
        raise MalformedConnectionError("headers")
    for name, value in fields:
        headers.setdefault(bytes(name), bytes(value))
    same = _newest(table) is before[0]
    if not same or (len(table.dynamic_entries), table.maxsize) != before[1:]:
        side.blocks.clear()
    elif len(block) <= _CACHED_BYTES and len(side.blocks) < _CACHED_BLOCKS:
        side.blocks[block] = headers
    return headers, len(fields)


def _newest(table: HeaderTable) -> object:
    """Return the newest entry of an HPACK table: the same object unless an entry was added."""
    return table.dynamic_entries[0] if table.dynamic_entries else None
