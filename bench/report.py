"""Run the benches in turn, keep their results, and write the page of benchmarks.

``make bench`` runs it.  Benches with a result of the same commit are not measured again, so an
interrupted run continues.  Exits with code 1 if a bench failed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from select import select
from tempfile import TemporaryFile

from bench import results
from bench.conditions import CHECKOUT, cpu_times, load_before, machine, revision
from bench.figures import Figure, from_json
from bench.page import render
from bench.results import BenchResult
from bench.run import BENCHES

PAGE = CHECKOUT / "docs/reference/benchmarks.md"
RESULTS = CHECKOUT / "bench-results"
MINUTES, LONG_MINUTES = 15, 240
"""Time limits of a bench."""
PROGRESS_SECONDS = 1.0

Report = Callable[[str], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what has no current result, and write the page; return 1 if a bench failed."""
    parser = ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument(
        "--benches", type=_benches, default=tuple(BENCHES), help="such as reader,proxy"
    )
    parser.add_argument("--long", action="store_true", help="more rounds, larger inputs: hours")
    parser.add_argument("--again", action="store_true", help="also measure what has a result")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of results")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write")
    given = parser.parse_args(arguments)
    commit, show = revision(without=PAGE), progress()
    failed = False
    try:
        write_page(given.page, given.results)
        for number, bench in enumerate(given.benches, 1):
            found = results.read(given.results, bench)
            if not given.again and found and found.is_current(commit, long=given.long):
                continue
            report = _titled(show, f"{number}/{len(given.benches)} {bench}")
            result = measure(bench, commit, long=given.long, report=report)
            results.write(given.results, result)
            write_page(given.page, given.results)
            if result.failure:
                failed = True
                show("")
                print(f"{bench} failed: {result.failure}", file=sys.stderr)
    except ValueError as error:
        parser.error(str(error))
    finally:
        show("")
    return int(failed)


def _benches(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, text.split(",")))
    if unknown := [name for name in names if name not in BENCHES]:
        raise ArgumentTypeError(f"no bench {unknown[0]}; choose from {', '.join(BENCHES)}")
    return names


def write_page(page: Path, folder: Path) -> None:
    """Write the page of all results."""
    page.write_text(render(BENCHES, [results.read(folder, bench) for bench in BENCHES]))


def progress() -> Report:
    """Return a function that shows a line on a terminal, and nothing in a pipe."""
    if not sys.stderr.isatty():
        return lambda _: None
    return lambda text: print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _titled(report: Report, title: str) -> Report:
    return lambda text: report(f"{title}: {text}")


def measure(bench: str, commit: str, *, long: bool, report: Report) -> BenchResult:
    """Run a bench in a child process; its failure is part of the result."""
    report("waiting for an idle second")
    load = load_before()
    began, start, before = datetime.now(UTC), time.monotonic(), cpu_times()
    minutes = LONG_MINUTES if long else MINUTES
    command = [sys.executable, "-m", "bench.run", bench, *(["--long"] if long else [])]
    figures, failure = run(command, 60.0 * minutes, report)
    _, steal = cpu_times().shares_since(before)
    return BenchResult(
        bench,
        long,
        commit,
        machine(),
        f"{began:%Y-%m-%d %H:%M:%S}",
        time.monotonic() - start,
        load.average,
        load.busy,
        steal,
        failure,
        figures,
    )


def run(
    command: Sequence[str | Path], seconds: float, report: Report
) -> tuple[Sequence[Figure], str]:
    """Return the figures that a command prints within a time limit, and why it failed, if so."""
    figures: list[Figure] = []
    began, rest, failure = time.monotonic(), b"", ""
    with TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # what it starts ends with it
        )
        assert process.stdout
        try:
            while not failure:
                elapsed = time.monotonic() - began
                report(f"{len(figures)} figures, {elapsed:.0f} s")
                if elapsed > seconds:
                    failure = f"it took longer than {seconds / 60:g} minutes"
                elif select([process.stdout], [], [], PROGRESS_SECONDS)[0]:
                    data = os.read(process.stdout.fileno(), 65_536)
                    if not data:
                        break
                    *lines, rest = (rest + data).split(b"\n")
                    figures += [from_json(line.decode()) for line in lines]
        except ValueError as error:
            failure = str(error)
        finally:
            if failure or sys.exc_info()[0]:
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            process.stdout.close()
        errors.seek(0)
        last = [line.strip() for line in errors if line.strip()][-1:]
    return figures, failure or ("".join(last) or f"exit code {code}" if code else "")


if __name__ == "__main__":
    sys.exit(main())
