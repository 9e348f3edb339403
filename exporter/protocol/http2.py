"""HTTP/2 as seen from the middle: frames, headers, and the gRPC calls among the streams.

Frames are those of RFC 9113.  What is passed over, by reason: ``midway``: the beginning of a
connection was not seen, and with it the state of its header compression; ``gap``: bytes of it were
not seen, and nothing says how many; ``malformed``, ``headers``: frames that break the rules, more
headers than the bound; ``push``: a server that pushes; ``calls``, ``crowded``: more calls or
requests than the bound; ``encoding``: a compression of messages that is not known; ``unmatched``:
answers to no known request; ``http2``: requests to endpoints that are understood over HTTP/1 only;
``grpc_method`` and the reasons of :mod:`exporter.protocol.endpoints`: requests to other endpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from exporter.protocol import grpc
from exporter.protocol.endpoints import unsupported_call
from exporter.protocol.events import CLIENT, SERVER, Direction, Listener, ObserverSettings
from exporter.protocol.grpc_calls import ENDPOINTS, GrpcCall, GrpcConnection
from exporter.protocol.kserve_grpc import Layouts

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What every client of HTTP/2 sends first (RFC 9113, 3.4)."""
MAX_CALLS = 1024
"""Of a connection, at a time."""
MAX_HEADER_BYTES = 65536
"""Of a header block, as it is and decompressed, and of a table of header compression."""
MAX_FIELDS = 128
"""Of a header block; servers refuse more than about 100."""
FIELDS_AT_ONCE = 8192
FIELDS_PER_SECOND = 16_384
"""Of a connection: decompressing a field takes 4 µs, and as little as a byte to send.  Blocks that
repeat an earlier one count as one field."""
_BYTES_PER_FIELD = 32  # what Huffman codes cost
_CACHED_BLOCKS, _CACHED_BYTES = 64, 512
TENANT_BYTES = 256
"""Longer names of tenants are cut."""

# Types of frames and their flags.
_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS = range(5)
_PUSH_PROMISE, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = range(5, 10)
_END_STREAM, _END_HEADERS, _PADDED, _WITH_PRIORITY = 0x1, 0x4, 0x8, 0x20

_OF_STREAMS = frozenset((_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _PUSH_PROMISE, _CONTINUATION))
_OF_CONNECTION = frozenset((_SETTINGS, _PING, _GOAWAY))
_LENGTHS: Final[Mapping[int, int]] = {_PRIORITY: 5, _RST_STREAM: 4, _PING: 8, _WINDOW_UPDATE: 4}
_READ_WHOLE = frozenset((_HEADERS, _CONTINUATION, _RST_STREAM, _GOAWAY, _PUSH_PROMISE))

_head: Final = Struct(">BHBBI").unpack_from
_HEAD_BYTES = 9
_STREAM = 0x7FFFFFFF
_PRIORITY_BYTES, _GOAWAY_BYTES = 5, 8
_NO_ERROR, _REFUSED_STREAM = 0, 7

Headers = dict[bytes, bytes]


class _MalformedError(ValueError):
    """The connection cannot be followed; ``args`` is the reason why it is passed over."""


class _Side:
    """What is known of one direction.

    ``rest`` is the beginning of a frame that is read whole.  Of one that is not, ``left`` bytes are
    to come for ``stream``, 0 being nobody, then ``padding``; ``ends`` says that the stream's
    direction ends with it.  ``block`` is what there is of a header block, for ``stream`` as well.
    ``ready`` says that there is no such block, and that the settings came which come first.
    ``blocks`` are header blocks decoded since the table of header compression changed.
    """

    __slots__ = (
        "block",
        "blocks",
        "decoder",
        "direction",
        "ends",
        "left",
        "opened",
        "padding",
        "ready",
        "rest",
        "settled",
        "stream",
    )

    def __init__(self, direction: Direction) -> None:
        self.direction: Direction = direction
        self.opened = direction == SERVER
        self.settled = self.ready = self.ends = False
        self.rest = b""
        self.stream = self.left = self.padding = 0
        self.block = bytearray()
        self.blocks: dict[bytes, Headers] = {}
        self.decoder = Decoder(max_header_list_size=MAX_HEADER_BYTES)
        # Whichever size the settings allow is used only once the encoder says so itself.
        self.decoder.max_allowed_table_size = MAX_HEADER_BYTES


