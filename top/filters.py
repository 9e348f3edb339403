"""Sort and filter the rows of all sidecars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from top.rows import ModelRow

SORTS = (
    "objectives",
    "model",
    "sidecar",
    "requests",
    "tokens",
    "ttft_p95",
    "itl_p95",
    "running",
    "waiting",
    "kv",
    "disconnects",
)
"""What rows may be sorted by, in the order of the key; names ascend, numbers descend."""
NAMES = ("model", "sidecar")


def _active(row: ModelRow) -> bool:
    cells = (row.cells[key] for key in ("requests", "tokens", "running", "waiting"))
    return any(cell.state == "value" and cell.value > 0 for cell in cells)


def _unavailable(row: ModelRow) -> bool:
    return any(cell.state == "unavailable" for cell in row.cells.values())


FILTERS: Mapping[str, Callable[[ModelRow], bool]] = {
    "all": lambda _: True,
    "active": _active,
    "missed": lambda row: bool(row.missed),
    "unavailable": _unavailable,
}
"""Which rows are shown, in the order of the key."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Order and filter of the rows, the first row shown, and whether reasons are shown."""

    sort: str = "objectives"
    reverse: bool = False
    filter: str = "all"
    reasons: bool = False
    first: int = 0


def following(value: str, values: Iterable[str]) -> str:
    """Return the value after this one, the first after the last."""
    ordered = list(values)
    return ordered[(ordered.index(value) + 1) % len(ordered)]


def select(rows: Iterable[ModelRow], selection: Selection) -> Sequence[ModelRow]:
    """Return the rows that the filter accepts, sorted; missing values come last either way."""
    shown = [row for row in rows if FILTERS[selection.filter](row)]
    shown.sort(key=lambda row: (row.name, row.sidecar))
    key = selection.sort
    if key in NAMES:
        return sorted(shown, key=lambda row: getattr(row, key), reverse=selection.reverse)
    sign = 1 if selection.reverse else -1

    def rank(row: ModelRow) -> tuple[bool, float]:
        cell = row.cells[key]
        present = cell.state in ("value", "above")
        return not present, sign * cell.value if present else 0.0

    return sorted(shown, key=rank)
