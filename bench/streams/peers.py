"""Start what stands between clients and server: the taps, and gateways as their peers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import envoy, programs
from bench.streams.processes import Cpu, child, proxying, sidecar
from lab import gateway
from lab.gateway import GatewaySettings, HaproxySettings, NginxSettings
from lab.process import HOST, ServerError, ServerProcess
from lab.toolchain import InstallError, UnavailableProgram

LONGEST_IDLE = 3600.0


@dataclass(frozen=True)
class StreamPeer:
    """The process between clients and server, if any; clients connect to ``port``.

    ``tap`` marks the sidecar's own.
    """

    name: str
    port: int
    pid: int | None
    version: str = ""
    tap: bool = False

    def cpu(self) -> Cpu:
        """Return its CPU time so far."""
        return Cpu.of(self.pid) if self.pid else Cpu(0.0, 0.0)


Started = tuple[ServerProcess, StreamPeer]


def _gateway(
    settings: GatewaySettings, name: str, option: str, folder: Path, upstream: int, _: int
) -> Started:
    found = gateway.start(settings, folder, f"http://{HOST}:{upstream}", programs.progress)
    # nginx forwards in a worker process.
    pid = child(found) if isinstance(settings, NginxSettings) else found.pid
    version = programs.version(found.program, option)
    return found, StreamPeer(name, found.ports[0], pid, version)


def _nginx(folder: Path, upstream: int, captured: int) -> Started:
    return _gateway(NginxSettings(), "nginx", "-v", folder, upstream, captured)


def _haproxy(folder: Path, upstream: int, captured: int) -> Started:
    settings = HaproxySettings(idle_seconds=LONGEST_IDLE)
    return _gateway(settings, "haproxy", "-v", folder, upstream, captured)


def _envoy(folder: Path, upstream: int, _: int) -> Started:
    found = envoy.start(folder, upstream)
    version = programs.version(programs.envoy(), "--version")
    return found, StreamPeer("envoy", found.ports[0], found.pid, version)


def _proxy(folder: Path, upstream: int, _: int) -> Started:
    found, port = proxying(folder, upstream)
    return found, StreamPeer("proxy", port, child(found), tap=True)


def _capture(folder: Path, _: int, captured: int) -> Started:
    found = sidecar(folder, "--tap", f"capture=lo:{captured}")
    return found, StreamPeer("capture", captured, child(found), tap=True)


STARTS: Mapping[str, Callable[[Path, int, int], Started]] = {
    "nginx": _nginx,
    "haproxy": _haproxy,
    "envoy": _envoy,
    "proxy": _proxy,
    "capture": _capture,
}


def start(
    stack: ExitStack, folder: Path, ports: tuple[int, ...], names: Iterable[str]
) -> tuple[list[StreamPeer], dict[str, str]]:
    """Start the named peers until the stack exits.

    ``ports`` of the server are that for gateways and proxy, and that which the capture watches.
    Return the peers, and the reason of each that is missing.
    """
    found: list[StreamPeer] = []
    missing: dict[str, str] = {}
    for name in names:
        try:
            server, peer = STARTS[name](folder, *ports)
        except (InstallError, ServerError, UnavailableProgram) as error:
            missing[name] = str(error)
            continue
        stack.enter_context(server)
        found.append(peer)
    return found, missing