class Http2Observer:
    """Watches a connection that the client opens with the preface of HTTP/2."""

    def __init__(self, listener: Listener, settings: ObserverSettings) -> None:
        self.inactive = False
        self.refusal = ""
        self._listener = listener
        self._tenant_header = settings.tenant_header.encode()
        self._connection = GrpcConnection(listener, settings, Layouts())
        self._sides = (_Side(CLIENT), _Side(SERVER))
        self._calls: dict[int, GrpcCall] = {}
        self._last_stream = 0
        self._fields = float(FIELDS_AT_ONCE)
        self._fields_at = 0.0

    @property
    def live(self) -> int:
        """How many requests are under way."""
        return self._connection.live

    def feed(self, direction: Direction, data: bytes, time: float) -> None:
        """Take in the next bytes of a direction."""
        if self.inactive:
            return
        try:
            self._feed(self._sides[direction], data, time)
        except _MalformedError as error:
            self._lose_sight(str(error))

    def half_closed(self, direction: Direction, time: float) -> None:
        """Take in that a side sent its FIN."""
        if direction == CLIENT:
            for call in self._calls.values():
                call.closing(time)
        else:
            self._break_off("truncated", time)

    def aborted(self, time: float) -> None:
        """Take in that the client is gone for good."""
        for call in self._calls.values():
            call.aborted(time)
        self._calls.clear()

    def server_lost(self, time: float) -> None:
        """Take in that the server reset the connection, or could not be reached."""
        self._break_off("reset", time)

    def gap(self, direction: Direction, time: float) -> None:
        """Take in that bytes were not seen: nobody knows where the next frame begins."""
        if not self.inactive:
            self._lose_sight("gap")

    def blocked(self) -> None:
        """Note that the client does not read what is there for all its requests."""
        for call in self._calls.values():
            call.blocked()

    def backpressure(self, seconds: float) -> None:
        """Take in for how long the client did not read what was there for all its requests."""
        for call in self._calls.values():
            call.backpressure(seconds)

    def expire(self, time: float) -> None:
        """End what waits for a server that says nothing more."""
        for stream, call in list(self._calls.items()):
            call.expire(time)
            if call.done:
                del self._calls[stream]

    # Frames

    def _feed(self, side: _Side, data: bytes, time: float) -> None:
        if side.rest:
            data, side.rest = side.rest + data, b""
        at, size = 0, len(data)
        if not side.opened:
            at = _open(side, data)
            if not side.opened:
                return
        while True:
            if side.left or side.padding:
                at = self._pass(side, data, at, time)
            start = at + _HEAD_BYTES
            if start > size:
                break
            high, low, kind, flags, stream = _head(data, at)
            stop = start + (high << 16 | low)
            if kind == _DATA and stop <= size and side.ready and not flags & _PADDED:
                # Nearly all frames are such, so this way is the quick one.
                call = self._calls.get(stream & _STREAM)
                if call is not None:
                    if side.direction:
                        call.answer(data, start, stop, time)
                    else:
                        call.ask(data, start, stop, time)
                    if call.done:
                        del self._calls[stream & _STREAM]
                    elif flags & _END_STREAM:
                        self._end(side, stream & _STREAM, {}, time)
                elif not stream & _STREAM:
                    raise _MalformedError("malformed")
                at = stop
                continue
            stream &= _STREAM
            _check(side, kind, stop - start, stream)
            if kind in _READ_WHOLE:
                if stop > size:
                    break
                self._read(side, kind, flags, stream, data[start:stop], time)
                at = stop
            else:
                if flags & _PADDED and kind == _DATA:
                    if start == size:
                        break
                    side.padding, start = data[start], start + 1
                side.left = stop - start - side.padding
                if side.left < 0:
                    raise _MalformedError("malformed")
                side.stream = stream if kind == _DATA else 0
                side.ends = kind == _DATA and bool(flags & _END_STREAM)
                at = start
                if not side.left and not side.padding:
                    self._passed(side, time)
        side.rest = data[at:]

    def _pass(self, side: _Side, data: bytes, at: int, time: float) -> int:
        """Take in more of a frame that is not read whole; return where that ends."""
        stop = min(len(data), at + side.left)
        call = self._calls.get(side.stream)
        if call is not None:
            if side.direction == SERVER:
                call.answer(data, at, stop, time)
            else:
                call.ask(data, at, stop, time)
            if call.done:
                del self._calls[side.stream]
        side.left -= stop - at
        if side.left:
            return stop
        end = min(len(data), stop + side.padding)
        side.padding -= end - stop
        if not side.padding:
            self._passed(side, time)
        return end

    def _passed(self, side: _Side, time: float) -> None:
        if side.ends:
            self._end(side, side.stream, {}, time)

    def _read(
        self, side: _Side, kind: int, flags: int, stream: int, payload: bytes, time: float
    ) -> None:
        """Take in a frame that is read whole."""
        if kind == _RST_STREAM:
            self._reset(side, stream, int.from_bytes(payload, "big"), time)
        elif kind == _GOAWAY:
            if side.direction == SERVER:
                self._go_away(payload, time)
        elif kind == _PUSH_PROMISE:
            raise _MalformedError("push")
        else:
            if kind == _HEADERS:
                payload = _unpadded(payload, flags)
                side.stream, side.ends = stream, bool(flags & _END_STREAM)
            side.block += payload
            if len(side.block) > MAX_HEADER_BYTES:
                raise _MalformedError("headers")
            self._charge(1, time)
            side.ready = bool(flags & _END_HEADERS)
            if side.ready:
                block = bytes(side.block)
                side.block.clear()
                headers = side.blocks.get(block)
                if headers is None:
                    headers, fields = _decoded(side, block)
                    self._charge(fields + len(block) // _BYTES_PER_FIELD, time)
                self._headers(side, stream, headers, time)

    def _charge(self, fields: int, time: float) -> None:
        """Take the cost of header fields from the budget; raise _MalformedError if it is spent."""
        if time > self._fields_at:
            refill = (time - self._fields_at) * FIELDS_PER_SECOND
            self._fields = min(FIELDS_AT_ONCE, self._fields + refill)
            self._fields_at = time
        self._fields -= fields
        if self._fields < 0:
            raise _MalformedError("headers")

    # What they mean

    def _headers(self, side: _Side, stream: int, headers: Headers, time: float) -> None:
        if side.direction == CLIENT and stream > self._last_stream:
            self._last_stream = stream
            self._begin(stream, headers)
        if side.ends:
            self._end(side, stream, headers, time)
        elif side.direction == SERVER and (call := self._calls.get(stream)):
            status = headers.get(b":status", b"200")
            if status == b"200":
                call.encoded(headers.get(b"grpc-encoding", b""))
            elif not status.startswith(b"1"):
                call.completed(*grpc.http_outcome(status), time)
                del self._calls[stream]

    def _begin(self, stream: int, headers: Headers) -> None:
        """Begin to watch a stream if it is a call for tokens."""
        method = headers.get(b":method", b"")
        if method not in (b"POST", b"PUT"):
            return
        endpoint = ENDPOINTS.get(headers.get(b":path", b""))
        if endpoint is None:
            kind = headers.get(b"content-type", b"")
            if reason := unsupported_call(method, headers.get(b":path", b""), kind):
                self._listener.skipped(reason)
        elif len(self._calls) >= MAX_CALLS:
            self._listener.skipped("calls")
        else:
            tenant = headers.get(self._tenant_header, b"")[:TENANT_BYTES].decode(errors="replace")
            encoding = headers.get(b"grpc-encoding", b"")
            self._calls[stream] = GrpcCall(self._connection, endpoint, tenant, encoding)

    def _end(self, side: _Side, stream: int, headers: Headers, time: float) -> None:
        """Take in that a side has said its last on a stream, with these headers."""
        call = self._calls.get(stream)
        if call is None:
            return
        if side.direction == CLIENT:
            call.client_done(time)
            return
        status, http = headers.get(b"grpc-status"), headers.get(b":status", b"200")
        if status is not None:
            message = headers.get(b"grpc-message", b"")
            call.completed(*grpc.outcome(status, message), time)
        elif http != b"200":
            call.completed(*grpc.http_outcome(http), time)
        else:
            call.broken_off("error", "truncated", time)
        del self._calls[stream]

    def _reset(self, side: _Side, stream: int, code: int, time: float) -> None:
        call = self._calls.get(stream)
        if call is None:
            return
        if side.direction == CLIENT:
            call.client_reset(time)
        else:
            call.broken_off("rejected" if code == _REFUSED_STREAM else "error", "reset", time)
        if call.done:
            del self._calls[stream]

    def _go_away(self, payload: bytes, time: float) -> None:
        """Take in that the server takes no more calls, and which of them it has not begun."""
        if len(payload) < _GOAWAY_BYTES:
            raise _MalformedError("malformed")
        last, code = (int.from_bytes(payload[at : at + 4], "big") for at in (0, 4))
        for stream, call in list(self._calls.items()):
            if stream > last & _STREAM:
                call.broken_off("rejected", "reset", time)
            elif code != _NO_ERROR:
                call.broken_off("error", "reset", time)
            if call.done:
                del self._calls[stream]

    def _break_off(self, reason: str, time: float) -> None:
        for call in self._calls.values():
            call.broken_off("error", reason, time)
        self._calls.clear()

    def _lose_sight(self, reason: str) -> None:
        self.inactive = True
        self._listener.skipped(reason)
        for call in self._calls.values():
            call.forget()
        self._calls.clear()
        self._sides = (_Side(CLIENT), _Side(SERVER))


def _open(side: _Side, data: bytes) -> int:
    """Return where frames begin after the client's preface."""
    if not data.startswith(PREFACE[: len(data)]):
        raise _MalformedError("midway")
    if len(data) < len(PREFACE):
        side.rest = data
        return 0
    side.opened = True
    return len(PREFACE)


def _check(side: _Side, kind: int, length: int, stream: int) -> None:
    """Raise _MalformedError if there can be no such frame here."""
    if not side.settled:
        side.settled = side.ready = kind == _SETTINGS
    continued = bool(side.settled and not side.ready)
    if (
        not side.settled
        or continued != (kind == _CONTINUATION)
        or (continued and stream != side.stream)
        or (kind in _OF_STREAMS and not stream)
        or (kind in _OF_CONNECTION and stream)
        or length != _LENGTHS.get(kind, length)
    ):
        raise _MalformedError("malformed")
    if kind in _READ_WHOLE and length > MAX_HEADER_BYTES:
        raise _MalformedError("headers")


def _unpadded(payload: bytes, flags: int) -> bytes:
    """Return the header block fragment of a HEADERS frame."""
    start, stop = 0, len(payload)
    if flags & _PADDED and payload:
        start, stop = 1, stop - payload[0]
    if flags & _WITH_PRIORITY:
        start += _PRIORITY_BYTES
    if start > stop:
        raise _MalformedError("malformed")
    return payload[start:stop]


def _decoded(side: _Side, block: bytes) -> tuple[Headers, int]:
    """Return headers by name, the first of each, and how many fields there were."""
    headers: Headers = {}
    table = side.decoder.header_table
    before = _newest(table), len(table.dynamic_entries), table.maxsize
    try:
        fields = list(side.decoder.decode(block, raw=True))
    except OversizedHeaderListError:
        raise _MalformedError("headers") from None
    except HPACKError:
        raise _MalformedError("malformed") from None
    if len(fields) > MAX_FIELDS:
        raise _MalformedError("headers")
    for name, value in fields:
        headers.setdefault(bytes(name), bytes(value))
    same = _newest(table) is before[0]
    if not same or (len(table.dynamic_entries), table.maxsize) != before[1:]:
        side.blocks.clear()
    elif len(block) <= _CACHED_BYTES and len(side.blocks) < _CACHED_BLOCKS:
        side.blocks[block] = headers
    return headers, len(fields)


def _newest(table: HeaderTable) -> object:
    """Return the newest entry of a table of header compression, the same object if none came."""
    return table.dynamic_entries[0] if table.dynamic_entries else None
