"""The proxy tap: forward connections between clients and a server, and feed observers."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic

from exporter.background import Supervisor, TaskState
from exporter.connection_listener import ConnectionListener, Handshakes
from exporter.log import LOG
from exporter.protocol.injection import Injection
from exporter.reloaded_files import ReloadedFiles
from exporter.sockets import listen
from exporter.taps.loop_lag import LoopLag
from exporter.taps.observer_errors import ObserverErrors
from exporter.taps.proxy.connection import MAX_REFUSED_CLIENTS, ClientConnection
from exporter.taps.proxy.context import ProxyContext, ProxyLimits
from exporter.taps.proxy.model_inputs import ModelInputs
from exporter.taps.proxy.observation_queue import ObservationQueue
from exporter.taps.proxy.reset_watcher import ResetWatcher
from exporter.taps.proxy.tls import (
    HTTP1,
    Certificate,
    Verification,
    for_clients,
    for_server,
)
from exporter.taps.tap import NewObserver, ProxySpec, TapTraffic

SETTING = "tap"
TICK_SECONDS = 1.0
TICK_BATCH = 16
"""Connections whose deadlines are enforced at once, about 0.1 ms, before bytes are forwarded."""
DRAIN_SECONDS = 0.05
"""Time between checks whether connections have ended, while draining."""
SPARE_DESCRIPTORS = 64 + MAX_REFUSED_CLIENTS
"""Descriptors for everything but connections, each of which takes two: a refused client has one
until its response is sent."""


class ProxyTap:
    """Forwards between clients and one server, from `start` in a running loop until `close`.

    With a ``certificate`` clients must speak TLS, with a ``verification`` the proxy speaks TLS to
    the server; their files are reloaded when they change.  With ``inject`` it requests engine
    timing (:mod:`exporter.protocol.injection`).  ``skipped`` is called for each connection
    whose observer failed.
    """

    def __init__(
        self,
        spec: ProxySpec,
        new_observer: NewObserver,
        skipped: Callable[[str], None],
        *,
        limits: ProxyLimits | None = None,
        certificate: Certificate | None = None,
        verification: Verification | None = None,
        inject: bool = False,
    ) -> None:
        self.spec = spec
        self.port = spec.listen_port
        """The port of the listening sockets, once there are any."""
        self._queue = ObservationQueue()
        self.lag = LoopLag(each_tick=self._queue.flush)
        self._new_observer = new_observer
        self._errors = ObserverErrors(skipped)
        self._limits = limits or ProxyLimits()
        self._certificate = certificate
        self._verification = verification
        self._inject = inject
        self._inputs: ModelInputs | None = None
        self._servers: list[ConnectionListener] = []
        self._client_tls: ReloadedFiles[ssl.SSLContext] | None = None
        self._server_tls: ReloadedFiles[dict[str, ssl.SSLContext]] | None = None
        self._shared: ProxyContext | None = None
        self._supervisor = Supervisor()

    async def start(self) -> None:
        """Listen and forward; raises InvalidFile with setting ``tap`` if that fails."""
        if pair := self._certificate:
            self._client_tls = ReloadedFiles(
                partial(for_clients, pair, SETTING), lambda _: (pair.chain, pair.key)
            )
        shared = self._share()
        sockets = listen(self.spec.listen_host, self.spec.listen_port, SETTING)
        self.port = sockets[0].getsockname()[1]
        self._shared = shared
        shared.resets.open()
        self.lag.open()
        for each in sockets:
            self._servers.append(self._accept(each, shared))
        self._supervisor.start(f"tick {self.spec}", partial(self._tick, shared))

    def _accept(self, listening: socket.socket, shared: ProxyContext) -> ConnectionListener:
        tls = self._client_tls
        listener = ConnectionListener(
            listening,
            partial(ClientConnection, shared),
            lambda: tls.value if tls else None,
            handshake_seconds=shared.limits.head_seconds,
            # Without TLS a connection counts at once, and is refused with a response.
            admit=partial(_admit, shared) if tls else lambda _: True,
            refused=shared.count_refused,
        )
        listener.open()
        return listener

    def _share(self) -> ProxyContext:
        verification = self._verification
        server_tls: dict[str, ssl.SSLContext] = {}
        if verification:
            self._server_tls = ReloadedFiles(
                partial(for_server, verification, SETTING), lambda _: (verification.ca,)
            )
            server_tls = self._server_tls.value
        named = verification.server_name if verification else ""
        new_injection = None
        if self._inject:
            host, port, tls = self.spec.upstream_host, self.spec.upstream_port, self._server_tls
            self._inputs = ModelInputs(host, port, lambda: tls.value[HTTP1] if tls else None, named)
            new_injection = partial(Injection, self._inputs.input_of)
        return ProxyContext(
            self.spec,
            self._new_observer,
            _within_descriptors(self._limits),
            server_tls,
            named or self.spec.upstream_host,
            ResetWatcher(),
            asyncio.get_running_loop(),
            self._errors,
            self.lag,
            self._queue,
            new_injection,
        )

    async def drain(self, seconds: float) -> None:
        """Accept no new connections; return after the last one ends or after ``seconds``."""
        for server in self._servers:
            server.close()
        deadline = monotonic() + seconds
        while self._shared and self._shared.connections and monotonic() < deadline:
            for connection in tuple(self._shared.connections):
                connection.close_if_idle()
            await asyncio.sleep(DRAIN_SECONDS)

    async def close(self) -> None:
        """Abort all connections."""
        self.flush()
        for server in self._servers:
            server.close()
        self._supervisor.cancel()
        self.lag.close()
        if self._inputs:
            self._inputs.close()
        if self._shared:
            for connection in tuple(self._shared.connections):
                connection.abort()
            for _ in range(3):  # iterations of the loop until TLS reports the last end
                await asyncio.sleep(0)
            self._shared.resets.close()

    @property
    def tasks(self) -> Sequence[TaskState]:
        """The task that enforces deadlines and renews TLS files."""
        return self._supervisor.states

    def flush(self) -> None:
        """Feed observers with all bytes read so far."""
        self._queue.flush()

    def seen_until(self) -> float:
        """Return the time up to which all bytes have been read: now, unless the loop is late."""
        return self.lag.seen_until()

    def traffic(self) -> TapTraffic:
        """Return the counters; connections that sent nothing are not counted."""
        shared = self._shared
        if not shared:
            return TapTraffic()
        return TapTraffic(
            shared.watched,
            shared.opened,
            dict(shared.refused),
            late_reads=self.lag.late_reads,
        )

    async def _tick(self, shared: ProxyContext) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = monotonic()
            if self._client_tls:
                self._client_tls.refresh(now)
            if self._server_tls:
                self._server_tls.refresh(now)
                shared.server_tls = self._server_tls.value
            for number, connection in enumerate(tuple(shared.connections)):
                if number % TICK_BATCH == 0:
                    await asyncio.sleep(0)
                    now = monotonic()
                if connection in shared.connections:
                    connection.tick(now)


def _admit(shared: ProxyContext, handshakes: Handshakes) -> bool:
    tracked = len(shared.connections) + len(handshakes)
    return tracked < shared.limits.connections + MAX_REFUSED_CLIENTS


def _within_descriptors(limits: ProxyLimits) -> ProxyLimits:
    """Raise the soft limit of open files, and lower the connection limit to fit it."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    possible = max(1, (most - SPARE_DESCRIPTORS) // 2)
    if possible >= limits.connections:
        return limits
    LOG.warning(
        "proxy: limit lowered to %d connections, as the limit of open files is %d", possible, most
    )
    return replace(limits, connections=possible)
