"""Results of faults on disk: one JSON file per fault."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lab.faults.fault import Fault, FaultEffect, failures, read_effect

RowResult = Literal["passed", "failed", "not run"]


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """The result of one fault: its effect, or the reason why there is none.

    ``error`` is that of a fault whose servers or clients did not get to an end, ``unavailable`` the
    reason why this platform cannot run it.  ``other_cpu`` is the share of all cores that other
    processes of the machine used meanwhile.
    """

    fault: str
    date: str
    machine: str
    revision: str
    wall_seconds: float
    other_cpu: float
    effect: FaultEffect | None = None
    error: str = ""
    unavailable: str = ""

    def problems(self, fault: Fault) -> tuple[str, ...]:
        """Return the violated expectations, or the error."""
        if self.effect:
            return tuple(failures(fault, self.effect))
        return (self.error,) if self.error else ()

    def result(self, fault: Fault) -> RowResult:
        """Return the verdict."""
        if self.unavailable:
            return "not run"
        return "failed" if self.problems(fault) else "passed"


def write_row(folder: Path, row: MatrixRow) -> None:
    """Write a row, replacing an older one at once."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{row.fault}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(row), indent=1) + "\n")
    partial.rename(path)


def read_rows(folder: Path) -> Iterator[MatrixRow]:
    """Yield the rows; raises ValueError for a file that is none."""
    for path in sorted(folder.glob("*.json")):
        try:
            content: Mapping[str, Any] = json.loads(path.read_text())
            effect = content["effect"]
            yield MatrixRow(**{**content, "effect": read_effect(effect) if effect else None})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: is no result of this version ({error!r}); delete it to run the fault "
                "again"
            ) from error
