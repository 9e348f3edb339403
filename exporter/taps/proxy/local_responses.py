"""What the proxy says itself: to who may not pass, and in the place of a server that is not there.

Bodies are JSON with the key ``error``, as Triton and the OpenAI-style servers write theirs.
"""

from __future__ import annotations

from hpack import Encoder, NeverIndexedHeaderTuple

from exporter.protocol.http2_frames import PREFACE


def _http1(status: str, text: str, header: str = "") -> bytes:
    body = f'{{"error":"{text}"}}'
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"{header}Connection: close\r\n\r\n{body}"
    ).encode()


_UNREACHABLE = "the server behind the proxy cannot be reached"
AMBIGUOUS = _http1("400 Bad Request", "the request can be read in two ways")
HEAD_TOO_SLOW = _http1("408 Request Timeout", "the head of the request took too long")
HEAD_TOO_LARGE = _http1("431 Request Header Fields Too Large", "the head of the request is large")
UNREACHABLE = _http1("502 Bad Gateway", _UNREACHABLE)
TOO_MANY_WAITING = _http1("400 Bad Request", "too many pipelined requests")
TOO_MANY = _http1("503 Service Unavailable", "too many connections", "Retry-After: 1\r\n")

TOO_LONG = "too_long"
"""The reason of refusal of a head above the limit, the observer's or the proxy's own."""
_REFUSALS = {TOO_LONG: HEAD_TOO_LARGE, "pipelined": TOO_MANY_WAITING}


def refusal(reason: str) -> bytes:
    """Return the answer to a request that the observer refuses."""
    return _REFUSALS.get(reason, AMBIGUOUS)


_FRAME_HEAD = 9
_HEADERS, _SETTINGS, _GOAWAY = 1, 4, 7
_ACK = _END_STREAM = 1
_END_HEADERS = 4


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


def _trailers() -> bytes:
    """Write the headers of gRPC's answer without messages, none of which a table remembers.

    A client may have a table of no size, and what the server before us wrote into it is unknown.
    """
    fields = (
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "14"),  # UNAVAILABLE
        ("grpc-message", _UNREACHABLE),
    )
    return Encoder().encode([NeverIndexedHeaderTuple(*field) for field in fields])


class UnavailableGrpcServer:
    """Answers gRPC requests with UNAVAILABLE: takes what a client sends, and says what to answer.

    Holds nothing of what it takes but the numbers of the streams that wait for an answer.
    """

    _TRAILERS = _trailers()

    def __init__(self) -> None:
        self._skip = len(PREFACE)
        self._head = b""
        self._streams: list[int] = []
        self._acks = 0
        self._greeted = False
        self.answered = False
        """Whether a request has been answered; what comes after is not."""

    @property
    def asked(self) -> bool:
        """Whether the client has sent the HEADERS of a request."""
        return bool(self._streams)

    def take(self, data: bytes) -> None:
        """Take in the next bytes that the client sent, its preface first."""
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
                self._meet(head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFF_FFFF)

    def _meet(self, kind: int, flags: int, stream: int) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._acks = 1
        elif kind == _HEADERS and stream > (self._streams[-1] if self._streams else 0):
            self._streams.append(stream)

    def answer(self) -> bytes:
        """Return what to send now; empty once a request has been answered."""
        if self.answered:
            return b""
        frames = [] if self._greeted else [_frame(_SETTINGS, 0, 0)]
        self._greeted = True
        frames += [_frame(_SETTINGS, _ACK, 0)] * self._acks
        self._acks = 0
        flags = _END_STREAM | _END_HEADERS
        frames += [_frame(_HEADERS, flags, stream, self._TRAILERS) for stream in self._streams]
        if self._streams:
            last = self._streams[-1].to_bytes(4, "big")
            frames.append(_frame(_GOAWAY, 0, 0, last + bytes(4)))  # NO_ERROR
            self.answered = True
        return b"".join(frames)
