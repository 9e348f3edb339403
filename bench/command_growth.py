"""Measure how CPU time and memory of commands grow with their input.

Run ``python -m bench.command_growth [COMMAND…]`` from the checkout; README.md explains the tables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qs, urlsplit

from bench.arguments import check_names
from bench.child_server import child_port
from bench.figures import LEAST_ROUNDS, Figure, GrowthCurve
from bench.generate import write_files
from bench.growth import LEAST_MIB
from bench.growth_table import print_curves
from lab.process import HOST

OBJECTIVES = (50, 150, 400, 1_000)
LINTED = (10, 30, 100, 300)
DAYS = (7, 30, 90, 365)
LEAST_MS = 1.0
"""Smallest CPU time, after the start of the command is subtracted."""
SLO = """\
apiVersion: tokenslo/v1
service: chat
objectives: [{name: availability, indicator: availability, target: 99.9%}]
"""
_LAUNCHER = """\
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
"""
"""Starts a command from a small process: on Linux, the peak of a process includes its parent's
memory at the fork, so the bench itself would hide peaks below its own 56 MiB."""
TOKENSLO = (sys.executable, "-m", "tokenslo")

Arguments = Callable[[Path, int], Sequence[str]]


@dataclass(frozen=True, slots=True)
class CommandTable:
    """A command and its input: ``arguments`` writes an input of one size into a folder."""

    size: str
    sizes: Sequence[int]
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """CPU time in milliseconds and the peak of resident memory in MiB of a process."""

    cpu: float
    memory: float


def run(arguments: Sequence[str], accepted: Sequence[int] = (0,)) -> ProcessCost:
    """Run a command to its end; raises CalledProcessError for other exit codes."""
    command = [*TOKENSLO, *arguments]
    launcher = [sys.executable, "-S", "-c", _LAUNCHER, *command]
    done = subprocess.run(launcher, stdout=subprocess.PIPE, check=True)
    code, seconds, kibibytes = done.stdout.split()
    if int(code) not in accepted:
        raise subprocess.CalledProcessError(int(code), command)
    return ProcessCost(1e3 * float(seconds), float(kibibytes) / 1024)


def _objectives(folder: Path, count: int) -> str:
    """Write the SLO files of a count of objectives; return the path of the LLM objectives."""
    home = folder / str(count)
    home.mkdir(exist_ok=True)
    write_files(home, count)
    return str(home / "llm.yaml")


def _generate(folder: Path, count: int) -> Sequence[str]:
    return ["generate", _objectives(folder, count), "-o", str(folder / f"generated-{count}")]


def _explain(folder: Path, count: int) -> Sequence[str]:
    return ["explain", _objectives(folder, count)]


def _lint(folder: Path, count: int) -> Sequence[str]:
    out = str(folder / f"linted-{count}")
    run(["generate", _objectives(folder, count), "-o", out, "--only", "alerts"])
    return ["lint", out]


def _backtest(folder: Path, days: int, *, port: int) -> Sequence[str]:
    file = folder / "backtest.yaml"
    file.write_text(SLO)
    url = f"http://{HOST}:{port}"
    return ["backtest", str(file), "--prometheus", url, "--days", str(days)]


@contextmanager
def tables() -> Iterator[Mapping[str, CommandTable]]:
    """Yield the tables by command, with a server for those that query Prometheus."""
    with child_port(_serve_history) as port:
        yield {
            "generate": CommandTable("objectives", OBJECTIVES, _generate),
            "explain": CommandTable("objectives", OBJECTIVES, _explain),
            "lint": CommandTable("objectives whose rules are linted", LINTED, _lint),
            "backtest": CommandTable("days of history", DAYS, partial(_backtest, port=port)),
        }


COMMANDS = ("generate", "explain", "lint", "backtest")


def constant_rate(query: str) -> str:
    """Return the value of a query at every step: few bad events; empty for missing metrics."""
    if "absent(" in query:
        return ""
    return "0.001" if 'outcome=~"error|' in query else "10"


def _serve_history(port: int) -> None:
    """Answer each range query with one series that has a value at every step."""

    class HistoryHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.respond(urlsplit(self.path).query)

        def do_POST(self) -> None:
            self.respond(self.rfile.read(int(self.headers["Content-Length"])).decode())

        def respond(self, text: str) -> None:
            fields = {name: values[0] for name, values in parse_qs(text).items()}
            start, end, step = (float(fields[name]) for name in ("start", "end", "step"))
            rate = constant_rate(fields["query"])
            count = int((end - start) / step) + 1
            values = [[start + index * step, rate] for index in range(count)]
            result = [{"metric": {}, "values": values}] if rate else []
            data = {"resultType": "matrix", "result": result}
            body = json.dumps({"status": "success", "data": data}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((HOST, 0), HistoryHandler)
    os.write(port, str(server.server_port).encode())
    server.serve_forever()


def curves(
    name: str, table: CommandTable, folder: Path, rounds: int = LEAST_ROUNDS
) -> tuple[GrowthCurve, GrowthCurve]:
    """Measure a command; return the growth of CPU time and of memory, without its start."""
    accepted = (0, 1) if name == "lint" else (0,)
    inputs = [table.arguments(folder, size) for size in table.sizes]
    run([name, "--help"])
    found = [
        [(run(each, accepted), run([name, "--help"])) for _ in range(rounds)] for each in inputs
    ]
    cpu = [[max(LEAST_MS, cost.cpu - start.cpu) for cost, start in each] for each in found]
    held = [[max(LEAST_MIB, cost.memory - start.memory) for cost, start in each] for each in found]
    return (
        GrowthCurve(f"CPU of `tokenslo {name}`", table.size, "ms", table.sizes, cpu),
        GrowthCurve(f"memory of `tokenslo {name}`", table.size, "MiB", table.sizes, held),
    )


def figures(_: bool) -> Iterator[Figure]:
    """Measure all commands."""
    with TemporaryDirectory() as folder, tables() as found:
        for name, table in found.items():
            yield from curves(name, table, Path(folder))


def main(*commands: str) -> None:
    """Print the tables of the named commands, of all by default."""
    check_names(commands, COMMANDS, "command")
    with TemporaryDirectory() as folder, tables() as found:
        for name in commands or COMMANDS:
            print(f"tokenslo {name}")
            print_curves(*curves(name, found[name], Path(folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
