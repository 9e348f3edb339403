"""Write the page of the fault matrix: a table and the expectations of each family."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from lab.faults.fault import Fault, Loss
from lab.faults.stored_rows import MatrixRow

BUSY = 0.05
"""Share of the cores by other processes from which the page mentions them."""
_TEMPLATE = Path(__file__).with_suffix(".md")
_HEADER = ("fault", "what was done", "what was lost", "how it recovered", "in", "limit", "result")


def render(catalogue: Iterable[Fault], rows: Iterable[MatrixRow]) -> str:
    """Return the page; faults without a row are listed as missing."""
    faults = list(catalogue)
    known = {fault.key for fault in faults}
    found = {row.fault: row for row in rows if row.fault in known}
    tables: list[str] = []
    for family, each in groupby(faults, key=lambda fault: fault.family):
        tables += _family(family, [fault for fault in each if fault.key in found], found)
    return _TEMPLATE.read_text().format(
        run="\n\n".join(_run(faults, found)), tables="\n".join(tables)
    )


def _run(faults: Sequence[Fault], found: Mapping[str, MatrixRow]) -> Iterator[str]:
    rows = list(found.values())
    if not rows:
        yield "No fault has been run."
        return
    results = [found[fault.key].result(fault) for fault in faults if fault.key in found]
    passed, failed = results.count("passed"), results.count("failed")
    yield f"{passed} of {passed + failed} rows passed."
    dates = sorted({row.date[:10] for row in rows})
    for name, values in (
        ("Date", dates),
        ("Machine", sorted({row.machine for row in rows})),
        ("Revision", sorted({row.revision for row in rows})),
    ):
        yield f"{name}: {'; '.join(values)}."
    minutes = sum(row.wall_seconds for row in rows) / 60
    shares = [row.other_cpu for row in rows]
    yield f"All rows together took {minutes:.0f} minutes. {_other_work(shares)}"
    if missing := [fault.key for fault in faults if fault.key not in found]:
        yield f"Without a result: {', '.join(missing)}."


def _other_work(shares: Sequence[float]) -> str:
    most = max(shares)
    if most < BUSY:
        return "Nothing else ran on the machine."
    mean = sum(shares) / len(shares)
    return (
        f"Other work shared the machine: it used {mean:.0%} of the cores on average, and up to "
        f"{most:.0%} during a row, so an idle machine is faster."
    )


def _family(title: str, faults: Sequence[Fault], found: Mapping[str, MatrixRow]) -> Iterator[str]:
    if not faults:
        return
    yield f"## {title}\n"
    rows = [_HEADER, ["---"] * len(_HEADER), *(_row(fault, found[fault.key]) for fault in faults)]
    yield "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"
    lines = []
    for fault in faults:
        row = found[fault.key]
        if row.effect and row.effect.expectations:
            measured = "; ".join(each.text for each in row.effect.expectations)
            others = f" (other work: {row.other_cpu:.0%} of the cores)"
            busy = others if row.other_cpu >= BUSY else ""
            lines.append(f"- `{fault.key}`{busy}: {measured}.")
    if lines:
        yield "Measured:\n"
        yield "\n".join(lines) + "\n"


def _row(fault: Fault, row: MatrixRow) -> list[str]:
    result: str = row.result(fault)
    if problems := row.problems(fault):
        result = f"**failed**: {'; '.join(problems)}"
    elif row.unavailable:
        result = f"not run: {row.unavailable}"
    limit = f"{fault.recovers_within:g} s"
    first = f"`{fault.key}`: {fault.title}"
    if not row.effect:
        return [first, "", "", "", "", limit, _cell(result)]
    effect = row.effect
    lost = "; ".join(map(_loss, effect.losses)) or "nothing"
    cells = (effect.injected, lost, effect.recovery, f"{effect.seconds:.1f} s", limit, result)
    return [first, *map(_cell, cells)]


def _loss(loss: Loss) -> str:
    if not loss.count:
        return f"0 {loss.what}"
    text = f"{loss.count:,} {loss.what}"
    if loss.counter:
        counted = "all" if loss.counted == loss.count else f"{loss.counted:,}"
        text += f", {counted} in `{loss.counter}`"
    if loss.uncounted and loss.reason:
        text += f", in no counter: {loss.reason}"
    return text


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")
