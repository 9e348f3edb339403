"""The servers of a fault: sidecars, stream servers and a Triton, stopped when the fault ends."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic

from lab import triton
from lab.faults.sidecar_process import SidecarProcess, start_sidecar
from lab.process import HOST, ServerError, free_ports
from lab.repository import write_repository
from lab.toolchain import Progress
from lab.triton import Triton

INTERVAL = 0.2
"""The sidecars' scrape interval in seconds."""
SETTLE_SECONDS = 120.0
"""Time limit of a condition that a row waits for, long enough for a busy machine."""
SCRAPE_LIMIT = 10.0
"""Longest time that /metrics may take during a fault: Prometheus' default time-out."""
MANY_FILES = 65_536
_CHECKOUT = Path(__file__).parents[2]


class FaultSetup:
    """The servers and files of one fault; files are in ``folder``."""

    def __init__(self, folder: Path, stack: ExitStack, progress: Progress) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.stack, self.progress = folder, stack, progress
        self._logs = 0

    def triton(self) -> Triton:
        """Start a Triton with the simulated engine.

        Raises lab.toolchain.UnavailableProgram.
        """
        home = triton.install(self.progress)
        write_repository(self.folder / "models")
        started = triton.start(home, self.folder / "models", self.folder / "triton")
        return self.stack.enter_context(started)

    def stream_server(self, port: int = 0) -> int:
        """Start a server of streams; return its port."""
        port = port or free_ports(1)[0]
        self.worker("stream_processes", "serve", str(port))
        return port

    def worker(self, module: str, *arguments: str, ready: bool = True) -> subprocess.Popen[str]:
        """Start a module of this package; with ``ready``, wait for its first line of output."""
        process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.{module}", *arguments],
            cwd=_CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.stack.callback(_end, process)
        assert process.stdout  # noqa: S101
        if ready and not process.stdout.readline():
            raise ServerError(f"{module} did not start")
        return process

    def sidecar(
        self,
        *options: str | Path,
        upstream: int = 0,
        tap: int = 0,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> SidecarProcess:
        """Start a sidecar, with a proxy tap in front of the port ``upstream`` if there is one.

        ``tap`` is the tap's port, by default a free one.
        """
        self._logs += 1
        taps: tuple[str, ...] = ()
        if upstream:
            tap = tap or free_ports(1)[0]
            taps = ("--tap", f"proxy={HOST}:{tap}={HOST}:{upstream}")
        found = start_sidecar(
            self.folder / f"sidecar{self._logs}.log",
            [*taps, "--interval", f"{INTERVAL * 1000:.0f}ms", *options],
            tap=tap,
            prefix=prefix,
            env=env,
        )
        self.stack.callback(_kill, found)
        return found


def allow_many_files() -> int:
    """Raise the limit of open files, of children too; return the new one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MANY_FILES:
        with suppress(ValueError, OSError):  # only root may raise the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, MANY_FILES))
            hard = MANY_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


async def until(
    condition: Callable[[], Awaitable[object] | object], seconds: float, what: str
) -> float:
    """Wait for a condition; return the seconds.  Raises TimeoutError with ``what``."""
    began = monotonic()
    while True:
        found = condition()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return monotonic() - began
        if monotonic() - began > seconds:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        await asyncio.sleep(0.02)


def kill_group(sidecar: SidecarProcess) -> None:
    """Kill the sidecar's own process; the tap process is in a session of its own."""
    os.kill(sidecar.pid, signal.SIGKILL)
    sidecar.server.supervisor.wait()


def _kill(sidecar: SidecarProcess) -> None:
    """Kill both processes of a sidecar."""
    for pid in sidecar.pids().values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    sidecar.server.stop()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()
