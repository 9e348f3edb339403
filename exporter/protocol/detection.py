"""Detect the protocol of a connection by the client's first bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from exporter.protocol.events import CLIENT, Direction, Listener, Observer, ObserverSettings
from exporter.protocol.http1 import REQUEST_LINE, Http1Observer
from exporter.protocol.null_observer import NullObserver

EARLY_BYTES: Final = 16 * 1024
"""Bytes buffered before the protocol is detected; an HTTP/2 server may send before its client."""
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The connection preface of HTTP/2 clients (RFC 9113, 3.4)."""
_TLS = b"\x16\x03"


def observe(listener: Listener, settings: ObserverSettings) -> Observer:
    """Return an observer for a new connection, HTTP/1 or HTTP/2."""
    return DetectingObserver(listener, settings)


class DetectingObserver:
    """Buffer bytes until the protocol is detected, then delegate to its observer.

    TLS is skipped with the reason ``tls``.  A connection whose first bytes were missed can only be
    joined at an HTTP/1 request; all others are skipped with the reason ``midway``.

    ``feed`` is replaced by that of the protocol's observer.
    """

    __slots__ = (
        "_client_bytes",
        "_decided",
        "_early",
        "_early_bytes",
        "_had_gap",
        "_listener",
        "_missed",
        "_observer",
        "_settings",
        "feed",
    )

    feed: Callable[[Direction, bytes, float], None]

    def __init__(self, listener: Listener, settings: ObserverSettings) -> None:
        self._listener = listener
        self._settings = settings
        self._early: list[tuple[Direction, bytes, float]] = []
        self._early_bytes = 0
        self._client_bytes = b""  # the first ones, to detect the protocol
        self._had_gap = self._missed = False
        self._decided = False
        self._observer: Observer = NullObserver()
        self.feed = self._detect

    @property
    def inactive(self) -> bool:
        """Whether the observer ignores all further bytes."""
        return self._decided and self._observer.inactive

    @property
    def refusal(self) -> str:
        """The reason why the last bytes must not be forwarded."""
        return self._observer.refusal

    @property
    def live(self) -> int:
        """The number of active requests."""
        return self._observer.live

    def _detect(self, direction: Direction, data: bytes, time: float) -> None:
        if not data:
            return
        if self._had_gap:
            self._join(direction, data, time)
        else:
            self._early.append((direction, data, time))
            self._early_bytes += len(data)
            if direction == CLIENT:
                self._client_bytes += data[: len(PREFACE)]
            self._decide()

    def half_closed(self, direction: Direction, time: float) -> None:
        """Handle the FIN of a side."""
        self._observer.half_closed(direction, time)

    def aborted(self, time: float) -> None:
        """Handle the client's disconnect."""
        self._observer.aborted(time)

    def server_lost(self, time: float) -> None:
        """Handle the loss of the server."""
        self._observer.server_lost(time)

    def gap(self, direction: Direction, time: float) -> None:
        """Handle missing bytes of a direction."""
        self._observer.gap(direction, time)
        self._had_gap = True
        self._early.clear()

    def blocked(self) -> None:
        """Mark the client as not reading."""
        self._observer.blocked()

    def backpressure(self, seconds: float) -> None:
        """Record the seconds for which the client did not read."""
        self._observer.backpressure(seconds)

    def expire(self, time: float) -> None:
        """End requests that time out."""
        self._observer.expire(time)

    def _decide(self) -> None:
        received = self._client_bytes
        if received.startswith(PREFACE):
            # The modules of HTTP/2 hold 1 MiB, so they are loaded by its first connection.
            from exporter.protocol.http2 import Http2Observer

            self._delegate(Http2Observer(self._listener, self._settings))
        elif received.startswith(_TLS):
            self._skip("tls")
        elif not (PREFACE.startswith(received) or _TLS.startswith(received)):
            self._delegate(Http1Observer(self._listener, self._settings))
        elif self._early_bytes > EARLY_BYTES:
            self._skip("unknown")

    def _join(self, direction: Direction, data: bytes, time: float) -> None:
        if direction == CLIENT and REQUEST_LINE.match(data):
            observer = Http1Observer(self._listener, self._settings)
            observer.gap(direction, time)
            self._early.append((direction, data, time))
            self._delegate(observer)
        elif not self._missed:
            self._missed = True
            self._listener.skipped("midway")

    def _delegate(self, observer: Observer) -> None:
        self._observer, self._decided = observer, True
        self.feed = observer.feed
        early, self._early, self._client_bytes = self._early, [], b""
        for direction, data, time in early:
            observer.feed(direction, data, time)

    def _skip(self, reason: str) -> None:
        self._decided = True
        self.feed = self._observer.feed
        self._early.clear()
        self._listener.skipped(reason)
