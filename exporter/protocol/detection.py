"""Watches a connection of which nobody knows yet what it speaks: the client's first bytes tell."""

from __future__ import annotations

from typing import Final

from exporter.protocol.events import CLIENT, Direction, Listener, Observer, ObserverSettings
from exporter.protocol.http1 import REQUEST_LINE, Http1Observer
from exporter.protocol.http2 import PREFACE, Http2Observer
from exporter.protocol.null_observer import NullObserver

EARLY_BYTES: Final = 16 * 1024
"""So much of a server that speaks before its client is kept; servers of HTTP/2 may do that."""
_TLS = b"\x16\x03"


def observe(listener: Listener, settings: ObserverSettings) -> Observer:
    """Return an observer for a new connection, HTTP/1 or HTTP/2."""
    return _Connection(listener, settings)


class _Connection:
    """Hands everything on to the observer of the right protocol once that is known.

    TLS is passed over as ``tls``.  Where bytes were missed from the beginning only HTTP/1 can be
    joined, at a request; all else is passed over as ``midway``.
    """

    def __init__(self, listener: Listener, settings: ObserverSettings) -> None:
        self._listener = listener
        self._settings = settings
        self._early: list[tuple[Direction, bytes, float]] = []
        self._early_bytes = 0
        self._begun = b""  # by the client
        self._had_gap = self._missed = False
        self._decided = False
        self._observer: Observer = NullObserver()

    @property
    def inactive(self) -> bool:
        """Whether nothing more will be told."""
        return self._decided and self._observer.inactive

    @property
    def refusal(self) -> str:
        """Why what came must not be passed on."""
        return self._observer.refusal

    @property
    def live(self) -> int:
        """How many requests are under way."""
        return self._observer.live

    def feed(self, direction: Direction, data: bytes, time: float) -> None:
        """Take in the next bytes of a direction, as long as nobody knows what they are."""
        if self._decided or not data:
            self._observer.feed(direction, data, time)
        elif self._had_gap:
            self._join(direction, data, time)
        else:
            self._early.append((direction, data, time))
            self._early_bytes += len(data)
            if direction == CLIENT:
                self._begun += data[: len(PREFACE)]
            self._decide()

    def half_closed(self, direction: Direction, time: float) -> None:
        """Take in that a side sent its FIN."""
        self._observer.half_closed(direction, time)

    def aborted(self, time: float) -> None:
        """Take in that the client is gone for good."""
        self._observer.aborted(time)

    def server_lost(self, time: float) -> None:
        """Take in that the server is gone."""
        self._observer.server_lost(time)

    def gap(self, direction: Direction, time: float) -> None:
        """Take in that bytes were not seen."""
        self._observer.gap(direction, time)
        self._had_gap = True
        self._early.clear()

    def blocked(self) -> None:
        """Note that the client does not read."""
        self._observer.blocked()

    def backpressure(self, seconds: float) -> None:
        """Take in for how long the client did not read."""
        self._observer.backpressure(seconds)

    def expire(self, time: float) -> None:
        """End what waits for nothing."""
        self._observer.expire(time)

    def _decide(self) -> None:
        begun = self._begun
        if begun.startswith(PREFACE):
            self._become(Http2Observer(self._listener, self._settings))
        elif begun.startswith(_TLS):
            self._pass_over("tls")
        elif not (PREFACE.startswith(begun) or _TLS.startswith(begun)):
            self._become(Http1Observer(self._listener, self._settings))
        elif self._early_bytes > EARLY_BYTES:
            self._pass_over("unknown")

    def _join(self, direction: Direction, data: bytes, time: float) -> None:
        if direction == CLIENT and REQUEST_LINE.match(data):
            observer = Http1Observer(self._listener, self._settings)
            observer.gap(direction, time)
            self._early.append((direction, data, time))
            self._become(observer)
        elif not self._missed:
            self._missed = True
            self._listener.skipped("midway")

    def _become(self, observer: Observer) -> None:
        self._observer, self._decided = observer, True
        early, self._early = self._early, []
        for direction, data, time in early:
            observer.feed(direction, data, time)
        # From now on there is nothing between.
        self.feed = observer.feed  # type: ignore[method-assign]

    def _pass_over(self, word: str) -> None:
        self._decided = True
        self._early.clear()
        self._listener.skipped(word)
