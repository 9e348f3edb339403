"""Observe one HTTP/1 connection: inference requests and their outcomes.

:mod:`exporter.protocol.endpoints` decides which requests are reported.  All others are parsed too,
to find where the next request of the connection begins.

A request starts when it is complete or when its response begins.  It ends with the last byte of the
response message, so that what trtllm-serve sends after ``[DONE]`` belongs to it.  If the API ends
streams with a terminal event, a stream without one is truncated.  A client that disconnects after
``[DONE]`` has the complete response.

A client's FIN may be a disconnect or the end of its half.  Only later bytes show which, so a FIN
alone ends no request.

After missing bytes, all bytes are ignored until a segment of the client begins with a request.
Capture joins connections in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from exporter.protocol.events import CLIENT, SERVER, Direction, Listener, ObserverSettings
from exporter.protocol.http1_framing import (
    Framing,
    MalformedMessage,
    MessageParser,
    body_of_request,
    body_of_response,
    has_token,
    request,
    response,
)
from exporter.protocol.http_exchange import HttpExchange
from exporter.protocol.repeated_event import RepeatedEvent

PIPELINED: Final = 64
"""The limit of pipelined requests without a response."""
HELD_BYTES: Final = 512 * 1024
"""The memory bound of an observer: two heads, parts of an event, names of requests."""

REQUEST_LINE: Final = re.compile(
    rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH) [!-~\x80-\xff]+ HTTP/1\.[01]\r\n"
)
"""The start of a segment from which an observer can join a connection."""


class _ProtocolSwitch(Exception):  # noqa: N818 - no error
    """The connection switches to another protocol; ``args`` is the reason."""


class Http1Observer:
    """Observe one HTTP/1 connection; see :class:`exporter.protocol.events.Observer`.

    ``refusal`` is a reason of :class:`exporter.protocol.http1_framing.MalformedMessage`, or
    ``pipelined`` (more than PIPELINED pending requests), or ``closed`` (a request after
    ``Connection: close``).
    """

    __slots__ = (
        "_arriving",
        "_client_closed",
        "_had_gap",
        "_ignoring",
        "_last",
        "_listener",
        "_pending",
        "_repeated",
        "_requests",
        "_responses",
        "_resynchronizing",
        "_server_active_at",
        "_settings",
        "inactive",
        "refusal",
    )

    def __init__(self, listener: Listener, settings: ObserverSettings) -> None:
        self.inactive = False
        self.refusal = ""
        self._listener = listener
        self._settings = settings
        self._ignoring = False  # inactive, resynchronizing or ended
        self._resynchronizing = False  # waits for a request, after missing bytes
        self._had_gap = False
        self._begin()

    def _begin(self) -> None:
        """Reset the state to that of a new connection."""
        self._reset()
        self._requests = MessageParser(self._request_head, _ignore, self._request_end)
        self._responses = MessageParser(self._response_head, _ignore, self._response_end)

    def _reset(self) -> None:
        """Reset the state to that of an ignored connection, which has no reference cycles."""
        self._requests = self._responses = _NO_MESSAGES
        self._pending: list[HttpExchange] = []
        self._arriving: HttpExchange | None = None
        self._repeated: RepeatedEvent | None = None  # if the next bytes may be a chunk with it
        self._last = False  # Connection: close
        self._client_closed = False
        self._server_active_at: float | None = None  # since the client closed its half, if it has

    @property
    def live(self) -> int:
        """The number of active requests, inference or not."""
        return len(self._pending)

    @property
    def held(self) -> int:
        """The number of bytes in buffers."""
        exchanges = sum(exchange.held for exchange in self._pending)
        return self._requests.held + self._responses.held + exchanges

    def feed(self, direction: Direction, data: bytes, time: float) -> None:
        """Feed the next bytes of a direction."""
        if self._ignoring and not self._resynchronizes(direction, data):
            return
        try:
            if direction == SERVER:
                self._server_active_at = time
                if self._repeated and self._repeated.feed(data, time):
                    return
                self._responses.feed(data, time)
                self._repeated = self._pending[0].repeated if self._responses.before_chunk else None
            elif not self._client_closed:
                self._requests.feed(data, time)
        except MalformedMessage as error:
            self._give_up(direction, error.reason)
        except _ProtocolSwitch as switch:
            self._give_up(SERVER, str(switch))

    def half_closed(self, direction: Direction, time: float) -> None:
        """Handle the FIN of a side."""
        if self._ignoring:
            return
        if direction == CLIENT:
            self._client_closed, self._server_active_at = True, None
            for exchange in self._pending:
                exchange.client_closing(time)
            return
        self._responses.closed(time)
        self._end(lambda exchange, _: exchange.server_closed(time, reset=False))

    def aborted(self, time: float) -> None:
        """Handle the client's disconnect."""
        seen = self._server_active_at if self._client_closed else None
        self._end(
            lambda exchange, first: exchange.client_disconnected(time, seen if first else None)
        )

    def server_lost(self, time: float) -> None:
        """Handle a server's reset, or a server that could not be reached."""
        self._end(lambda exchange, _: exchange.server_closed(time, reset=True))

    def gap(self, direction: Direction, time: float) -> None:
        """Handle missing bytes: all active requests are lost."""
        if not self._ignoring:
            self._had_gap = True
            self._give_up(direction, "")

    def blocked(self) -> None:
        """Mark the client as not reading."""
        if self._pending:
            self._pending[0].blocked()

    def backpressure(self, seconds: float) -> None:
        """Record the seconds for which the client did not read."""
        if self._pending:
            self._pending[0].backpressure(seconds)

    def expire(self, time: float) -> None:
        """Do nothing: only the end of the connection shows a client disconnect."""

    def _request_head(self, head: bytes, began: float, time: float) -> Framing:
        found = request(head)
        framing = body_of_request(found)
        if self._last:
            raise MalformedMessage("closed")
        if len(self._pending) >= PIPELINED:
            raise MalformedMessage("pipelined")
        self._last = has_token(found.fields, b"connection", b"close") or (
            found.version == b"1.0" and not has_token(found.fields, b"connection", b"keep-alive")
        )
        exchange = HttpExchange(found, self._listener, self._settings)
        self._pending.append(exchange)
        self._arriving = exchange
        self._requests.on_body = exchange.feed_request if exchange.stream else _ignore
        return framing

    def _request_end(self, time: float) -> None:
        self._requests.on_body = _ignore
        if self._arriving:
            self._arriving.request_complete(time)
        self._arriving = None

    def _response_head(self, head: bytes, began: float, time: float) -> Framing:
        found = response(head)
        if not self._pending:
            raise MalformedMessage("unsolicited")
        exchange = self._pending[0]
        framing = body_of_response(found, exchange.method)
        if framing is None:
            raise _ProtocolSwitch("upgrade" if found.status == 101 else "connect")
        if framing.interim:
            return framing
        self._responses.on_body = _ignore
        if exchange.stream:
            self._responses.on_body = (
                exchange.response_head(found, framing.body, began, time) or _ignore
            )
            if self._client_closed:
                exchange.client_closing(time)
        return framing

    def _response_end(self, time: float) -> None:
        self._responses.on_body = _ignore
        self._pending.pop(0).response_complete(time)

    def _end(self, each: Callable[[HttpExchange, bool], None]) -> None:
        """End all pending requests, because the connection has ended."""
        if self._ignoring:
            return
        for number, exchange in enumerate(self._pending):
            each(exchange, number == 0)
        self._reset_and_ignore()

    def _give_up(self, direction: Direction, reason: str) -> None:
        """Ignore the connection: until the next request after missing bytes, else for good."""
        for exchange in self._pending:
            exchange.mark_lost(gap=self._had_gap)
        self._reset_and_ignore()
        if self._had_gap:
            self._resynchronizing = True
            return
        self.inactive = True
        if direction == CLIENT:
            self.refusal = reason
        self._listener.skipped(reason)

    def _reset_and_ignore(self) -> None:
        self._reset()
        self._ignoring = True

    def _resynchronizes(self, direction: Direction, data: bytes) -> bool:
        """Whether a request begins here, after missing bytes."""
        if self._resynchronizing and direction == CLIENT and REQUEST_LINE.match(data):
            self._begin()
            self._ignoring = self._resynchronizing = False
            return True
        return False


def _ignore(part: bytes, time: float) -> None:
    """Ignore a part of a body."""


def _no_head(head: bytes, began: float, time: float) -> Framing:
    raise MalformedMessage("unsolicited")


_NO_MESSAGES: Final = MessageParser(_no_head, _ignore, lambda _: None)
"""The parser of a direction that is ignored; it is never fed."""
