"""State that all connections of a proxy share."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from exporter.log import ProblemLog
from exporter.protocol.injection import Injection
from exporter.taps.loop_lag import LoopLag
from exporter.taps.observer_errors import ObserverErrors
from exporter.taps.proxy.observation_queue import ObservationQueue
from exporter.taps.proxy.reset_watcher import ResetWatcher
from exporter.taps.tap import NewObserver, ProxySpec


class ProxiedConnection(Protocol):
    """A connection of the proxy, as the tap controls it."""

    def tick(self, now: float) -> None:
        """Enforce deadlines at ``now``."""
        ...

    def close_if_idle(self) -> None:
        """End the connection if no request is in flight."""
        ...

    def abort(self) -> None:
        """End the connection at once; requests in flight are lost."""
        ...


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Limits of a proxy; times are in seconds.

    ``connections`` counts clients at a time.  ``head_bytes`` and ``head_seconds`` bound the first
    head of a connection.  A connection without a request is closed after ``idle_seconds``, unless
    that is 0.
    """

    connections: int = 8_192
    connect_seconds: float = 5.0
    head_bytes: int = 64 * 1024
    head_seconds: float = 30.0
    idle_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class ProxyContext:
    """State that all connections of a proxy share.

    ``opened`` and ``watched`` count the connections that sent something: in total, and open ones.
    ``server_tls`` is empty or has a context for each protocol, and may be replaced.
    ``new_injection`` makes the injection of an HTTP/1 connection; without it bytes stay unchanged.
    """

    spec: ProxySpec
    new_observer: NewObserver
    limits: ProxyLimits
    server_tls: Mapping[str, ssl.SSLContext]
    server_name: str
    resets: ResetWatcher
    loop: asyncio.AbstractEventLoop
    errors: ObserverErrors
    lag: LoopLag
    queue: ObservationQueue
    new_injection: Callable[[], Injection] | None = None
    connections: set[ProxiedConnection] = field(default_factory=set)
    opened: int = 0
    watched: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    problem_log: ProblemLog = field(default_factory=ProblemLog)

    def count_refused(self, reason: str) -> None:
        """Count a client that was refused."""
        self.refused[reason] += 1
