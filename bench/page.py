"""Write the page of benchmarks: conditions, ratios to peers, and growth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import floor, log10
from pathlib import Path
from statistics import median

from bench.conditions import CHECKOUT
from bench.figures import (
    CONFIDENCE,
    LEAST_ROUNDS,
    LINEAR,
    MOST_SPREAD,
    Figure,
    GrowthCurve,
    MedianInterval,
    MissingPeer,
    PeerComparison,
)
from bench.results import BenchResult
from bench.run import BenchEntry

NOT_MEASURED = "not measured here"
_TEMPLATE = Path(__file__).with_suffix(".md")
_COMPARED = ("measured", "peer", "tokenslo", "peer's", "ratio", "interval", "spread", "target")
_MOST_REASON = 300


def render(entries: Mapping[str, BenchEntry], results: Iterable[BenchResult | None]) -> str:
    """Return the page; benches without a result are listed as not measured."""
    found = {result.bench: result for result in results if result}
    parts = [
        *_conditions(list(found.values())),
        *_runs(entries, found),
        *_targets(entries, found),
    ]
    for name, entry in entries.items():
        parts += [f"## {entry.title}\n", f"{entry.text}\n", *_section(name, found.get(name))]
    return _TEMPLATE.read_text().format(
        tables="\n".join(parts),
        confidence=f"{CONFIDENCE:.0%}".replace("%", " %"),
        rounds=LEAST_ROUNDS,
        spread=f"{MOST_SPREAD:.0%}".replace("%", " %"),
        linear=LINEAR,
    )


def _conditions(results: Sequence[BenchResult]) -> Iterator[str]:
    yield "## Machine\n"
    machines = _machines(results)
    if not machines:
        yield f"{NOT_MEASURED.capitalize()}: no bench was run.\n"
        return
    for number, machine in enumerate(machines, 1):
        value = f"machine {number}" if len(machines) > 1 else "value"
        yield _table(("fact", value), list(machine.items()))


def _machines(results: Iterable[BenchResult]) -> list[Mapping[str, str]]:
    """Return the different machines of results."""
    return list({tuple(result.machine.items()): result.machine for result in results}.values())


def _runs(entries: Mapping[str, BenchEntry], found: Mapping[str, BenchResult]) -> Iterator[str]:
    yield "## Runs\n"
    yield (
        "Times are UTC. Load average and busy CPU are those of other processes before the bench "
        "(the load average includes the bench before); steal is the share of CPU time that the "
        "hypervisor took away during it.\n"
    )
    machines = _machines(found.values())
    rows = []
    for name in entries:
        result = found.get(name)
        if not result:
            rows.append([f"`{name}`", NOT_MEASURED, *[""] * 6])
            continue
        rows.append(
            [
                f"`{name}`",
                result.began,
                f"{result.seconds:.0f} s",
                f"{result.load_average:.2f}",
                _percent(result.busy_before),
                _percent(result.steal, digits=1),
                f"{result.revision}{', long' if result.long else ''}",
                f"failed: {_reason(result.failure)}" if result.failure else "complete",
            ]
        )
        if len(machines) > 1:
            rows[-1][-1] += f" on machine {machines.index(result.machine) + 1}"
    head = ("bench", "began", "took", "load average", "busy before", "steal", "commit", "result")
    yield _table(head, rows)


def _targets(entries: Mapping[str, BenchEntry], found: Mapping[str, BenchResult]) -> Iterator[str]:
    """Yield the verdicts of all comparisons with a target, by bench."""
    rows = []
    for name in entries:
        result = found.get(name)
        verdicts = [
            figure.verdict
            for figure in (result.figures if result else ())
            if isinstance(figure, PeerComparison) and figure.target is not None
        ]
        if verdicts:
            counts = [verdicts.count(each) for each in ("met", "missed", "undecided")]
            rows.append([f"`{name}`", *map(str, counts)])
    if rows:
        yield "## Targets\n"
        yield _table(("bench", "met", "missed", "undecided"), rows)


def _section(name: str, result: BenchResult | None) -> Iterator[str]:
    if not result:
        yield f"{NOT_MEASURED.capitalize()}: run `make bench BENCHES={name}`.\n"
        return
    compared = [each for each in result.figures if not isinstance(each, GrowthCurve)]
    rows = [_compared(each) for each in compared]
    if result.failure:
        rows.append([f"failed: {_reason(result.failure)}", *[""] * (len(_COMPARED) - 1)])
    if rows:
        yield _table(_COMPARED, rows)
    for curve in result.figures:
        if isinstance(curve, GrowthCurve):
            yield from _growth(curve)


def _compared(figure: Figure) -> list[str]:
    if isinstance(figure, MissingPeer):
        reason = f"{NOT_MEASURED}: {_reason(figure.reason)}"
        return [figure.subject, figure.peer, reason, *[""] * (len(_COMPARED) - 3)]
    assert isinstance(figure, PeerComparison)
    ours, theirs = (
        f"{number(median(each))} {figure.unit}".strip() for each in (figure.ours, figure.theirs)
    )
    ratio = figure.ratio
    interval = "exact" if figure.exact else f"{number(ratio.low)} to {number(ratio.high)}"
    return [
        figure.subject,
        figure.peer,
        ours,
        theirs,
        number(ratio.median),
        interval,
        _spread(figure, ratio),
        _target(figure),
    ]


def _spread(figure: PeerComparison, ratio: MedianInterval) -> str:
    if figure.exact:
        return ""
    if ratio.rounds == 1:
        return "one round"
    text = f"{_percent(ratio.spread)}, {ratio.rounds} rounds"
    return text if figure.settled else f"{text}: **not settled**"


def _target(figure: PeerComparison) -> str:
    if figure.target is None:
        return ""
    verdict = figure.verdict
    shown = f"**{verdict}**" if verdict == "missed" else verdict
    return f"≤ {number(figure.target)}: {shown}"


def _growth(curve: GrowthCurve) -> Iterator[str]:
    yield f"**{curve.subject[0].upper()}{curve.subject[1:]}**: {_slope(curve)}.\n"
    steps = [
        "",
        *(f"{step.median:.2f} ({step.low:.2f} to {step.high:.2f})" for step in curve.steps),
    ]
    rows = [
        [f"{size:,}", number(median(costs)), step]
        for size, costs, step in zip(curve.sizes, curve.costs, steps, strict=True)
    ]
    yield _table((curve.size, curve.unit, "exponent"), rows)


def _slope(curve: GrowthCurve) -> str:
    slope = curve.slope
    verdict = curve.verdict
    shown = f"**{verdict}**" if verdict.startswith("superlinear") else verdict
    return f"slope {slope.median:.2f}, {shown}"


def number(value: float) -> str:
    """Return a number with at least three significant digits and no exponent."""
    digits = max(0, 2 - floor(log10(abs(value)))) if value else 0
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def _reason(text: str) -> str:
    """Return an error as one cell of a table, without paths of this machine."""
    line = " ".join(text.replace(f"{CHECKOUT}/", "").split()).replace("|", "\\|")
    return line if len(line) <= _MOST_REASON else f"{line[:_MOST_REASON]}…"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
