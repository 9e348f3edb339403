"""One HTTP/1 connection, watched from outside: which requests for tokens, and what came of them.

Counted are ``POST /v2/models/M[/versions/V]/{generate,generate_stream,infer}`` (Triton) and
``POST [PREFIX]/v1/[chat/]completions`` (OpenAI's API).  All else is followed, for the sake of what
comes after it on the connection, and not told.

A request is told when it has arrived whole or when its answer begins; it ends with the last byte
of its answer's message, so that what trtllm-serve sends after ``[DONE]`` belongs to it.  Where the
body ends with the connection, and the API says by ``[DONE]`` when it is whole, a stream without is
cut off.  A client that leaves after ``[DONE]`` has all it wanted.

A client's FIN may be its farewell or the end of its half: only what follows tells, so nothing ends
by it alone, however long it takes.

After a gap everything is ignored until a segment of the client begins with a request: capture can
so join connections that are in use.
"""

from __future__ import annotations

import re
from collections import deque
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

PIPELINED: Final = 64
"""So many requests may wait for their answers."""
HELD_BYTES: Final = 512 * 1024
"""No observer holds more of what passed by: two heads, parts of an event, names of requests."""

REQUEST_LINE: Final = re.compile(
    rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH) [!-~\x80-\xff]+ HTTP/1\.[01]\r\n"
)
"""What a segment begins with from which a connection can be joined."""


class _Switched(Exception):  # noqa: N818 - no error
    """From here on the connection speaks something else; the word says what made it."""


class Http1Observer:
    """Watches one HTTP/1 connection; see :class:`exporter.protocol.events.Observer`.

    ``refusal`` is a word of :class:`exporter.protocol.http1_framing.MalformedMessage`, or
    ``pipelined`` (more than PIPELINED requests wait), or ``closed`` (a request after one that was
    to be the last).
    """

    def __init__(self, listener: Listener, settings: ObserverSettings) -> None:
        self.inactive = False
        self.refusal = ""
        self._listener = listener
        self._settings = settings
        self._deaf = False  # inactive, adrift, or there is nothing more to come
        self._adrift = False  # waiting for a request, after a gap
        self._had_gap = False
        self._begin()

    def _begin(self) -> None:
        """Expect a request, on a connection without history."""
        self._requests = MessageParser(self._request_head, _ignore, self._request_end)
        self._answers = MessageParser(self._answer_head, _ignore, self._answer_end)
        self._waiting: deque[HttpExchange] = deque()
        self._arriving: HttpExchange | None = None
        self._last = False  # there is to be no further request
        self._client_closed = False
        self._server_seen: float | None = None  # since the client closed its half, if it has

    @property
    def live(self) -> int:
        """How many requests are under way, for tokens or not."""
        return len(self._waiting)

    @property
    def held(self) -> int:
        """How many bytes of what passed by are held now."""
        exchanges = sum(exchange.held for exchange in self._waiting)
        return self._requests.held + self._answers.held + exchanges

    def feed(self, direction: Direction, data: bytes, time: float) -> None:
        """Take in the next bytes of a direction."""
        if self._deaf and not self._resumes(direction, data):
            return
        try:
            if direction == SERVER:
                self._server_seen = time
                self._answers.feed(data, time)
            elif not self._client_closed:
                self._requests.feed(data, time)
        except MalformedMessage as error:
            self._give_up(direction, error.word)
        except _Switched as switched:
            self._give_up(SERVER, str(switched))

    def half_closed(self, direction: Direction, time: float) -> None:
        """Take in that a side sent its FIN."""
        if self._deaf:
            return
        if direction == CLIENT:
            self._client_closed, self._server_seen = True, None
            for exchange in self._waiting:
                exchange.leave(time)
            return
        self._answers.closed(time)
        self._end(lambda exchange, _: exchange.broken_off(time, "truncated"))

    def aborted(self, time: float) -> None:
        """Take in that the client is gone for good."""
        seen = self._server_seen if self._client_closed else None
        self._end(lambda exchange, first: exchange.left(time, seen if first else None))

    def server_lost(self, time: float) -> None:
        """Take in that the server reset the connection, or could not be reached."""
        self._end(lambda exchange, _: exchange.broken_off(time, "reset"))

    def gap(self, direction: Direction, time: float) -> None:
        """Take in that bytes were not seen: all requests under way are lost."""
        if not self._deaf:
            self._had_gap = True
            self._give_up(direction, "")

    def blocked(self) -> None:
        """Note that the client does not read what is there for it."""
        if self._waiting:
            self._waiting[0].blocked()

    def backpressure(self, seconds: float) -> None:
        """Take in for how long the client did not read what was there for it."""
        if self._waiting:
            self._waiting[0].backpressure(seconds)

    def expire(self, time: float) -> None:
        """End nothing: whether a client has left is not known until the connection ends."""

    def _request_head(self, head: bytes, began: float, time: float) -> Framing:
        found = request(head)
        framing = body_of_request(found)
        if self._last:
            raise MalformedMessage("closed")
        if len(self._waiting) >= PIPELINED:
            raise MalformedMessage("pipelined")
        self._last = has_token(found.fields, b"connection", b"close") or (
            found.version == b"1.0" and not has_token(found.fields, b"connection", b"keep-alive")
        )
        exchange = HttpExchange(found, self._listener, self._settings)
        self._waiting.append(exchange)
        self._arriving = exchange
        self._requests.take_body = exchange.asks if exchange.stream else _ignore
        return framing

    def _request_end(self, time: float) -> None:
        if self._arriving:
            self._arriving.arrived(time)
        self._arriving = None

    def _answer_head(self, head: bytes, began: float, time: float) -> Framing:
        found = response(head)
        if not self._waiting:
            raise MalformedMessage("unasked")
        exchange = self._waiting[0]
        framing = body_of_response(found, exchange.method)
        if framing is None:
            raise _Switched("upgrade" if found.status == 101 else "connect")
        if framing.interim:
            return framing
        self._answers.take_body = _ignore
        if exchange.stream:
            self._answers.take_body = exchange.answers(found, framing.body, began, time) or _ignore
            if self._client_closed:
                exchange.leave(time)
        return framing

    def _answer_end(self, time: float) -> None:
        self._waiting.popleft().complete(time)

    def _end(self, each: Callable[[HttpExchange, bool], None]) -> None:
        """End what waits, as the connection has ended."""
        if self._deaf:
            return
        for number, exchange in enumerate(self._waiting):
            each(exchange, number == 0)
        self._forget()

    def _give_up(self, direction: Direction, word: str) -> None:
        """Lose track of the connection: for good, or until a request after a gap."""
        for exchange in self._waiting:
            exchange.lose(gap=self._had_gap)
        self._forget()
        if self._had_gap:
            self._adrift = True
            return
        self.inactive = True
        if direction == CLIENT:
            self.refusal = word
        self._listener.skipped(word)

    def _forget(self) -> None:
        self._begin()
        self._deaf = True

    def _resumes(self, direction: Direction, data: bytes) -> bool:
        """Whether a request begins here, after a gap."""
        if self._adrift and direction == CLIENT and REQUEST_LINE.match(data):
            self._deaf = self._adrift = False
            return True
        return False


def _ignore(piece: bytes, time: float) -> None:
    """Take in what nobody asked for."""
