"""Measure the size and the import time of the distribution with each extra.

Run ``python -m bench.installation [ROUNDS]`` from the checkout; README.md explains the table.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.arguments import positive_integer

ROUNDS = 20
BASELINE = "click"
VARIANTS = (
    ("", "tokenslo.cli"),
    ("exporter", "tokenslo.commands.exporter"),
    ("exporter,otlp", "tokenslo.exporter.web.otlp_export"),
    ("generate", "tokenslo.dashboards"),
    ("terminal", "tokenslo.commands.top"),
    ("grpc", "tokenslo.loadtest.grpc_client"),
    ("jsonnet", "_jsonnet"),
    ("all", "tokenslo.commands.demo"),
)
"""Extras, and the module that their libraries are for."""


def install(folder: Path, wheel: Path, extras: str) -> Path:
    """Install the wheel with extras in a new environment; return its interpreter."""
    venv.create(folder, symlinks=True)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    subprocess.run(
        [*pip, "--disable-pip-version-check", f"{wheel}[{extras}]" if extras else wheel], check=True
    )
    return python


def size(python: Path) -> int:
    """Return the bytes of the installed files."""
    [packages] = python.parents[1].glob("lib/python*/site-packages")
    return sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())


def distributions(python: Path) -> int:
    """Return the count of installed distributions."""
    code = "import importlib.metadata as m; print(len([*m.distributions()]))"
    return int(subprocess.run([python, "-I", "-c", code], check=True, capture_output=True).stdout)


def modules(python: Path, module: str) -> int:
    """Return the count of modules that an import loads."""
    code = f"import sys; before = len(sys.modules); import {module}; print(len(sys.modules)-before)"
    return int(subprocess.run([python, "-I", "-c", code], check=True, capture_output=True).stdout)


def cpu_seconds(command: Sequence[str | Path], rounds: int) -> float:
    """Return the least CPU seconds of a process, after a first run that writes bytecode."""
    least = float("inf")
    for number in range(rounds + 1):
        process = subprocess.Popen(command)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, [*map(str, command)])
        if number:
            least = min(least, usage.ru_utime + usage.ru_stime)
    return least


def main(rounds: str = str(ROUNDS)) -> None:
    """Print the table."""
    times = positive_integer(rounds, "ROUNDS")
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(build, check=True, capture_output=True)
        [wheel] = folder.glob("*.whl")
        print(
            f"{'extras':14} {'packages':>8} {'MB':>6}  {'import':34} {'modules':>7} {'CPU ms':>6}"
        )
        for extras, module in VARIANTS:
            python = install(folder / f"with-{extras}", wheel, extras)
            row = f"{extras or '-':14} {distributions(python):8} {size(python) / 1e6:6.1f}"
            for each in (BASELINE, module) if not extras else (module,):
                count = modules(python, each)
                empty = cpu_seconds([python, "-I", "-c", "pass"], times)
                used = cpu_seconds([python, "-I", "-c", f"import {each}"], times) - empty
                print(f"{row}  {each:34} {count:7} {used * 1000:6.0f}", flush=True)
                row = " " * len(row)


if __name__ == "__main__":
    main(*sys.argv[1:])
