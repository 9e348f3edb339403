"""Servers as child processes: ready when returned, stopped when their scope exits."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from lab import process_supervisor
from lab.toolchain import tail
from promql.http_client import FetchLimits, HttpError, request

HOST = "127.0.0.1"
_PORT_ATTEMPTS = 5
_POLL_SECONDS = 0.05
_LIMITS = FetchLimits(timeout=2.0, max_bytes=64 * 1024 * 1024)

_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp

S = TypeVar("S", bound="ServerProcess")


class ServerError(Exception):
    """A server that exited early, was not ready in time, or rejected a request."""


class _PortTakenError(ServerError):
    """Another process bound the port before the server did."""


@dataclass(frozen=True)
class ServerProcess:
    """A running server on loopback ports; a `with` block stops it at its end.

    `log` holds its standard output and error; `pid` is the server's own process, `supervisor` its
    parent.
    """

    name: str
    ports: tuple[int, ...]
    log: Path
    pid: int
    supervisor: subprocess.Popen[str]

    @property
    def url(self) -> str:
        """The base URL of the first port, without a trailing slash."""
        return f"http://{HOST}:{self.ports[0]}"

    @property
    def exit_code(self) -> int | None:
        """Exit code, 128 + n after signal n; None while it runs."""
        return self.supervisor.poll()

    @property
    def alive(self) -> bool:
        """Whether the server is running."""
        return self.exit_code is None

    def stop(self) -> None:
        """Stop the process group: SIGTERM, the grace period, SIGKILL."""
        assert self.supervisor.stdin  # noqa: S101
        self.supervisor.stdin.close()
        self.supervisor.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def serve(
    kind: type[S],
    name: str,
    command: Callable[[Sequence[int]], Sequence[str | Path]],
    log: Path,
    *,
    ready: str,
    ports: int = 1,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    deadline: float = 30.0,
    grace: float = 10.0,
) -> S:
    """Start `command(ports)` and wait until it is ready.

    It is ready when it listens on all ports and GET `ready` on the first returns 200. `deadline` is
    the time-out for that in seconds, `grace` the seconds between SIGTERM and SIGKILL. If another
    process binds one of its ports first, it is restarted on other ports.
    Raises ServerError, with the end of the log.
    """

    def attempt() -> S:
        chosen = free_ports(ports)
        server = kind(name, chosen, log, *_keep(name, command(chosen), log, cwd, env, grace))
        with ExitStack() as undo:
            undo.callback(server.stop)
            _wait(server, ready, deadline)
            undo.pop_all()
        return server

    for _ in range(_PORT_ATTEMPTS - 1):
        with suppress(_PortTakenError):
            return attempt()
    return attempt()


def free_ports(count: int) -> tuple[int, ...]:
    """Return free loopback ports."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return tuple(listener.getsockname()[1] for listener in listeners)


def get(
    port: int, path: str, method: str = "GET", accept: str = "*/*", host: str = HOST
) -> tuple[int, str]:
    """Send a request to a local server, without a proxy; return status and text of the response.

    Works inside an event loop too.  Raises promql.http_client.HttpError.
    """
    url, headers = f"http://{host}:{port}{path}", {"Accept": accept}
    with ThreadPoolExecutor(1) as thread:
        response = thread.submit(request, method, url, limits=_LIMITS, headers=headers).result()
    return response.status, response.body.decode(errors="replace")


def _keep(
    name: str,
    command: Sequence[str | Path],
    log: Path,
    cwd: Path | None,
    env: Mapping[str, str] | None,
    grace: float,
) -> tuple[int, subprocess.Popen[str]]:
    """Start the command under a supervisor; return its process id and the supervisor."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                process_supervisor.__file__,
                str(grace),
                *map(str, command),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            cwd=cwd,
            env=env,
            text=True,
            start_new_session=True,  # Ctrl-C must reach only this process, which stops the servers
        )
    assert process.stdout  # noqa: S101
    with process.stdout as line:
        pid = line.readline()
    if not pid:
        process.communicate()
        raise ServerError(f"{name} did not start:\n{tail(log.read_text())}")
    return int(pid), process


def _wait(server: ServerProcess, ready: str, deadline: float) -> None:
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        with suppress(OSError, HttpError):
            if _listens(server) and get(server.ports[0], ready)[0] == 200:
                return
        if not server.alive:
            text = server.log.read_text(errors="replace")
            error = _PortTakenError if "already in use" in text else ServerError
            raise error(
                f"{server.name} ended with exit code {server.exit_code} before it was ready:\n"
                f"{tail(text)}"
            )
        time.sleep(_POLL_SECONDS)
    raise ServerError(
        f"{server.name} was not ready after {deadline:g} s:\n"
        f"{tail(server.log.read_text(errors='replace'))}"
    )


def _listens(server: ServerProcess) -> bool:
    """Whether the server, and no other process, listens on all of its ports."""
    proc = Path(f"/proc/{server.pid}")
    held = {str(file.readlink()) for file in (proc / "fd").iterdir()}
    listening = set()
    for table in proc.glob("net/tcp*"):  # and tcp6: gRPC listens on IPv4 by way of IPv6
        for line in table.read_text().splitlines():
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _LISTEN and f"socket:[{inode}]" in held:
                listening.add(int(local.split(":")[1], 16))
    return listening.issuperset(server.ports)
