"""Results of benches on disk: one JSON file per bench."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.figures import Figure, as_json, from_json


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The figures of one bench, and the conditions under which they were measured.

    ``began`` is UTC; ``load_average`` and ``busy_before`` are those of other processes before the
    bench; ``steal`` is the share of CPU time that the hypervisor took away during it; ``failure``
    is empty if the bench ran to its end.
    """

    bench: str
    long: bool
    revision: str
    machine: Mapping[str, str]
    began: str
    seconds: float
    load_average: float
    busy_before: float
    steal: float
    failure: str
    figures: Sequence[Figure]

    def is_current(self, revision: str, *, long: bool) -> bool:
        """Whether it is complete, of this unchanged revision and of the same length."""
        same = (self.revision, self.long) == (revision, long)
        return same and not self.failure and not revision.endswith("+")


def write(folder: Path, result: BenchResult) -> None:
    """Write a result, replacing an older one at once."""
    folder.mkdir(parents=True, exist_ok=True)
    content = asdict(result) | {"figures": [json.loads(as_json(each)) for each in result.figures]}
    partial = folder / f"{result.bench}.partial"
    partial.write_text(json.dumps(content, indent=1) + "\n")
    partial.rename(folder / f"{result.bench}.json")


def read(folder: Path, bench: str) -> BenchResult | None:
    """Return the result of a bench, if any; raises ValueError for a file that is none."""
    path = folder / f"{bench}.json"
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        figures = [from_json(json.dumps(each)) for each in content.pop("figures")]
        return BenchResult(figures=figures, **content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: not a result of this version ({error!r}); delete it to measure again"
        ) from error
