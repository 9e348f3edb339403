"""The columns of the table and the text of their cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.text import Text

from top.rows import Cell, ModelRow

Format = Callable[[float], str]
GAP = 1
DASH = "\N{EN DASH}"
"""Stands for an unavailable signal."""
_BAR = 4
_FULL, _HIGH = 0.9, 0.75
"""KV-cache utilization from which the bar is red, and yellow."""


@dataclass(frozen=True, slots=True)
class TopColumn:
    """A column of numbers; ``signal`` names it in the list of unavailable signals.

    The columns with the lowest ``rank`` stay on a narrow terminal.
    """

    key: str
    title: str
    signal: str
    width: int
    rank: int


COLUMNS = (
    TopColumn("requests", "REQ/S", "requests", 6, rank=3),
    TopColumn("tokens", "TOK/S", "output tokens", 6, rank=4),
    TopColumn("ttft_p50", "TTFT p50", "TTFT", 8, rank=10),
    TopColumn("ttft_p95", "TTFT p95", "TTFT", 8, rank=1),
    TopColumn("itl_p50", "ITL p50", "ITL", 7, rank=11),
    TopColumn("itl_p95", "ITL p95", "ITL", 7, rank=2),
    TopColumn("running", "RUN", "active sequences", 4, rank=6),
    TopColumn("maximum", "MAX", "maximum sequences", 4, rank=13),
    TopColumn("waiting", "WAIT", "waiting sequences", 4, rank=7),
    TopColumn("paused", "PAUSED", "paused sequences", 6, rank=12),
    TopColumn("kv", "KV CACHE", "KV-cache utilization", _BAR + 5, rank=5),
    TopColumn("disconnects", "DISC/S", "disconnects", 6, rank=8),
    TopColumn("objectives", "MISSED", "objectives", 6, rank=0),
)
_MAIN = [column for column in COLUMNS if column.rank < 10]
"""The columns that fit on 80 characters."""


def columns_for(width: int) -> list[TopColumn]:
    """Return the columns that fit into a width, in display order."""
    chosen: list[TopColumn] = []
    for column in sorted(COLUMNS, key=lambda column: column.rank):
        if total_width([*chosen, column]) > width:
            break
        chosen.append(column)
    return [column for column in COLUMNS if column in chosen]


def main_width() -> int:
    """Return the width of the columns that fit on 80 characters."""
    return total_width(_MAIN)


def total_width(columns: Sequence[TopColumn], gap: int = GAP) -> int:
    """Return the width of columns with a gap before each."""
    return sum(column.width + gap for column in columns)


def cell_text(column: TopColumn, row: ModelRow) -> Text:
    """Return the text of a cell, right-aligned in its column."""
    cell = row.cells[column.key]
    text, style = _content(column.key, cell, row)
    return Text(text.rjust(column.width), style)


def _content(key: str, cell: Cell, row: ModelRow) -> tuple[str, str]:
    match cell.state:
        case "unavailable":
            return DASH, "dim"
        case "idle":
            return "idle", "dim"
        case "collecting":
            return "…", "dim"
    mark = "~" if cell.estimate else ""
    if key == "objectives":
        return f"{cell.value:.0f}/{row.evaluated}", "bold red" if cell.value else "green"
    if key == "kv":
        return _kv(cell.value, mark)
    above = ">" if cell.state == "above" else ""
    style = "yellow" if key in ("waiting", "paused") and cell.value else ""
    return f"{mark}{above}{_FORMATS.get(key, rate)(cell.value)}", style


def _kv(share: float, mark: str) -> tuple[str, str]:
    filled = min(_BAR, max(0, round(share * _BAR)))
    color: Literal["red", "yellow", ""] = (
        "red" if share >= _FULL else "yellow" if share >= _HIGH else ""
    )
    return f"{'▇' * filled}{'▁' * (_BAR - filled)}{f'{mark}{share:.0%}':>5}", color


def seconds(value: float) -> str:
    """Write a duration in three digits: ``3.4 ms``, ``34 ms``, ``1.42 s``."""
    if value < 0.9995:
        return f"{value * 1000:.{0 if value >= 0.00995 else 1}f} ms"
    return f"{value:.3g} s" if value < 999.5 else f"{value / 60:.0f} min"


def rate(value: float) -> str:
    """Write a number in at most five characters: ``0.31``, ``25``, ``1.2k``."""
    if 0 < value < 0.01:
        return "<0.01"
    if value < 10:
        return f"{value:.2f}".rstrip("0").rstrip(".")
    for limit, unit in ((1e3, ""), (1e6, "k"), (1e9, "M"), (1e12, "G")):
        if value < limit * 0.9995:
            return f"{value * 1000 / limit:.3g}{unit}"
    return f"{value:.1e}"


def count(value: float) -> str:
    """Write a number of sequences in at most three characters: ``12``, ``12k``."""
    return f"{value:.0f}" if value < 999.5 else f"{value / 1000:.0f}k"


_FORMATS: dict[str, Format] = {
    **dict.fromkeys(("ttft_p50", "ttft_p95", "itl_p50", "itl_p95"), seconds),
    **dict.fromkeys(("running", "maximum", "waiting", "paused"), count),
}
