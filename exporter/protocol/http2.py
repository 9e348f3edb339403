"""Observe one HTTP/2 connection: frames, headers, and the gRPC calls among the streams (RFC 9113).

Reasons of skipped requests and connections:

* ``midway``: the start of the connection was missed, and with it the state of HPACK;
* ``gap``: bytes of the connection are missing;
* ``malformed``, ``headers``: invalid frames, or more headers than the limit;
* ``frames``: more frames than the limit, not counting DATA of the server and large DATA of the
  client;
* ``push``: a server push;
* ``calls``, ``requests``: more calls or requests than the limit;
* ``encoding``: an unknown compression of messages;
* ``unmatched``: responses to no known request;
* ``http2``: requests to endpoints that are supported over HTTP/1 only;
* ``grpc_method`` and the reasons of :mod:`exporter.protocol.endpoints`: other endpoints.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from exporter.protocol import grpc
from exporter.protocol.endpoints import unsupported_call
from exporter.protocol.events import CLIENT, SERVER, Direction, Listener, ObserverSettings
from exporter.protocol.grpc_calls import ENDPOINTS, GrpcCall, GrpcCallContext
from exporter.protocol.http2_frames import (
    BUFFERED,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_HEADER_BYTES,
    PADDED,
    PUSH_PROMISE,
    RST_STREAM,
    DirectionState,
    Headers,
    MalformedConnectionError,
    check_frame,
    decode_headers,
    header_fragment,
    skip_preface,
)
from exporter.protocol.kserve_grpc import HeadCache

MAX_CALLS = 1024
"""Concurrent calls of a connection."""
FIELD_BURST = 8192
FIELDS_PER_SECOND = 16_384
"""A token bucket for the header fields of a connection: decompressing a field takes 4 µs, sending
it as little as a byte.  A block that repeats an earlier one counts as one field,
and so does every frame but DATA of the server and large DATA of the client: floods of PING,
SETTINGS or empty DATA are cheap to send too."""
LARGE_DATA = 1024
"""Bytes of a client's DATA frame that is not charged."""
_BYTES_PER_FIELD = 32  # decoding this many bytes of Huffman codes takes as long as one field
TENANT_BYTES = 256
"""Longer names of tenants are truncated."""

_head: Final = Struct(">BHBBI").unpack_from
_HEAD_BYTES = 9
_GOAWAY_BYTES = 8
_STREAM_ID_MASK = 0x7FFFFFFF
_NO_ERROR, _REFUSED_STREAM = 0, 7


