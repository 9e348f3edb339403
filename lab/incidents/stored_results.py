"""Results of runs on disk: one JSON file per incident and seed."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lab.incidents.result import IncidentResult, read_result

SeedKind = Literal["held out", "tuning"]
HELD_OUT: SeedKind = "held out"
TUNING: SeedKind = "tuning"

_CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A result with the kind of its seed, the machine, and the revision of the code."""

    kind: SeedKind
    machine: str
    revision: str
    result: IncidentResult


def result_file(folder: Path, incident: str, seed: int) -> Path:
    """Return the path of a run's result."""
    return folder / incident / f"{seed}.json"


def write(folder: Path, stored: StoredResult) -> None:
    """Write a result, replacing an older one at once."""
    path = result_file(folder, stored.result.incident, stored.result.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    content = {
        "kind": stored.kind,
        "machine": stored.machine,
        "revision": stored.revision,
        "result": stored.result.json(),
    }
    partial.write_text(json.dumps(content, indent=1) + "\n")
    partial.rename(path)


def read(folder: Path) -> Iterator[StoredResult]:
    """Yield the results, by incident and seed; raises ValueError for a file that is none."""
    for path in sorted(
        folder.glob("*/*.json"), key=lambda path: (path.parent, len(path.stem), path.stem)
    ):
        try:
            content = json.loads(path.read_text())
            result = read_result(content.pop("result"))
            yield StoredResult(result=result, **content)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: is no result of this version ({error!r}); delete it to play the run again"
            ) from error


def machine() -> str:
    """Describe this machine: processors, memory, Python."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    gibibytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {model}, {gibibytes:.0f} GiB, Python {platform.python_version()}"


def revision() -> str:
    """Return the commit of the checkout, with a plus sign if files have changed."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=10"]
    done = subprocess.run(command, cwd=_CHECKOUT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
