"""Simulate random canaries at the gates of tokenslo and those of the controllers' documentation.

Run ``python -m bench.gates [CANARIES]`` from the checkout; README.md explains the tables.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from statistics import NormalDist, median

import numpy as np

from bench.arguments import positive_integer
from bench.canaries import (
    EDGES,
    KINDS,
    MINUTE,
    SCRAPE,
    SIGMA,
    TARGET,
    THRESHOLD,
    Canary,
    Floats,
    canary_of,
)
from bench.generated_gates import (
    GATE,
    OURS,
    Outcome,
)
from gates.criteria import ShareCriterion
from gates.verdict import GateVerdict
from promql.histogram import histogram_quantile
from slos.text_table import text_table

CANARIES = 2_000
RESULT = Path(__file__).with_name("gate-outcomes.csv")
HEADS = ("canary", "is", "gate", *(verdict.value for verdict in GateVerdict), "minutes")


# Gates as the controllers' documentation shows them


def argo_success_rate(played: Canary) -> Outcome:
    """Argo Rollouts: `result[0] >= 0.95` of irate, five measurements a minute apart."""
    for measurement in range(1, 6):
        end = measurement * MINUTE // SCRAPE
        share = _good_share(played.canary[end - 1 : end])
        if not share >= float(TARGET):  # NaN fails as well
            return Outcome(GateVerdict.ABORT, measurement)
    return Outcome(GateVerdict.PROMOTE, 5)


def _flagger(passes: Callable[[Floats], bool], played: Canary) -> Outcome:
    """Flagger: one check a minute; five failed ones roll back, ten passed ones promote."""
    failed = 0
    for minute in range(1, 16):
        last = played.canary[(minute - 1) * MINUTE // SCRAPE : minute * MINUTE // SCRAPE]
        failed += not passes(last)
        if failed == 5:
            return Outcome(GateVerdict.ABORT, minute)
        if minute - failed == 10:
            return Outcome(GateVerdict.PROMOTE, minute)
    raise AssertionError


def flagger_success_rate(played: Canary) -> Outcome:
    """Flagger: request-success-rate, with the objective's target as the minimum."""
    return _flagger(lambda last: _good_share(last) >= float(TARGET), played)


P99_LIMIT = THRESHOLD * exp(
    SIGMA * (NormalDist().inv_cdf(0.99) - NormalDist().inv_cdf(float(TARGET)))
)
"""The 99th percentile of a service that just meets the objective."""


def flagger_duration(played: Canary) -> Outcome:
    """Flagger: request-duration, the p99 of one minute from histogram_quantile."""
    return _flagger(lambda last: _p99(last) <= P99_LIMIT, played)


def _p99(last: Floats) -> float:
    counts = np.cumsum(last.sum(axis=(0, 1)))
    if not counts[-1]:
        return float("nan")
    found = histogram_quantile(0.99, EDGES, list(counts))
    return min(found, EDGES[-2])


def _good_share(last: Floats) -> float:
    total = last.sum()
    return float(last[..., : EDGES.index(THRESHOLD) + 1].sum() / total) if total else float("nan")


GATES: Mapping[str, Callable[[Canary], Outcome]] = {
    **OURS,
    "Argo success-rate": argo_success_rate,
    "Flagger success-rate": flagger_success_rate,
    "Flagger p99": flagger_duration,
}


# Tables


@dataclass(frozen=True, slots=True)
class GateOutcomes:
    """Outcomes of one gate on the canaries of one kind that are bad, or on those that are not."""

    kind: str
    bad: bool
    gate: str
    outcomes: Sequence[Outcome]

    def share(self, verdict: GateVerdict) -> float:
        """Return the share of a verdict."""
        return sum(each.verdict is verdict for each in self.outcomes) / len(self.outcomes)


def simulate(canaries: int = CANARIES, seed: int = 1) -> list[GateOutcomes]:
    """Play the canaries of every kind before every gate."""
    (margin,) = (
        float(each.margin)
        for each in GATE.criteria
        if isinstance(each, ShareCriterion) and each.budget is not None
    )
    rows = []
    for kind in KINDS:
        random = np.random.default_rng(seed)
        outcomes: dict[tuple[bool, str], list[Outcome]] = defaultdict(list)
        for _ in range(canaries):
            played = canary_of(kind, random, margin)
            for name, gate in GATES.items():
                outcomes[played.bad, name].append(gate(played))
        rows += [
            GateOutcomes(kind.name, bad, name, outcomes[bad, name])
            for bad in (False, True)
            for name in GATES
            if outcomes[bad, name]
        ]
    return rows


def wrong(rows: Sequence[GateOutcomes], gate: str, *, bad: bool) -> float:
    """Return the share of bad canaries that a gate promotes, or of good ones that it aborts."""
    outcomes = tuple(
        outcome for row in rows if row.gate == gate and row.bad is bad for outcome in row.outcomes
    )
    verdict = GateVerdict.PROMOTE if bad else GateVerdict.ABORT
    return GateOutcomes("", bad, gate, outcomes).share(verdict)


def table(rows: Sequence[GateOutcomes]) -> list[tuple[str, ...]]:
    """Return the cells of the table: counts of verdicts, and the median minutes to the verdict."""
    lines: list[tuple[str, ...]] = [HEADS]
    for row in rows:
        counts = (sum(each.verdict is verdict for each in row.outcomes) for verdict in GateVerdict)
        minutes = f"{median(each.minutes for each in row.outcomes):.0f}"
        cells = (row.kind, "bad" if row.bad else "good", row.gate, *map(str, counts), minutes)
        lines.append(cells)
    return lines


def main(*arguments: str) -> None:
    """Print the table, and write it for the documentation if it has all canaries."""
    canaries = positive_integer(arguments[0], "CANARIES") if arguments else CANARIES
    lines = table(simulate(canaries))
    for line in text_table(lines, right=range(3, len(HEADS))):
        print(line)
    if canaries == CANARIES:
        with RESULT.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
