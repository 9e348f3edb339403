"""Run the fault matrix and write its page: ``make faults``."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import uvloop

from lab.faults.catalogue import CATALOGUE
from lab.faults.fault import Fault, FaultEffect
from lab.faults.page import render
from lab.faults.setup import FaultSetup
from lab.faults.stored_rows import MatrixRow, read_rows, write_row
from lab.incidents.stored_results import machine, revision
from lab.toolchain import UnavailableProgram

LIMIT_SECONDS = 600.0
"""Time limit of a fault."""
_CHECKOUT = Path(__file__).parents[2]
_PAGE = _CHECKOUT / "docs/reference/faults.md"
_RESULTS = _CHECKOUT / "fault-results"
_TICK = os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run faults, keep their results, and write the page; return 1 if a row fails."""
    parser = ArgumentParser(prog="python -m lab.faults", description=__doc__)
    parser.add_argument(
        "--faults", type=_faults, default=tuple(CATALOGUE), help="such as sigkill-proxy,disk-full"
    )
    parser.add_argument("--results", type=Path, default=_RESULTS, help="folder of results")
    parser.add_argument("--page", type=Path, default=_PAGE, help="the page to write")
    parser.add_argument("--render", action="store_true", help="write the page of earlier results")
    given = parser.parse_args(arguments)
    try:
        failed = 0 if given.render else _run_all(given.faults, given.results)
        given.page.write_text(render(CATALOGUE.values(), read_rows(given.results)))
    except ValueError as error:
        parser.error(str(error))
    return min(failed, 1)


def _run_all(keys: Sequence[str], results: Path) -> int:
    """Run faults and keep their rows; return how many failed."""
    failed = 0
    with TemporaryDirectory(prefix="faults") as folder:
        for number, key in enumerate(keys, 1):
            fault = CATALOGUE[key]
            row = run_row(fault, Path(folder) / key)
            write_row(results, row)
            result, problems = row.result(fault), row.problems(fault)
            failed += result == "failed"
            why = "; ".join(problems) or row.unavailable
            text = f"{number}/{len(keys)} {key}: {result} in {row.wall_seconds:.0f} s"
            print(f"{text}: {why}" if why else text, flush=True)
    return failed


def run_row(fault: Fault, folder: Path) -> MatrixRow:
    """Run one fault; its servers have stopped when it returns."""
    date, began = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", monotonic()
    busy, own = _busy_seconds(), _own_seconds()
    effect, error, unavailable = None, "", ""
    try:
        effect = _effect(fault, folder)
    except UnavailableProgram as missing:
        unavailable = str(missing)
    except Exception as caught:
        # A row without an end must not stop the others.
        error = str(caught) or repr(caught)
    seconds = monotonic() - began
    others = (_busy_seconds() - busy) - (_own_seconds() - own)
    share = max(0.0, others / seconds / (os.cpu_count() or 1))
    stamp = (date, machine(), revision(), seconds, share)
    return MatrixRow(fault.key, *stamp, effect, error, unavailable)


def _effect(fault: Fault, folder: Path) -> FaultEffect:
    with ExitStack() as stack:
        setup = FaultSetup(folder, stack, _progress)

        async def inject() -> FaultEffect:
            async with asyncio.timeout(LIMIT_SECONDS):
                return await fault.inject(setup)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(inject())


def _busy_seconds() -> float:
    """Return the CPU seconds of all processes of the machine."""
    user, nice, system, _, _, irq, softirq = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + irq + softirq) / _TICK


def _own_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _faults(text: str) -> tuple[str, ...]:
    keys = tuple(text.split(","))
    if unknown := [key for key in keys if key not in CATALOGUE]:
        raise ArgumentTypeError(f"no fault {unknown[0]}; there are {', '.join(CATALOGUE)}")
    return keys


if __name__ == "__main__":
    sys.exit(main())
