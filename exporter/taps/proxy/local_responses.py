"""Responses of the proxy itself, to refused requests and for an unreachable server.

Bodies are JSON with the key ``error``, like those of Triton and OpenAI-style servers.
"""

from __future__ import annotations

from functools import cache

from exporter.protocol.detection import PREFACE


def _http1(status: str, text: str, header: str = "") -> bytes:
    body = f'{{"error":"{text}"}}'
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"{header}Connection: close\r\n\r\n{body}"
    ).encode()


_UNREACHABLE = "the server behind the proxy cannot be reached"
AMBIGUOUS = _http1("400 Bad Request", "the request is ambiguous")
HEAD_TOO_SLOW = _http1("408 Request Timeout", "the head of the request took too long")
HEAD_TOO_LARGE = _http1(
    "431 Request Header Fields Too Large", "the head of the request is too large"
)
UNREACHABLE = _http1("502 Bad Gateway", _UNREACHABLE)
TOO_MANY_PIPELINED = _http1("400 Bad Request", "too many pipelined requests")
TOO_MANY_CONNECTIONS = _http1(
    "503 Service Unavailable", "too many connections", "Retry-After: 1\r\n"
)

TOO_LONG = "too_long"
"""Refusal reason of a head above the limit of the observer or the proxy."""
_REFUSALS = {TOO_LONG: HEAD_TOO_LARGE, "pipelined": TOO_MANY_PIPELINED}


def refusal(reason: str) -> bytes:
    """Return the response to a request that the observer refuses."""
    return _REFUSALS.get(reason, AMBIGUOUS)


_FRAME_HEAD = 9
_HEADERS, _SETTINGS, _GOAWAY = 1, 4, 7
_ACK = _END_STREAM = 1
_END_HEADERS = 4


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


@cache
def _trailers() -> bytes:
    """Encode the headers of a gRPC response without messages, none of them indexed.

    The client's HPACK table may have size 0, and its content is unknown.
    """
    # It holds 0.7 MiB, so it is loaded by the first response.
    from hpack import Encoder, NeverIndexedHeaderTuple

    fields = (
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "14"),  # UNAVAILABLE
        ("grpc-message", _UNREACHABLE),
    )
    return Encoder().encode([NeverIndexedHeaderTuple(*field) for field in fields])


class UnavailableGrpcServer:
    """Sans-I/O HTTP/2 server that answers gRPC requests with UNAVAILABLE.

    Keeps only the numbers of the streams that wait for a response.  ``size`` counts the bytes
    received.
    """

    def __init__(self) -> None:
        self._skip = len(PREFACE)
        self._head = b""
        self._streams: list[int] = []
        self._settings_acks = 0
        self._settings_sent = False
        self.size = 0
        self.responded = False
        """Whether a request got its response; later ones get none."""

    @property
    def requested(self) -> bool:
        """Whether the client has sent the HEADERS of a request."""
        return bool(self._streams)

    def receive(self, data: bytes) -> None:
        """Handle the next bytes of the client, beginning with its preface."""
        self.size += len(data)
        position = 0
        while position < len(data):
            if self._skip:
                step = min(self._skip, len(data) - position)
                self._skip -= step
                position += step
                continue
            head = self._head + data[position : position + _FRAME_HEAD - len(self._head)]
            position += len(head) - len(self._head)
            self._head = head if len(head) < _FRAME_HEAD else b""
            if len(head) == _FRAME_HEAD:
                self._skip = int.from_bytes(head[:3], "big")
                self._handle_frame(head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFF_FFFF)

    def _handle_frame(self, kind: int, flags: int, stream: int) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._settings_acks = 1
        elif kind == _HEADERS and stream > (self._streams[-1] if self._streams else 0):
            self._streams.append(stream)

    def response(self) -> bytes:
        """Return the bytes to send now; empty after the first response."""
        if self.responded:
            return b""
        frames = [] if self._settings_sent else [_frame(_SETTINGS, 0, 0)]
        self._settings_sent = True
        frames += [_frame(_SETTINGS, _ACK, 0)] * self._settings_acks
        self._settings_acks = 0
        flags = _END_STREAM | _END_HEADERS
        frames += [_frame(_HEADERS, flags, stream, _trailers()) for stream in self._streams]
        if self._streams:
            last = self._streams[-1].to_bytes(4, "big")
            frames.append(_frame(_GOAWAY, 0, 0, last + bytes(4)))  # NO_ERROR
            self.responded = True
        return b"".join(frames)