class Http2Observer:
    """Observe a connection that the client opens with the HTTP/2 preface."""

    def __init__(self, listener: Listener, settings: ObserverSettings) -> None:
        self.inactive = False
        self.refusal = ""
        self._listener = listener
        self._tenant_header = settings.tenant_header.encode()
        self._connection = GrpcCallContext(listener, settings, HeadCache())
        self._sides = (DirectionState(CLIENT), DirectionState(SERVER))
        self._calls: dict[int, GrpcCall] = {}
        self._last_stream = 0
        self._field_budget = float(FIELD_BURST)
        self._refilled_at = 0.0

    @property
    def live(self) -> int:
        """The number of active requests."""
        return self._connection.live

    def feed(self, direction: Direction, data: bytes, time: float) -> None:
        """Feed the next bytes of a direction."""
        if self.inactive:
            return
        try:
            self._feed(self._sides[direction], data, time)
        except MalformedConnectionError as error:
            self._stop_observing(str(error))

    def half_closed(self, direction: Direction, time: float) -> None:
        """Handle the FIN of a side."""
        if direction == CLIENT:
            for call in self._calls.values():
                call.closing(time)
        else:
            self._server_ended("closed", time)

    def aborted(self, time: float) -> None:
        """Handle the client's disconnect."""
        for call in self._calls.values():
            call.aborted(time)
        self._calls.clear()

    def server_lost(self, time: float) -> None:
        """Handle a server's reset, or a server that could not be reached."""
        self._server_ended("reset", time)

    def gap(self, direction: Direction, time: float) -> None:
        """Stop observing after missing bytes, as the next frame's offset is unknown."""
        if not self.inactive:
            self._stop_observing("gap")

    def blocked(self) -> None:
        """Mark the client as not reading, for all its requests."""
        for call in self._calls.values():
            call.blocked()

    def backpressure(self, seconds: float) -> None:
        """Record the seconds for which the client did not read, for all its requests."""
        for call in self._calls.values():
            call.backpressure(seconds)

    def expire(self, time: float) -> None:
        """End requests whose server has gone silent."""
        for stream, call in list(self._calls.items()):
            call.expire(time)
            if call.done:
                del self._calls[stream]

    # Frames

    def _feed(self, side: DirectionState, data: bytes, time: float) -> None:
        if side.rest:
            data, side.rest = side.rest + data, b""
        at, size = 0, len(data)
        if not side.opened:
            at = skip_preface(side, data)
            if not side.opened:
                return
        while True:
            if side.remaining or side.padding:
                at = self._feed_partial_frame(side, data, at, time)
            start = at + _HEAD_BYTES
            if start > size:
                break
            high, low, kind, flags, stream = _head(data, at)
            stop = start + (high << 16 | low)
            if kind == DATA and stop <= size and side.ready and not flags & PADDED:
                # Fast path: nearly all frames are complete, unpadded DATA.
                call = self._calls.get(stream & _STREAM_ID_MASK)
                if not side.direction and stop - start < LARGE_DATA:
                    self._charge(1, time, "frames")
                if call is not None:
                    if side.direction:
                        call.feed_response(data, start, stop, time)
                    else:
                        call.feed_request(data, start, stop, time)
                    if call.done:
                        del self._calls[stream & _STREAM_ID_MASK]
                    elif flags & END_STREAM:
                        self._end(side, stream & _STREAM_ID_MASK, {}, time)
                elif not stream & _STREAM_ID_MASK:
                    raise MalformedConnectionError("malformed")
                at = stop
                continue
            stream &= _STREAM_ID_MASK
            check_frame(side, kind, stop - start, stream)
            if stop <= size and (kind != DATA or side.direction == CLIENT):
                self._charge(1, time, "frames")
            if kind in BUFFERED:
                if stop > size:
                    break
                self._handle_frame(side, kind, flags, stream, data[start:stop], time)
                at = stop
            else:
                if flags & PADDED and kind == DATA:
                    if start == size:
                        break
                    side.padding, start = data[start], start + 1
                side.remaining = stop - start - side.padding
                if side.remaining < 0:
                    raise MalformedConnectionError("malformed")
                side.stream = stream if kind == DATA else 0
                side.ends = kind == DATA and bool(flags & END_STREAM)
                at = start
                if not side.remaining and not side.padding:
                    self._frame_ended(side, time)
        side.rest = data[at:]

    def _feed_partial_frame(self, side: DirectionState, data: bytes, at: int, time: float) -> int:
        """Feed more of a frame that is not buffered; return the offset after it."""
        stop = min(len(data), at + side.remaining)
        call = self._calls.get(side.stream)
        if call is not None:
            if side.direction == SERVER:
                call.feed_response(data, at, stop, time)
            else:
                call.feed_request(data, at, stop, time)
            if call.done:
                del self._calls[side.stream]
        side.remaining -= stop - at
        if side.remaining:
            return stop
        end = min(len(data), stop + side.padding)
        side.padding -= end - stop
        if not side.padding:
            self._frame_ended(side, time)
        return end

    def _frame_ended(self, side: DirectionState, time: float) -> None:
        if side.ends:
            self._end(side, side.stream, {}, time)

    def _handle_frame(
        self, side: DirectionState, kind: int, flags: int, stream: int, payload: bytes, time: float
    ) -> None:
        """Handle a buffered frame."""
        if kind == RST_STREAM:
            self._handle_reset(side, stream, int.from_bytes(payload, "big"), time)
        elif kind == GOAWAY:
            if side.direction == SERVER:
                self._handle_goaway(payload, time)
        elif kind == PUSH_PROMISE:
            raise MalformedConnectionError("push")
        else:
            if kind == HEADERS:
                payload = header_fragment(payload, flags)
                side.stream, side.ends = stream, bool(flags & END_STREAM)
            side.block += payload
            if len(side.block) > MAX_HEADER_BYTES:
                raise MalformedConnectionError("headers")
            side.ready = bool(flags & END_HEADERS)
            if side.ready:
                block = bytes(side.block)
                side.block.clear()
                headers = side.blocks.get(block)
                if headers is None:
                    headers, fields = decode_headers(side, block)
                    self._charge(fields + len(block) // _BYTES_PER_FIELD, time)
                self._handle_headers(side, stream, headers, time)

    def _charge(self, fields: int, time: float, reason: str = "headers") -> None:
        """Charge header fields to the budget; raise MalformedConnectionError if exceeded.

        ``reason`` is that of the error.
        """
        if time > self._refilled_at:
            refill = (time - self._refilled_at) * FIELDS_PER_SECOND
            self._field_budget = min(FIELD_BURST, self._field_budget + refill)
            self._refilled_at = time
        self._field_budget -= fields
        if self._field_budget < 0:
            raise MalformedConnectionError(reason)

    # Streams

    def _handle_headers(
        self, side: DirectionState, stream: int, headers: Headers, time: float
    ) -> None:
        if side.direction == CLIENT and stream > self._last_stream:
            self._last_stream = stream
            self._begin(stream, headers)
        if side.ends:
            self._end(side, stream, headers, time)
        elif side.direction == SERVER and (call := self._calls.get(stream)):
            status = headers.get(b":status", b"200")
            if status == b"200":
                call.set_response_encoding(headers.get(b"grpc-encoding", b""))
            elif not status.startswith(b"1"):
                call.completed(*grpc.http_outcome(status, headers), time)
                del self._calls[stream]

    def _begin(self, stream: int, headers: Headers) -> None:
        """Observe a stream if it is an inference call."""
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

    def _end(self, side: DirectionState, stream: int, headers: Headers, time: float) -> None:
        """Handle END_STREAM of a side, with its trailers or headers."""
        call = self._calls.get(stream)
        if call is None:
            return
        if side.direction == CLIENT:
            call.client_done(time)
            return
        status, http = headers.get(b"grpc-status"), headers.get(b":status", b"200")
        if status is not None:
            call.completed(*grpc.outcome(status, headers), time)
        elif http != b"200":
            call.completed(*grpc.http_outcome(http, headers), time)
        else:
            call.server_ended("closed", time)
        del self._calls[stream]

    def _handle_reset(self, side: DirectionState, stream: int, code: int, time: float) -> None:
        call = self._calls.get(stream)
        if call is None:
            return
        if side.direction == CLIENT:
            call.client_reset(time)
        else:
            refused = code == _REFUSED_STREAM
            call.server_ended("refused_stream" if refused else "reset", time)
        if call.done:
            del self._calls[stream]

    def _handle_goaway(self, payload: bytes, time: float) -> None:
        """Handle GOAWAY: the server refuses the calls that it has not started."""
        if len(payload) < _GOAWAY_BYTES:
            raise MalformedConnectionError("malformed")
        last, code = (int.from_bytes(payload[at : at + 4], "big") for at in (0, 4))
        for stream, call in list(self._calls.items()):
            if stream > last & _STREAM_ID_MASK:
                call.server_ended("goaway", time)
            elif code != _NO_ERROR:
                call.server_ended("reset", time)
            if call.done:
                del self._calls[stream]

    def _server_ended(self, how: str, time: float) -> None:
        for call in self._calls.values():
            call.server_ended(how, time)
        self._calls.clear()

    def _stop_observing(self, reason: str) -> None:
        self.inactive = True
        self._listener.skipped(reason)
        for call in self._calls.values():
            call.forget()
        self._calls.clear()
        self._sides = (DirectionState(CLIENT), DirectionState(SERVER))
