"""The simulation of rollout gates: its canaries, and the verdicts of the gates on them."""

from __future__ import annotations

import numpy as np
import pytest

from bench.gates import GATES, KINDS, Kind, canary_of, simulate, table, wrong
from gates.verdict import GateVerdict

MARGIN = 0.0125


@pytest.fixture(scope="module")
def rows():
    return simulate(8)


def test_the_gate_makes_no_error_on_a_few_canaries_of_each_kind(rows):
    assert {row.kind for row in rows} == {kind.name for kind in KINDS}
    assert wrong(rows, "tokenslo gate", bad=True) == wrong(rows, "tokenslo gate", bad=False) == 0


def test_naive_gates_abort_without_traffic(rows):
    without = {row.gate: row for row in rows if row.kind == "no traffic"}
    for gate in GATES:
        expected = GateVerdict.INCONCLUSIVE if gate == "tokenslo gate" else GateVerdict.ABORT
        assert without[gate].share(expected) == 1


def test_the_table_has_a_line_for_each_gate(rows):
    lines = list(table(rows))
    assert sum("tokenslo gate" in line for line in lines) >= len(KINDS) + 1


@pytest.mark.parametrize(("factor", "bad"), [(1.0, False), (1.1, False), (6.0, True)])
def test_a_canary_is_bad_beyond_the_margin(factor: float, bad: bool):
    random = np.random.default_rng(3)
    assert canary_of(Kind("any", factor), random, MARGIN).bad is bad


def test_a_canary_gets_its_weight_of_the_requests():
    played = canary_of(Kind("any", weight=0.1), np.random.default_rng(3), MARGIN)
    share = played.canary.sum() / (played.canary.sum() + played.baseline.sum())
    assert share == pytest.approx(0.1, rel=0.1)
