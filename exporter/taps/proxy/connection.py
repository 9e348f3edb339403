"""One client's connection and the server's behind it: bytes pass unchanged, an observer watches.

Only with an injection some are changed; the observer sees them as each end has sent them.

A connection to the server is opened once the first head is whole, so that neither idle nor slow
clients cost the server anything.  From then on each end sees what it would without the proxy: a FIN
is passed on as a FIN, a reset as a reset, and a slow reader slows the writer.  That holds for a
server that ends a connection instead of answering: clients retry what they would retry without the
proxy.  The proxy answers itself only if it cannot connect.

TLS knows no half-closed connections (asyncio's does not): who ends a TLS connection has left, and
a FIN from a plain client reaches a TLS server only once the answer is over or met a reset.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import ParamSpec, cast

from exporter.protocol.events import CLIENT, SERVER, Direction, Observer
from exporter.protocol.injection import Injection
from exporter.protocol.null_observer import NullObserver
from exporter.sockets import tune
from exporter.taps.proxy import local_responses as answers
from exporter.taps.proxy.context import ProxyContext
from exporter.taps.proxy.request_heads import FirstHead
from exporter.taps.proxy.tls import HTTP2
from exporter.taps.proxy.transports import bound, close, descriptor, reset

P = ParamSpec("P")

FAREWELL_SECONDS = 2.0
"""How long a client is listened to that was told to go: closing at once would reset the
connection, and the answer might never be read."""
FAREWELLS = 64
"""How many clients above the limit of connections are told so; more are just reset."""

_NONE_YET = NullObserver()


class ClientConnection(asyncio.Protocol):
    """The client's side, and what becomes of the connection."""

    __slots__ = (
        "_client",
        "_connecting",
        "_deadline",
        "_descriptor",
        "_fin_from_client",
        "_fin_from_server",
        "_head",
        "_http2",
        "_idle_since",
        "_injection",
        "_observer",
        "_over",
        "_patience",
        "_paused_at",
        "_plain",
        "_server",
        "_shared",
        "_stand_in",
        "_take",
        "_unsent",
        "lag",
        "last",
        "unanswered",
    )

    def __init__(self, shared: ProxyContext) -> None:
        self._shared = shared
        self.lag = shared.lag
        self.last = 0.0
        self._observer: Observer = _NONE_YET
        self._client: asyncio.Transport
        self._server: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._patience: asyncio.Timeout | None = None
        self._take: Callable[[bytes, float], None] = self._take_head
        self._unsent = bytearray()
        self._head = FirstHead()
        self._http2 = False
        self._stand_in: answers.UnavailableGrpcServer | None = None
        self._injection: Injection | None = None
        self._fin_from_client = self._fin_from_server = False
        self._over = False  # nothing is passed on or told any more
        self._paused_at = 0.0
        self._deadline = self._idle_since = 0.0
        self.unanswered = True
        """Whether the server has sent nothing since there was last no request; for HTTP/2, ever."""

    # What the client does.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._client = cast(asyncio.Transport, transport)
        self._plain = bound(self._client)
        shared = self._shared
        shared.connections.add(self)
        self._descriptor = descriptor(self._client)
        shared.resets.watch(self._descriptor, self._client_broke)
        self._deadline = monotonic() + shared.limits.head_seconds
        above = len(shared.connections) - shared.limits.connections
        if above > 0:
            self._refuse("connections", answers.TOO_MANY if above <= FAREWELLS else b"")

    def data_received(self, data: bytes) -> None:
        """Take in a piece of a request."""
        now, lag = monotonic(), self.lag
        if now > lag.fresh_until:
            now = max(self.last, lag.came(now, self._client))
        self.last = now
        self._take(data, now)

    def _take_head(self, data: bytes, now: float) -> None:
        if self._observer is _NONE_YET and not self._unsent:
            self._observer = self._shared.new_observer()
            self._shared.opened += 1
            self._shared.watched += 1
        self._unsent += data
        self._tell(self._observer.feed, CLIENT, data, now)
        protocol = self._head.protocol(self._unsent)
        if refusal := self._observer.refusal:
            self._refuse(refusal, answers.refusal(refusal))
        elif self._head.size > self._shared.limits.head_bytes:
            self._refuse(answers.TOO_LONG, answers.HEAD_TOO_LARGE)
        elif protocol == HTTP2:
            self._http2 = True
            self._stand_in = answers.UnavailableGrpcServer()
            self._stand_in.take(bytes(self._unsent))
            self._connect(protocol)
        elif protocol:
            self._deadline = 0.0
            self._connect(protocol)

    def _take_waiting(self, data: bytes, now: float) -> None:
        """Keep what a paused connection still delivers: with TLS, what was already decrypted."""
        self._tell(self._observer.feed, CLIENT, data, now)
        self._unsent += data
        if self._stand_in:
            self._stand_in.take(data)

    def _take_request(self, data: bytes, now: float) -> None:
        """Pass on a request after observing it: it must not be read in two ways."""
        if self._stand_in:
            self._stand_in.take(data)
            self._check_asked()
        elif self._http2:
            pass
        elif not self.unanswered and not self._observer.inactive and not self._live():
            self.unanswered = True
        self._tell(self._observer.feed, CLIENT, data, now)
        if refusal := self._observer.refusal:
            self._refuse(refusal, answers.refusal(refusal) if self.unanswered else b"")
        elif self._server:
            self._server.write(data)

    def _check_asked(self) -> None:
        """End the head deadline of an HTTP/2 connection with its first request."""
        if self._stand_in and self._stand_in.asked:
            self._stand_in = None
            self._deadline = 0.0

    def _take_unavailable(self, data: bytes, now: float) -> None:
        """Stand in for a gRPC server that cannot be reached."""
        if self._stand_in:
            self._tell(self._observer.feed, CLIENT, data, now)
            self._stand_in.take(data)
            self._answer_unreachable(now)

    def _ignore(self, data: bytes, now: float) -> None:
        pass

    def eof_received(self) -> bool:
        """Take in a FIN."""
        self._fin_from_client = True
        if self._over or not (self._server or self._connecting):
            return False
        self._tell(self._observer.half_closed, CLIENT, monotonic())
        if self._server:
            self._pass_fin_to(self._server)
        return self._plain

    def _pass_fin_to(self, server: UpstreamConnection) -> None:
        if self._injection and (held := self._injection.client_ended()):
            server.transport.write(held)
        if self._fin_from_server:
            self._finish()
        elif server.plain:
            server.transport.write_eof()
        elif not self._live():
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        """Take in the end; an exception is a reset."""
        now = monotonic()
        shared = self._shared
        shared.resets.forget(self._descriptor, self._client_broke)
        shared.connections.discard(self)
        shared.watched -= self._observer is not _NONE_YET
        self._settle_backpressure(now)
        if self._connecting:
            self._connecting.cancel()
        if not self._over and (exc or self._live()):
            self._tell(self._observer.aborted, now)
        self._over = True
        if self._server and exc:
            reset(self._server.transport)
        elif self._server:
            close(self._server.transport)

    def _client_broke(self) -> None:
        """Act on a reset that the loop does not see."""
        if self._fin_from_client or not self._client.is_reading():
            if not self._over:
                self._tell(self._observer.aborted, monotonic())
            self._cut()

    def pause_writing(self) -> None:
        """Take in that the client does not read what is there for it."""
        self._paused_at = monotonic()
        self._tell(self._observer.blocked)
        if self._server:
            self._server.transport.pause_reading()

    def resume_writing(self) -> None:
        """Take in that it has read all but what the kernel holds."""
        self._settle_backpressure(monotonic())
        if self._server and not self._fin_from_server:
            self._server.transport.resume_reading()

    def _settle_backpressure(self, now: float) -> None:
        if self._paused_at:
            self._tell(self._observer.backpressure, now - self._paused_at)
            self._paused_at = 0.0

    # What the server does.

    def _connect(self, protocol: str) -> None:
        self._client.pause_reading()
        self._take = self._take_waiting
        self._connecting = self._shared.loop.create_task(self._reach(protocol))

    async def _reach(self, protocol: str) -> None:
        shared, spec = self._shared, self._shared.spec
        what = f"forwarding to {spec.upstream_host}:{spec.upstream_port}"
        context = shared.server_tls.get(protocol)
        seconds = shared.limits.connect_seconds
        try:
            async with asyncio.timeout(seconds) as self._patience:
                await shared.loop.create_connection(
                    lambda: UpstreamConnection(self),
                    spec.upstream_host,
                    spec.upstream_port,
                    ssl=context,
                    server_hostname=shared.server_name if context else None,
                )
            shared.episodes.went_well(what, monotonic())
        except (OSError, TimeoutError) as error:
            now = monotonic()
            shared.episodes.went_wrong(what, _why(error) or f"no answer in {seconds:g} s", now)
            self._unreachable(now)
        finally:
            self._connecting = None

    def server_reached(self, server: UpstreamConnection) -> None:
        """Take in that the connection to the server is there."""
        if self._over:
            server.transport.abort()
            return
        self._connecting = None
        self._server = server
        if self._patience:
            # asyncio takes a few turns of the loop to return what is already connected.
            with suppress(RuntimeError):  # time was up just before
                self._patience.reschedule(None)
        server.answer = self._client.write
        server.feed = self._observer.feed
        self._take = self._take_request
        self._shared.resets.watch(server.descriptor, self._server_broke)
        self._check_asked()
        if self._shared.new_injection and not self._http2:
            self._injection = self._shared.new_injection()
            server.write = _changing(self._injection.from_client, server.write)
            server.answer = _changing(self._injection.from_server, server.answer)
        server.write(bytes(self._unsent))
        self._unsent.clear()
        if self._fin_from_client:
            self._pass_fin_to(server)
        elif not server.full:
            self._client.resume_reading()

    def server_full(self, full: bool) -> None:
        """Take in whether the server reads slower than the client writes."""
        if full:
            self._client.pause_reading()
        elif not self._fin_from_client:
            self._client.resume_reading()

    def server_ended(self, server: UpstreamConnection) -> None:
        """Take in that the server will send no more."""
        now = monotonic()
        if self._over or server is not self._server:
            return
        self._fin_from_server = True
        if self._injection and (held := self._injection.server_ended()):
            self._client.write(held)
        self._tell(self._observer.half_closed, SERVER, now)
        if self._fin_from_client:
            self._finish()
        else:
            self._end_answers()

    def server_lost(self, server: UpstreamConnection, exc: Exception | None) -> None:
        """Take in that the connection to the server is gone."""
        self._shared.resets.forget(server.descriptor, self._server_broke)
        if server is not self._server:
            return
        self._server = None
        if self._over:
            return
        if not exc:
            self._finish()
        else:
            self._tell(self._observer.server_lost, monotonic())
            self._cut()

    def _server_broke(self) -> None:
        server = self._server
        if server and (self._fin_from_server or not server.transport.is_reading()):
            self.server_lost(server, ConnectionResetError())
            reset(server.transport)

    # How it ends.

    def _unreachable(self, now: float) -> None:
        self._shared.refused["unreachable"] += 1
        self._drop_server()
        self._answer_unreachable(now)

    def _answer_unreachable(self, now: float) -> None:
        """Answer in the server's place; the observer sees it like an answer of the server."""
        stand_in = self._stand_in
        data = stand_in.answer() if stand_in else answers.UNREACHABLE
        self._tell(self._observer.feed, SERVER, data, now)
        if not stand_in or stand_in.answered:
            self._tell(self._observer.half_closed, SERVER, now)
            self._say_farewell(data)
        else:
            self._client.write(data)
            self._client.resume_reading()
            self._take = self._take_unavailable
            self._deadline = self._deadline or now + self._shared.limits.head_seconds

    def _refuse(self, reason: str, answer: bytes) -> None:
        """Let no more pass; ``answer`` is empty where one would not be understood."""
        self._shared.refused[reason] += 1
        self._drop_server()
        if self._live():
            self._tell(self._observer.server_lost, monotonic())
        if answer and not self._http2:
            self._say_farewell(answer)
        else:
            self._cut()

    def _say_farewell(self, answer: bytes) -> None:
        self._over = True
        self._take = self._ignore
        self._deadline = monotonic() + FAREWELL_SECONDS
        self._client.write(answer)
        self._client.resume_reading()
        self._end_answers()

    def _end_answers(self) -> None:
        if self._plain:
            self._client.write_eof()
        else:
            close(self._client)

    def _drop_server(self) -> None:
        server, self._server = self._server, None
        if server:
            reset(server.transport)

    def _finish(self) -> None:
        """Close both sides once what was written to them is sent."""
        self._over = True
        close(self._client)
        if self._server:
            close(self._server.transport)

    def _cut(self) -> None:
        """Reset both sides."""
        self._over = True
        reset(self._client)
        if self._server:
            reset(self._server.transport)

    def cut(self) -> None:
        """End it now, whatever is under way."""
        if self._live():
            self._tell(self._observer.server_lost, monotonic())
        self._cut()

    def leave(self) -> None:
        """End it if nothing is under way."""
        if self._quiet():
            self._finish()

    def tick(self, now: float) -> None:
        """Do what is due at ``now``; to be called about every second."""
        self._tell(self._observer.expire, now)
        if self._deadline and now >= self._deadline:
            if self._over or not (self._unsent or self._http2):
                self._over = True
                self._client.abort()
            else:
                self._refuse("head_time", answers.HEAD_TOO_SLOW)
        elif idle_seconds := self._shared.limits.idle_seconds:
            if not self._quiet():
                self._idle_since = 0.0
            elif not self._idle_since:
                self._idle_since = now
            elif now - self._idle_since >= idle_seconds:
                self._finish()

    def _quiet(self) -> bool:
        """Whether no request is under way; where nobody can tell, one may be."""
        if self._over or self._connecting:
            return False
        if not self._server:
            return not self._unsent
        return not (
            self.unanswered
            or self._observer.inactive
            or self._live()
            or self._client.get_write_buffer_size()
            or self._server.transport.get_write_buffer_size()
        )

    # What the observer is told.

    def _tell(self, what: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            what(*args, **kwargs)
        except Exception as error:
            self.observer_failed(error)

    def _live(self) -> int:
        try:
            return self._observer.live
        except Exception as error:
            self.observer_failed(error)
            return 0

    def observer_failed(self, error: Exception) -> None:
        """Go on without the observer; bytes pass as before."""
        self._observer = self._shared.errors.isolate(self._observer, error, monotonic())
        if self._server:
            self._server.feed = self._observer.feed


class UpstreamConnection(asyncio.Protocol):
    """The server's side; its connection sets what answers are written and fed to."""

    __slots__ = (
        "_connection",
        "answer",
        "descriptor",
        "feed",
        "full",
        "lag",
        "plain",
        "transport",
        "write",
    )

    answer: Callable[[bytes], None]
    descriptor: int
    plain: bool
    feed: Callable[[Direction, bytes, float], None]
    transport: asyncio.Transport
    write: Callable[[bytes], None]

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.full = False
        self.lag = connection.lag

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)
        self.descriptor = descriptor(self.transport)
        self.write = self.transport.write
        self.plain = bound(self.transport)
        tune(self.transport.get_extra_info("socket"))
        self._connection.server_reached(self)

    def data_received(self, data: bytes) -> None:
        """Pass on a piece of an answer, which may be a token: nothing is faster than this."""
        # What is in a slot is found sooner if it is not called in the same breath.
        now, answer, feed, lag = monotonic(), self.answer, self.feed, self.lag
        answer(data)
        try:
            connection = self._connection
            if now <= lag.fresh_until:
                feed(SERVER, data, now)
            else:
                now = max(connection.last, lag.came(now, self.transport))
                lag.feed_late(feed, SERVER, data, now)
            connection.last = now
        except Exception as error:
            self._connection.observer_failed(error)
        self._connection.unanswered = False

    def eof_received(self) -> bool:
        """Take in a FIN."""
        self._connection.server_ended(self)
        return self.plain

    def connection_lost(self, exc: Exception | None) -> None:
        """Take in the end; an exception is a reset."""
        self._connection.server_lost(self, exc)

    def pause_writing(self) -> None:
        """Take in that the kernel takes no more."""
        self.full = True
        self._connection.server_full(full=True)

    def resume_writing(self) -> None:
        """Take in that the kernel has taken all."""
        self.full = False
        self._connection.server_full(full=False)


def _changing(
    change: Callable[[bytes], bytes], write: Callable[[bytes], None]
) -> Callable[[bytes], None]:
    def changed(data: bytes) -> None:
        if data := change(data):
            write(data)

    return changed


def _why(error: OSError) -> str:
    named = isinstance(error, ssl.SSLError | socket.gaierror)  # their numbers are not the system's
    return os.strerror(error.errno) if error.errno and not named else str(error)
