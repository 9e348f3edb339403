"""Measure the CPU time in which the command line starts, next to the import of click.

Run ``python -m bench.startup [ROUNDS]`` from the checkout; README.md explains the table.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from statistics import median

from bench.arguments import positive_integer
from bench.figures import Figure, PeerComparison, limits, median_interval, repeat

ROUNDS = 20
TARGET = 1.5
HELP, CLICK = "tokenslo --help", "import click"
COMMANDS: Mapping[str, Sequence[str]] = {
    HELP: [sys.executable, "-m", "tokenslo", "--help"],
    CLICK: [sys.executable, "-c", CLICK],
}


def measure() -> Mapping[str, float]:
    """Return the CPU seconds of one process of each command."""
    return {name: cpu_seconds(command) for name, command in COMMANDS.items()}


def cpu_seconds(command: Sequence[str]) -> float:
    """Return the CPU seconds of a process."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, [*command])
    return usage.ru_utime + usage.ru_stime


def figures(long: bool) -> Iterator[Figure]:
    """Compare the start of the command line with the import of its library."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    measure()
    rounds = repeat(
        measure,
        lambda done: [median_interval(each[HELP] / each[CLICK] for each in done)],
        limits(long, most=40, seconds=30),
    )
    yield PeerComparison(
        f"CPU of `{HELP}`",
        f"`{CLICK}` {version('click')}",
        "ms",
        [1e3 * each[HELP] for each in rounds],
        [1e3 * each[CLICK] for each in rounds],
        TARGET,
    )


def main(rounds: str = str(ROUNDS)) -> None:
    """Print the table."""
    times = positive_integer(rounds, "ROUNDS")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    measure()
    found = [measure() for _ in range(times)]
    print(f"{'':16} {'CPU ms min':>10} {'median':>8} {'ratio':>6}")
    for name in COMMANDS:
        taken = [1e3 * each[name] for each in found]
        ratio = median(each[name] / each[CLICK] for each in found)
        print(f"{name:16} {min(taken):>10.1f} {median(taken):>8.1f} {ratio:>6.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
