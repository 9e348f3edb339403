"""The simulation of rollout gates: its canaries, and the verdicts of the gates on them."""

from __future__ import annotations

import csv
from math import sqrt

import numpy as np
import pytest
import yaml

from bench.canaries import KINDS, MINUTE, SCRAPE, STEPS, Kind, canary_of
from bench.gates import GATES, HEADS, RESULT, simulate, table, wrong
from bench.generated_gates import GATE, OURS, argo_analysis, flagger_canary
from gates import manifests
from gates.verdict import GateVerdict
from slos.durations import parse_duration

MARGIN = 0.0125
BAD_PROMOTED, GOOD_ABORTED = 0.01, 0.02
"""The highest shares of wrong verdicts that the gates may have."""


@pytest.fixture(scope="module")
def rows():
    return simulate(30)


def published() -> list[tuple[str, ...]]:
    """Return the table that the documentation shows."""
    with RESULT.open(encoding="utf-8", newline="") as file:
        return [tuple(row) for row in csv.reader(file)]


def test_published_errors_are_within_the_limits():
    shares = {(gate, bad): [0, 0] for gate in GATES for bad in ("bad", "good")}
    for _, bad, gate, promoted, aborted, held, _ in published()[1:]:
        share = shares[gate, bad]
        share[0] += int(promoted if bad == "bad" else aborted)
        share[1] += int(promoted) + int(aborted) + int(held)
    for (gate, bad), (wrong_verdicts, canaries) in shares.items():
        limit = BAD_PROMOTED if bad == "bad" else GOOD_ABORTED
        assert (wrong_verdicts / canaries <= limit) == (gate in OURS), (gate, bad)


def test_published_counts_contain_those_of_the_first_canaries(rows):
    """The same seed draws the same canaries: a few of them are the first of the published run."""
    counts = {row[:3]: tuple(map(int, row[3:6])) for row in published()[1:]}
    for line, row in zip(table(rows)[1:], rows, strict=True):
        all_of_them, few = counts[line[:3]], tuple(map(int, line[3:6]))
        total, size = sum(all_of_them), len(row.outcomes)
        for whole, part in zip(all_of_them, few, strict=True):
            share = whole / total
            assert part <= whole, line
            error = 4 * sqrt(share * (1 - share) / size) + 1 / size
            assert abs(part / size - share) <= error, (line, all_of_them)


@pytest.mark.long
def test_a_new_run_writes_the_published_table():
    assert table(simulate()) == published()
    assert published()[0] == HEADS


def test_the_gate_makes_no_error_on_a_few_canaries_of_each_kind(rows):
    assert {row.kind for row in rows} == {kind.name for kind in KINDS}
    for gate in OURS:
        assert wrong(rows, gate, bad=True) == wrong(rows, gate, bad=False) == 0, gate


def test_naive_gates_abort_without_traffic(rows):
    without = {row.gate: row for row in rows if row.kind == "no traffic"}
    for gate in GATES:
        expected = GateVerdict.INCONCLUSIVE if gate in OURS else GateVerdict.ABORT
        assert without[gate].share(expected) == 1


def test_the_table_has_a_line_for_each_gate(rows):
    lines = list(table(rows))
    assert sum("tokenslo gate" in line for line in lines) >= len(KINDS)


@pytest.mark.parametrize(("factor", "bad"), [(1.0, False), (1.1, False), (6.0, True)])
def test_a_canary_is_bad_beyond_the_margin(factor: float, bad: bool):
    random = np.random.default_rng(3)
    assert canary_of(Kind("any", factor), random, MARGIN).bad is bad


def test_a_canary_gets_its_weight_of_the_requests():
    played = canary_of(Kind("any", weight=0.1), np.random.default_rng(3), MARGIN)
    share = played.canary.sum() / (played.canary.sum() + played.baseline.sum())
    assert share == pytest.approx(0.1, rel=0.1)


@pytest.fixture(scope="module")
def objects():
    """Return the objects of the simulated gate, read from their generated files."""
    files = manifests.files(GATE.plan, source="slo.yaml", version="1")
    return {path: yaml.safe_load(text) for path, text in files.items() if "flagger." not in path}


def minutes(duration: str) -> float:
    return float(parse_duration(duration)) / MINUTE


def played(kind: Kind):
    return canary_of(kind, np.random.default_rng(3), MARGIN)


WORSE, NONE, COLD = Kind("any", 6.0), Kind("any", traffic=False), Kind("any", weight=0.5, cold=True)


def test_an_analysis_aborts_early_and_is_inconclusive_at_its_end(objects):
    template = objects["rollouts/chat.argo.yaml"]
    metric = template["spec"]["metrics"][0]
    first, between = minutes(metric["initialDelay"]), minutes(metric["interval"])
    aborted, held = (argo_analysis(template, played(kind)) for kind in (WORSE, NONE))
    assert (aborted.verdict, aborted.minutes) == (GateVerdict.ABORT, first)
    last = first + between * (metric["count"] - 1)
    assert (held.verdict, held.minutes) == (GateVerdict.INCONCLUSIVE, last)
    assert GATES["tokenslo for Argo"](played(NONE)) == held
    for each in template["spec"]["metrics"]:
        each["inconclusiveLimit"] = 0
    assert argo_analysis(template, played(NONE)).minutes == first


def test_a_flagger_canary_aborts_at_its_threshold_and_not_for_its_warm_up(objects):
    part = objects["rollouts/chat.flagger-canary.yaml"]
    analysis = part["analysis"]
    interval = minutes(analysis["interval"])
    aborted = flagger_canary(part, played(WORSE))
    assert aborted.verdict is GateVerdict.ABORT
    assert aborted.minutes == analysis["threshold"] * interval
    assert GATES["tokenslo for Flagger"](played(WORSE)) == aborted
    assert flagger_canary(part, played(COLD)).verdict is not GateVerdict.ABORT
    analysis["interval"] = "5m"
    assert flagger_canary(part, played(COLD)).verdict is GateVerdict.ABORT
    assert 10 * interval <= STEPS * SCRAPE / MINUTE
