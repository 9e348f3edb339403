"""Tables of the simulated rollout gates, from the counts that ``python -m bench.gates`` writes."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

_COUNTS = Path(__file__).parents[2] / "bench/gate-outcomes.csv"
_OURS = "tokenslo"
_VERDICTS = ("promote", "abort", "inconclusive")
HEAD = ("canary", "is", "canaries", "gate", "promoted", "aborted", "held", "minutes")
ERROR_HEAD = ("gate", "bad promoted", "good aborted")

_Row = dict[str, str]


@cache
def _rows() -> tuple[_Row, ...]:
    with _COUNTS.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def outcome_rows(*, every: bool) -> Iterator[tuple[str, ...]]:
    """Yield the shares of verdicts by canary and gate, of tokenslo's gates or of ``every`` gate."""
    for row in _rows():
        if every or row["gate"].startswith(_OURS):
            total = _total([row])
            shares = (f"{int(row[verdict]) / total:.1%}" for verdict in _VERDICTS)
            yield row["canary"], row["is"], f"{total:,}", row["gate"], *shares, row["minutes"]


def error_rows() -> Iterator[tuple[str, ...]]:
    """Yield the share of wrong verdicts of each gate, over all canaries."""
    for gate in dict.fromkeys(row["gate"] for row in _rows()):
        cells = []
        for kind, verdict in (("bad", "promote"), ("good", "abort")):
            rows = [row for row in _rows() if (row["gate"], row["is"]) == (gate, kind)]
            total = _total(rows)
            wrong = sum(int(row[verdict]) for row in rows)
            cells.append(f"{wrong / total:.2%} of {total:,}")
        yield gate, *cells


def _total(rows: Iterable[_Row]) -> int:
    return sum(int(row[verdict]) for row in rows for verdict in _VERDICTS)
