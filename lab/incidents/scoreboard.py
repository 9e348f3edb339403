"""Play incidents over seeds, keep their results, and write the page of scores.

``make incidents`` runs it.  Runs with a result are not played again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from lab.incidents.catalogue import CATALOGUE
from lab.incidents.result import IncidentResult, read_result
from lab.incidents.score_page import render
from lab.incidents.seeds import HELD_OUT_SEEDS, TUNING_SEEDS
from lab.incidents.stored_results import (
    HELD_OUT,
    TUNING,
    SeedKind,
    StoredResult,
    machine,
    read,
    result_file,
    revision,
    write,
)

_CHECKOUT = Path(__file__).parents[2]
_PAGE = _CHECKOUT / "docs/reference/incident-scores.md"
_RESULTS = _CHECKOUT / "incident-results"
_JOBS = 3


class PlayError(Exception):
    """A run without a result."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run to play: an incident, a seed and its kind."""

    incident: str
    seed: int
    kind: SeedKind


def planned_runs(
    incidents: Iterable[str], tuning: Sequence[int], held_out: Sequence[int], results: Path
) -> Iterator[PlannedRun]:
    """Yield the runs without a result, seed by seed.

    Raises ValueError for a held-out seed that was used while tuning, for any incident.
    """
    used = {*TUNING_SEEDS, *tuning} | {
        each.result.seed for each in read(results) if each.kind == TUNING
    }
    if both := used.intersection(held_out):
        raise ValueError(f"seed {min(both)} was used while tuning, so it cannot be held out")
    for seed in (*held_out, *tuning):
        kind = HELD_OUT if seed in held_out else TUNING
        for incident in incidents:
            if not result_file(results, incident, seed).exists():
                yield PlannedRun(incident, seed, kind)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what has no result, and write the page; return the number of failed runs, at most 1."""
    parser = ArgumentParser(prog="python -m lab.incidents.scoreboard", description=__doc__)
    parser.add_argument(
        "--incidents", type=_incidents, default=tuple(CATALOGUE), help="such as kv-pressure,healthy"
    )
    parser.add_argument("--held-out", type=_seeds, default=HELD_OUT_SEEDS, help="such as 400-404")
    parser.add_argument("--tuning", type=_seeds, default=(), help="such as 0-2")
    parser.add_argument("--jobs", type=int, default=_JOBS, help="runs at the same time")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="folder of results")
    parser.add_argument("--page", type=Path, default=_PAGE, help="the page to write")
    given = parser.parse_args(arguments)
    try:
        runs = [*planned_runs(given.incidents, given.tuning, given.held_out, given.results)]
        failed = _play_all(runs, given.results, given.jobs)
        given.page.write_text(render(CATALOGUE.values(), read(given.results)))
    except ValueError as error:
        parser.error(str(error))
    return min(failed, 1)


def _play_all(runs: Sequence[PlannedRun], results: Path, jobs: int) -> int:
    """Play runs in parallel and keep each result; return how many failed."""
    failed, stamp = 0, (machine(), revision())
    with ThreadPoolExecutor(jobs) as threads:
        playing = {threads.submit(_play, run): run for run in runs}
        try:
            for number, future in enumerate(as_completed(playing), 1):
                run, state = playing[future], "done"
                try:
                    write(results, StoredResult(run.kind, *stamp, future.result()))
                except PlayError as error:
                    failed, state = failed + 1, f"failed: {error}"
                print(f"{number}/{len(runs)} {run.incident}, seed {run.seed}: {state}", flush=True)
        finally:
            threads.shutdown(cancel_futures=True)
    return failed


def _play(run: PlannedRun) -> IncidentResult:
    """Play in a child process, so that no client's measurement waits for another run."""
    command = [sys.executable, "-m", f"{__package__}", run.incident, f"--seed={run.seed}", "--one"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise PlayError(done.stderr.strip() or f"exit code {done.returncode}")
    return read_result(json.loads(done.stdout))


def _incidents(text: str) -> tuple[str, ...]:
    keys = tuple(text.split(","))
    if unknown := [key for key in keys if key not in CATALOGUE]:
        raise ArgumentTypeError(f"no incident {unknown[0]}; there are {', '.join(CATALOGUE)}")
    return keys


def _seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of ``3``, ``0-2`` or ``0,5-7``."""
    seeds: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not (first.isdigit() and (last.isdigit() or not last)):
            raise ArgumentTypeError(f"{part!r} is no seed and no range of seeds, such as 400-404")
        seeds += range(int(first), int(last or first) + 1)
    return tuple(seeds)


if __name__ == "__main__":
    sys.exit(main())
