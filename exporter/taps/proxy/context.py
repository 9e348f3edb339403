"""What the connections of a proxy have in common."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from exporter.log import Episodes
from exporter.protocol.injection import Injection
from exporter.taps.loop_lag import LoopLag
from exporter.taps.observer_errors import ObserverErrors
from exporter.taps.proxy.reset_watcher import ResetWatcher
from exporter.taps.tap import NewObserver, ProxySpec

if TYPE_CHECKING:
    from exporter.taps.proxy.connection import ClientConnection


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """What a proxy bears; times are in seconds.

    ``connections`` are clients at a time, ``head_bytes`` and ``head_seconds`` are about the first
    head of a connection, and one without a request is closed after ``idle_seconds``, if that is
    not 0.
    """

    connections: int = 8_192
    connect_seconds: float = 5.0
    head_bytes: int = 64 * 1024
    head_seconds: float = 30.0
    idle_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class ProxyContext:
    """What all connections of a proxy have in common.

    ``opened`` and ``watched`` count the connections that sent something: in all, and now.
    ``server_tls`` is empty, or has a context for each protocol, and may be replaced.
    ``new_injection`` makes what changes the bytes of an HTTP/1 connection, if they shall be
    changed at all.
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
    new_injection: Callable[[], Injection] | None = None
    connections: set[ClientConnection] = field(default_factory=set)
    opened: int = 0
    watched: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    episodes: Episodes = field(default_factory=Episodes)
