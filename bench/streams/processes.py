"""Start and measure the processes of a bench."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lab.process import HOST, ServerProcess, free_ports, serve

CHECKOUT = Path(__file__).parents[2]
_TICK = os.sysconf("SC_CLK_TCK")


def sidecar(folder: Path, *options: str) -> ServerProcess:
    """Start the exporter; the tap process is its child process."""

    def command(ports: Sequence[int]) -> list[str | Path]:
        listen = f"{HOST}:{ports[0]}"
        return [sys.executable, "-m", "tokenslo", "exporter", "--listen", listen, *options]

    log = folder / f"sidecar{len(list(folder.glob('sidecar*')))}.log"
    return serve(ServerProcess, "sidecar", command, log, ready="/metrics", cwd=CHECKOUT)


def proxying(folder: Path, upstream: int, *options: str) -> tuple[ServerProcess, int]:
    """Start the exporter with a proxy tap; also return the tap's port."""
    (port,) = free_ports(1)
    return sidecar(folder, "--tap", f"proxy={HOST}:{port}={HOST}:{upstream}", *options), port


def child(server: ServerProcess) -> int:
    """Return the process id of a server's child process."""
    pid = server.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0])


@dataclass(frozen=True)
class Cpu:
    """CPU seconds: ``run`` from the scheduler, in nanoseconds; ``clock`` in ticks of 10 ms."""

    run: float
    clock: float

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the CPU time of a process."""
        tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
        run = sum(int(task.read_text().split()[0]) for task in tasks)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return cls(run / 1e9, (int(fields[11]) + int(fields[12])) / _TICK)

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.run - other.run, self.clock - other.clock)


def memory(pid: int) -> dict[str, float]:
    """Return resident and proportional memory in MiB, as ``Rss`` and ``Pss``."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return {name: sizes[name] for name in ("Rss", "Pss")}


def allow_many_files() -> None:
    """Raise the limit of open files to its maximum."""
    maximum = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))


class Worker:
    """A child process with commands as lines of JSON and results as lines."""

    def __init__(self, stack: ExitStack, module: str, *arguments: str) -> None:
        self._process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=CHECKOUT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(self._process.kill)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, **command: object) -> None:
        """Send a command."""
        assert self._process.stdin
        print(json.dumps(command), file=self._process.stdin, flush=True)

    def line(self) -> str:
        """Read a line of its output."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"bench: {self._process.args} exited early")
        return line.strip()

    def result(self) -> Any:
        """Read a result as JSON."""
        return json.loads(self.line())
