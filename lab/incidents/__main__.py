"""Play incidents: ``python -m lab.incidents [KEY…] [--seed N]… [--jobs N] [--json FILE]``.

Each run is a process of its own, so that its clients' measurements do not wait for other runs.
Ctrl-C stops all of them and their servers.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from lab.incidents.catalogue import CATALOGUE
from lab.incidents.play import play
from lab.incidents.result import IncidentResult, read_result
from lab.process import ServerError
from lab.toolchain import InstallError, UnavailableProgram

_CONSOLE = Console(stderr=True)


def main() -> int:
    """Play the incidents and print or write their results."""
    given = _arguments()
    if given.one:
        return _play_here(given.keys[0], given.seeds[0])
    results, failed = [], 0
    runs = [(key, seed) for seed in given.seeds for key in given.keys]
    for number, (key, seed, result) in enumerate(_play_all(runs, given.jobs), 1):
        head = f"[dim]{number}/{len(runs)}[/dim] {key}, seed {seed}:"
        if isinstance(result, str):
            failed += 1
            _CONSOLE.print(head, "[red]failed[/red]", result, highlight=False)
            continue
        results.append(result)
        _CONSOLE.print(head, _summary(result), highlight=False)
    text = json.dumps([result.json() for result in results], indent=1)
    if given.json == "-":
        print(text)
    elif given.json:
        Path(given.json).write_text(text + "\n")
    return 1 if failed else 0


def _arguments() -> Namespace:
    parser = ArgumentParser(prog="python -m lab.incidents", description="Play incidents.")
    parser.add_argument(
        "keys", nargs="*", metavar="KEY", help=f"Incidents: {', '.join(CATALOGUE)}; default: all."
    )
    parser.add_argument(
        "--seed", dest="seeds", type=int, action="append", help="Seed; repeatable. Default: 0."
    )
    parser.add_argument("--jobs", type=int, default=1, help="Runs at once. Default: 1.")
    parser.add_argument("--json", metavar="FILE", help="Write results as JSON; - prints them.")
    parser.add_argument(
        "--one", action="store_true", help="Play one run in this process and print its result."
    )
    given = parser.parse_args()
    unknown = [key for key in given.keys if key not in CATALOGUE]
    if unknown:
        parser.error(f"{unknown[0]} is no incident; choose from {', '.join(CATALOGUE)}")
    given.keys, given.seeds = given.keys or [*CATALOGUE], given.seeds or [0]
    return given


def _play_all(
    runs: list[tuple[str, int]], jobs: int
) -> Iterator[tuple[str, int, IncidentResult | str]]:
    """Yield the results of runs as they end; a failed run yields its message."""
    processes: list[subprocess.Popen[str]] = []
    with ThreadPoolExecutor(jobs) as threads:
        waiting = {threads.submit(_play_there, *run, processes): run for run in runs}
        try:
            for done in as_completed(waiting):
                yield *waiting[done], done.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()


def _play_there(
    key: str, seed: int, processes: list[subprocess.Popen[str]]
) -> IncidentResult | str:
    """Play in a child process; Ctrl-C in the terminal reaches it as well."""
    command = [sys.executable, "-m", f"{__package__}", key, f"--seed={seed}", "--one"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        processes.append(process)
        output, errors = process.communicate()
        processes.remove(process)
    if process.returncode:
        return errors.strip() or f"exit code {process.returncode}"
    return read_result(json.loads(output))


def _play_here(key: str, seed: int) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop_once)

    def progress(text: str) -> None:
        if _CONSOLE.is_terminal:
            _CONSOLE.print(f"[dim]·[/dim] {text}", highlight=False)

    with TemporaryDirectory(prefix=f"{key}-") as folder:
        try:
            result = play(CATALOGUE[key], seed, Path(folder) / "run", progress=progress)
        except (UnavailableProgram, InstallError, ServerError) as error:
            print(error, file=sys.stderr)
            return 2
    print(json.dumps(result.json()))
    return 0


def _stop_once(*_: object) -> None:
    """Stop the servers; further signals must not interrupt that."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _summary(result: IncidentResult) -> str:
    """Return the first page and what was missed, by column."""
    columns = []
    for column, each in result.columns.items():
        first = min((alert.seconds for alert in each.pages), default=None)
        page = "no page" if first is None else f"page after {first:g} s"
        missed = f", missed {', '.join(each.missed)}" if each.missed else ""
        columns.append(f"{column} {page}{missed}")
    return f"{'; '.join(columns)} ({result.wall_seconds:g} s)"


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
