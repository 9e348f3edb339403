"""The generated tests fail on mutants of the generated rules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lab import toolchain
from tests.rule_mutant_table import mutants
from tests.rule_mutants import LEAST_KILLED, edited, fail, generated, is_killed

BY_NAME = {mutant.name: mutant for mutant in mutants()}
USUAL = {
    "chat/availability slo:total:increase1m: counts cancellations",
    "chat/availability slo:error_ratio:rate1h: reads 6h",
    "chat/availability MetricAbsent: drops the model",
}
OTHER = [pytest.param(name, marks=pytest.mark.long) for name in BY_NAME if name not in USUAL]


@pytest.fixture(scope="module")
def promtool() -> str:
    return str(toolchain.program("promtool", lambda text: print(text, file=sys.stderr)))


def test_tests_of_unchanged_rules_pass(promtool: str, tmp_path: Path) -> None:
    assert not fail(promtool, generated("chat", ("availability",)), tmp_path)


@pytest.mark.parametrize("name", [*sorted(USUAL), *OTHER])
def test_tests_of_mutated_rules_fail(promtool: str, name: str) -> None:
    mutant = BY_NAME[name]
    assert is_killed(promtool, mutant) is not bool(mutant.survives), mutant.survives


def test_every_mutant_changes_a_generated_rule() -> None:
    assert len(BY_NAME) == len([*mutants()]) >= 55
    for mutant in BY_NAME.values():
        rule, changed = edited(mutant)
        assert changed != rule, mutant.name


def test_most_mutants_are_expected_to_be_killed() -> None:
    killed = [mutant for mutant in BY_NAME.values() if not mutant.survives]
    assert len(killed) >= LEAST_KILLED * len(BY_NAME)
