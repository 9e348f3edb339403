"""The interface of all taps, and the specs that select and configure them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from exporter.background import TaskState
from exporter.protocol.events import Observer
from exporter.taps.loop_lag import LoopLag
from slos.errors import BadValue, quoted

NewObserver = Callable[[], Observer]
"""Makes an observer for a new connection; all observers report to the same listener."""


@dataclass(frozen=True, slots=True)
class ProxySpec:
    """Addresses of a proxy and its server; an empty ``listen_host`` is all interfaces."""

    listen_host: str
    listen_port: int
    upstream_host: str
    upstream_port: int

    def __str__(self) -> str:
        listen, upstream = (
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for host, port in (
                (self.listen_host, self.listen_port),
                (self.upstream_host, self.upstream_port),
            )
        )
        return f"proxy={listen}={upstream}"


@dataclass(frozen=True, slots=True)
class CaptureSpec:
    """Interface and server ports of a capture."""

    interface: str
    ports: tuple[int, ...]

    def __str__(self) -> str:
        return f"capture={self.interface}:{','.join(map(str, self.ports))}"


Spec = ProxySpec | CaptureSpec


@dataclass(frozen=True, slots=True)
class TapTraffic:
    """Counters of a tap besides streams; ``dropped`` (packets) is None where it cannot occur.

    ``unseen`` counts requests whose beginning was dropped, ``late_reads`` reads of a late event
    loop (see :mod:`exporter.taps.loop_lag`).
    """

    connections: int = 0
    opened: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    dropped: int | None = None
    unseen: int = 0
    late_reads: int = 0


class Tap(Protocol):
    """Feeds observers with the bytes of connections."""

    @property
    def spec(self) -> Spec:
        """The spec of the tap."""
        ...

    async def start(self) -> None:
        """Start; raises InvalidFile with setting ``tap`` if that fails."""
        ...

    async def drain(self, seconds: float) -> None:
        """Accept no new connections; return after the last one ends or after ``seconds``."""
        ...

    async def close(self) -> None:
        """Stop at once."""
        ...

    @property
    def tasks(self) -> Sequence[TaskState]:
        """The background tasks."""
        ...

    @property
    def lag(self) -> LoopLag:
        """The lag of the event loop."""
        ...

    def flush(self) -> None:
        """Feed observers with all bytes read so far."""
        ...

    def seen_until(self) -> float:
        """Return the monotonic time in seconds up to which all bytes have been read."""
        ...

    def traffic(self) -> TapTraffic:
        """Return the counters."""
        ...


_OWN_HOSTS = ("127.0.0.1", "localhost", "::1")
_ADDRESS = r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]/=]*)):([0-9]{1,5})"
_FIX = "write proxy=LISTEN=UPSTREAM, such as proxy=:9000=127.0.0.1:8000, or capture=INTERFACE:PORTS"


def parse(text: str) -> Spec:
    """Parse ``proxy=:9000=127.0.0.1:8000`` or ``capture=eth0:8000,8001``; raises BadValue."""
    kind, _, rest = text.partition("=")
    if kind == "proxy" and (match := re.fullmatch(f"{_ADDRESS}={_ADDRESS}", rest)):
        spec = ProxySpec(match[1] or match[2], int(match[3]), match[4] or match[5], int(match[6]))
        if not spec.upstream_host or not 0 < spec.upstream_port <= 65535:
            raise BadValue(f"{quoted(text)} has no server to forward to", _FIX)
        if spec.listen_port > 65535:
            raise BadValue(f"{quoted(text)} has a port above 65535", _FIX)
        if spec.listen_port == spec.upstream_port and spec.upstream_host in (
            *_OWN_HOSTS,
            spec.listen_host,
        ):
            raise BadValue(f"{quoted(text)} forwards to itself", _FIX)
        return spec
    if kind == "capture" and (match := re.fullmatch(r"([^\s:=/]{1,15}):([0-9,]+)", rest)):
        ports = tuple(sorted({int(port) for port in match[2].split(",") if port}))
        if ports and ports[0] > 0 and ports[-1] <= 65535:
            return CaptureSpec(match[1], ports)
    raise BadValue(f"{quoted(text)} is not a tap", _FIX)
