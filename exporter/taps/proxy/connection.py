"""Forward a client's connection to the server unchanged, and feed an observer.

Only an injection changes bytes; the observer gets them as each end sent them.

The proxy connects to the server once the first head is complete, so that idle and slow clients cost
the server nothing.  Each end then sees what it would see without the proxy: a FIN becomes a FIN, a
reset a reset, and a slow reader slows the writer.  If the server closes a connection without a
response, so does the proxy, and clients retry as they would without it.  The proxy sends responses
of its own only if it cannot connect or refuses a request.

TLS connections have no half-closed state in asyncio.  So the end of a TLS client's stream is a
client disconnect, and a FIN from a plain client reaches a TLS server only after the response has
ended or was reset.

The connection is one state machine over both ends, so it stays in one file.
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

from exporter.protocol.events import CLIENT, SERVER, Observer
from exporter.protocol.injection import Injection
from exporter.protocol.null_observer import NullObserver
from exporter.taps.proxy import local_responses
from exporter.taps.proxy.context import ProxyContext
from exporter.taps.proxy.request_heads import FirstHead
from exporter.taps.proxy.tls import HTTP2
from exporter.taps.proxy.transports import (
    LARGE_READ,
    close,
    descriptor,
    limit_write_buffer,
    read_in_turns,
    reset,
    unsent,
)
from exporter.taps.proxy.upstream_connection import UpstreamConnection

P = ParamSpec("P")

LINGER_SECONDS = 2.0
"""How long the proxy reads on after a response of its own: closing at once would reset the
connection, and the client might never read the response."""
MAX_REFUSED_CLIENTS = 64
"""Clients above the connection limit that get a response; any more are reset."""

_NO_OBSERVER = NullObserver()


class ClientConnection(asyncio.Protocol):
    """The client's side of a connection, which controls both sides."""

    __slots__ = (
        "_attached",
        "_client",
        "_connect_timeout",
        "_connecting",
        "_deadline",
        "_descriptor",
        "_ended",
        "_fin_from_client",
        "_fin_from_server",
        "_full",
        "_head",
        "_http2",
        "_idle_since",
        "_injection",
        "_paused_at",
        "_plain",
        "_receive",
        "_server",
        "_shared",
        "_unavailable_server",
        "_unsent",
        "awaiting_response",
        "lag",
        "last",
        "queue",
    )

    def __init__(self, shared: ProxyContext) -> None:
        self._shared = shared
        self.lag = shared.lag
        self.queue = shared.queue
        self.last = 0.0
        self._attached: Observer = _NO_OBSERVER  # without the reads in the queue
        self._client: asyncio.Transport
        self._server: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._connect_timeout: asyncio.Timeout | None = None
        self._receive: Callable[[bytes, float], None] = self._receive_head
        self._unsent = bytearray()
        self._head = FirstHead()
        self._http2 = False
        self._unavailable_server: local_responses.UnavailableGrpcServer | None = None
        self._injection: Injection | None = None
        self._fin_from_client = self._fin_from_server = False
        self._ended = False  # nothing is forwarded or observed any more
        self._full = False  # the client reads more slowly than the server writes
        self._paused_at = 0.0
        self._deadline = self._idle_since = 0.0
        self.awaiting_response = True
        """Whether the server has sent nothing since the last idle time; for HTTP/2, ever."""

    # Events of the client.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Track the client, or refuse it above the connection limit."""
        self._client = cast(asyncio.Transport, transport)
        self._plain = limit_write_buffer(self._client)
        shared = self._shared
        shared.connections.add(self)
        self._descriptor = descriptor(self._client)
        shared.resets.watch(self._descriptor, self._client_reset)
        self._deadline = monotonic() + shared.limits.head_seconds
        excess = len(shared.connections) - shared.limits.connections
        if excess > 0:
            answered = excess <= MAX_REFUSED_CLIENTS
            self._refuse("connections", local_responses.TOO_MANY_CONNECTIONS if answered else b"")

    def data_received(self, data: bytes) -> None:
        """Handle bytes of a request."""
        self.queue.flush()
        now, lag = monotonic(), self.lag
        if now > lag.fresh_until:
            now = max(self.last, lag.arrival_time(now, self._client))
        self.last = now
        if len(data) >= LARGE_READ:
            read_in_turns(self._client, self._shared.loop, self._may_read_client)
        self._receive(data, now)

    def _may_read_client(self) -> bool:
        return not (self._connecting or (self._server and self._server.full))

    def _receive_head(self, data: bytes, now: float) -> None:
        if self._observer is _NO_OBSERVER and not self._unsent:
            self._attached = self._shared.new_observer()
            self._shared.opened += 1
            self._shared.watched += 1
        self._unsent += data
        self._observe(self._observer.feed, CLIENT, data, now)
        protocol = self._head.protocol(self._unsent)
        if refusal := self._observer.refusal:
            self._refuse(refusal, local_responses.refusal(refusal))
        elif self._head.size > self._shared.limits.head_bytes:
            self._refuse(local_responses.TOO_LONG, local_responses.HEAD_TOO_LARGE)
        elif protocol == HTTP2:
            self._http2 = True
            self._unavailable_server = local_responses.UnavailableGrpcServer()
            self._unavailable_server.receive(bytes(self._unsent))
            self._connect(protocol)
        elif protocol:
            self._deadline = 0.0
            self._connect(protocol)

    def _buffer_request(self, data: bytes, now: float) -> None:
        """Buffer bytes of a paused connection: with TLS, those that were already decrypted."""
        self._observe(self._observer.feed, CLIENT, data, now)
        self._unsent += data
        if self._unavailable_server:
            self._unavailable_server.receive(data)

    def _forward_request(self, data: bytes, now: float) -> None:
        """Forward bytes of a request, unless the observer refuses it as ambiguous."""
        if self._unavailable_server:
            self._unavailable_server.receive(data)
            if self._refuse_long_start():
                return
            self._check_first_request()
        elif self._http2:
            pass
        elif (
            not self.awaiting_response
            and not self._observer.inactive
            and not self._requests_in_flight()
        ):
            self.awaiting_response = True
        self._observe(self._observer.feed, CLIENT, data, now)
        if refusal := self._observer.refusal:
            self._refuse(
                refusal, local_responses.refusal(refusal) if self.awaiting_response else b""
            )
        elif self._server:
            self._server.write(data)

    def _check_first_request(self) -> None:
        """End the head deadline of an HTTP/2 connection with its first request."""
        if self._unavailable_server and self._unavailable_server.requested:
            self._unavailable_server = None
            self._deadline = 0.0

    def _refuse_long_start(self) -> bool:
        """Refuse an HTTP/2 client that sends too much before its first request; return whether."""
        server = self._unavailable_server
        if not server or server.requested or server.size <= self._shared.limits.head_bytes:
            return False
        self._refuse(local_responses.TOO_LONG, b"")
        return True

    def _receive_unavailable(self, data: bytes, now: float) -> None:
        """Handle bytes for a gRPC server that is unreachable."""
        if self._unavailable_server:
            self._observe(self._observer.feed, CLIENT, data, now)
            self._unavailable_server.receive(data)
            if not self._refuse_long_start():
                self._respond_unreachable(now)

    def eof_received(self) -> bool:
        """Handle a FIN."""
        self._fin_from_client = True
        if self._ended or not (self._server or self._connecting):
            return False
        self._observe(self._observer.half_closed, CLIENT, monotonic())
        if self._server:
            self._forward_fin(self._server)
        return self._plain

    def _forward_fin(self, server: UpstreamConnection) -> None:
        if self._injection and (held := self._injection.client_ended()):
            server.transport.write(held)
        if self._fin_from_server:
            self._finish()
        elif server.plain:
            server.transport.write_eof()
        elif not self._requests_in_flight():
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection; an exception is a reset."""
        now = monotonic()
        shared = self._shared
        shared.resets.forget(self._descriptor, self._client_reset)
        shared.connections.discard(self)
        shared.watched -= self._attached is not _NO_OBSERVER
        self._receive = _discard  # breaks a reference cycle
        self._end_backpressure(now)
        if self._connecting:
            self._connecting.cancel()
        if not self._ended and (exc or self._requests_in_flight()):
            self._observe(self._observer.aborted, now)
        self._ended = True
        if self._server and exc:
            reset(self._server.transport)
        elif self._server:
            close(self._server.transport)

    def _client_reset(self) -> None:
        """Handle a reset that the event loop does not report."""
        if self._fin_from_client or not self._may_read_client():
            if not self._ended:
                self._observe(self._observer.aborted, monotonic())
            self._reset_both()

    def pause_writing(self) -> None:
        """Handle a client that does not read: stop reading from the server."""
        self._full = True
        self._end_backpressure(now := monotonic())
        self._begin_backpressure(now)
        if self._server:
            self._server.transport.pause_reading()

    def resume_writing(self) -> None:
        """Handle a client that reads again, perhaps only what the kernel has buffered."""
        self._full = False
        if not unsent(self._client):
            self._end_backpressure(monotonic())
        if self._server and not self._fin_from_server:
            self._server.transport.resume_reading()

    def _measure_backpressure(self, now: float) -> None:
        """Count the time since the last call if the client did not read.

        The kernel buffers up to 4 MB of a response: a stream of tokens never fills that.
        """
        waiting = unsent(self._client)
        self._end_backpressure(now)
        if waiting:
            self._begin_backpressure(now)

    def _begin_backpressure(self, now: float) -> None:
        self._paused_at = now
        self._observe(self._observer.blocked)

    def _end_backpressure(self, now: float) -> None:
        if self._paused_at:
            self._observe(self._observer.backpressure, now - self._paused_at)
            self._paused_at = 0.0

    # Events of the server.

    def _connect(self, protocol: str) -> None:
        self._client.pause_reading()
        self._receive = self._buffer_request
        self._connecting = self._shared.loop.create_task(self._open_upstream(protocol))

    async def _open_upstream(self, protocol: str) -> None:
        shared, spec = self._shared, self._shared.spec
        what = f"forwarding to {spec.upstream_host}:{spec.upstream_port}"
        context = shared.server_tls.get(protocol)
        seconds = shared.limits.connect_seconds
        try:
            async with asyncio.timeout(seconds) as self._connect_timeout:
                await shared.loop.create_connection(
                    lambda: UpstreamConnection(self),
                    spec.upstream_host,
                    spec.upstream_port,
                    ssl=context,
                    server_hostname=shared.server_name if context else None,
                )
            shared.problem_log.recovered(what, monotonic())
        except (OSError, TimeoutError) as error:
            now = monotonic()
            shared.problem_log.failed(what, _why(error) or f"no response in {seconds:g} s", now)
            self._fail_unreachable(now)
        finally:
            self._connecting = self._connect_timeout = None

    def server_connected(self, server: UpstreamConnection) -> None:
        """Start to forward on the new connection to the server."""
        if self._ended:
            server.transport.abort()
            return
        self._connecting = None
        self._server = server
        if self._connect_timeout:
            # asyncio returns a connection only some iterations of the loop after it is made.
            with suppress(RuntimeError):  # it has just expired
                self._connect_timeout.reschedule(None)
        server.respond = self._client.write
        server.feed = self._observer.feed
        self._receive = self._forward_request
        self._shared.resets.watch(server.descriptor, self._server_reset)
        self._check_first_request()
        if self._shared.new_injection and not self._http2:
            self._injection = self._shared.new_injection()
            server.write = _injecting(self._injection.from_client, server.write)
            server.respond = _injecting(self._injection.from_server, server.respond)
        server.write(bytes(self._unsent))
        self._unsent.clear()
        if self._fin_from_client:
            self._forward_fin(server)
        elif not server.full:
            self._client.resume_reading()

    def server_full(self, full: bool) -> None:
        """Pause the client while the server reads more slowly than the client writes."""
        if full:
            self._client.pause_reading()
        elif not self._fin_from_client:
            self._client.resume_reading()

    def server_read_much(self, server: UpstreamConnection) -> None:
        """Let other connections be served before the next read from the server."""
        read_in_turns(server.transport, self._shared.loop, lambda: not self._full)

    def server_ended(self, server: UpstreamConnection) -> None:
        """Handle a FIN of the server."""
        now = monotonic()
        if self._ended or server is not self._server:
            return
        self._fin_from_server = True
        if self._injection and (held := self._injection.server_ended()):
            self._client.write(held)
        self._observe(self._observer.half_closed, SERVER, now)
        if self._fin_from_client:
            self._finish()
        else:
            self._end_responses()

    def server_lost(self, server: UpstreamConnection, exc: Exception | None) -> None:
        """Handle the end of the connection to the server; an exception is a reset."""
        self._shared.resets.forget(server.descriptor, self._server_reset)
        if server is not self._server:
            return
        self._server = None
        if self._ended:
            return
        if not exc:
            self._finish()
        else:
            self._observe(self._observer.server_lost, monotonic())
            self._reset_both()

    def _server_reset(self) -> None:
        server = self._server
        if server and (self._fin_from_server or self._full):
            self.server_lost(server, ConnectionResetError())
            reset(server.transport)

    # Ends of the connection.

    def _fail_unreachable(self, now: float) -> None:
        self._shared.refused["unreachable"] += 1
        self._drop_server()
        self._respond_unreachable(now)

    def _respond_unreachable(self, now: float) -> None:
        """Respond in the server's place; the observer gets it like a response of the server."""
        unavailable = self._unavailable_server
        data = unavailable.response() if unavailable else local_responses.UNREACHABLE
        self._observe(self._observer.feed, SERVER, data, now)
        if not unavailable or unavailable.responded:
            self._observe(self._observer.half_closed, SERVER, now)
            self._respond_and_close(data)
        else:
            self._client.write(data)
            self._client.resume_reading()
            self._receive = self._receive_unavailable
            self._deadline = self._deadline or now + self._shared.limits.head_seconds

    def _refuse(self, reason: str, response: bytes) -> None:
        """Forward no more; ``response`` is empty where the client could not parse a response."""
        self._shared.refused[reason] += 1
        self._drop_server()
        if self._requests_in_flight():
            self._observe(self._observer.server_lost, monotonic())
        if response and not self._http2:
            self._respond_and_close(response)
        else:
            self._reset_both()

    def _respond_and_close(self, response: bytes) -> None:
        self._ended = True
        self._receive = _discard
        self._deadline = monotonic() + LINGER_SECONDS
        self._client.write(response)
        self._client.resume_reading()
        self._end_responses()

    def _end_responses(self) -> None:
        if self._plain:
            self._client.write_eof()
        else:
            close(self._client)

    def _drop_server(self) -> None:
        server, self._server = self._server, None
        if server:
            reset(server.transport)

    def _finish(self) -> None:
        """Close both sides after all buffered bytes are sent."""
        self._ended = True
        close(self._client)
        if self._server:
            close(self._server.transport)

    def _reset_both(self) -> None:
        """Reset both sides."""
        self._ended = True
        reset(self._client)
        if self._server:
            reset(self._server.transport)

    def abort(self) -> None:
        """End the connection at once; requests in flight are lost."""
        if self._requests_in_flight():
            self._observe(self._observer.server_lost, monotonic())
        self._reset_both()

    def close_if_idle(self) -> None:
        """End the connection if no request is in flight."""
        if self._is_idle():
            self._finish()

    def tick(self, now: float) -> None:
        """Enforce deadlines at ``now``; call it about every second."""
        self._observe(self._observer.expire, now)
        self._measure_backpressure(now)
        if self._deadline and now >= self._deadline:
            if self._ended or not (self._unsent or self._http2):
                self._ended = True
                self._client.abort()
            else:
                self._refuse("head_time", local_responses.HEAD_TOO_SLOW)
        elif idle_seconds := self._shared.limits.idle_seconds:
            if not self._is_idle():
                self._idle_since = 0.0
            elif not self._idle_since:
                self._idle_since = now
            elif now - self._idle_since >= idle_seconds:
                self._finish()

    def _is_idle(self) -> bool:
        """Whether no request is in flight; false if the observer cannot parse the connection."""
        if self._ended or self._connecting:
            return False
        if not self._server:
            return not self._unsent
        return not (
            self.awaiting_response
            or self._observer.inactive
            or self._requests_in_flight()
            or self._client.get_write_buffer_size()
            or self._server.transport.get_write_buffer_size()
        )

    # Calls of the observer.

    @property
    def _observer(self) -> Observer:
        """The observer, once it has all bytes received so far."""
        self.queue.flush()
        return self._attached

    def _observe(self, event: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            event(*args, **kwargs)
        except Exception as error:
            self.observer_failed(error)

    def _requests_in_flight(self) -> int:
        try:
            return self._observer.live
        except Exception as error:
            self.observer_failed(error)
            return 0

    def observer_failed(self, error: Exception) -> None:
        """Replace a failed observer; bytes are forwarded as before."""
        self._attached = self._shared.errors.isolate(self._attached, error, monotonic())
        if self._server:
            self._server.feed = self._attached.feed


def _discard(data: bytes, now: float) -> None:
    """Discard bytes that a client sends after its connection has ended."""


def _injecting(
    change: Callable[[bytes], bytes], write: Callable[[bytes], None]
) -> Callable[[bytes], None]:
    def injected(data: bytes) -> None:
        if data := change(data):
            write(data)

    return injected


def _why(error: OSError) -> str:
    named = isinstance(error, ssl.SSLError | socket.gaierror)  # their numbers are no errno
    return os.strerror(error.errno) if error.errno and not named else str(error)
