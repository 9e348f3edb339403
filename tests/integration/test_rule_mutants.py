"""The generated tests fail on mutants of the recording rules; those of alerts have a module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rule_mutant_table import mutants
from tests.rule_mutants import LEAST_KILLED, edited, failure, generated, is_killed

BY_NAME = {mutant.name: mutant for mutant in mutants()}
USUAL = "chat/availability slo:error_ratio:rate1h: reads 6h"
OTHER = [
    pytest.param(name, marks=pytest.mark.long)
    for name, mutant in BY_NAME.items()
    if mutant.rule.startswith("slo:") and name != USUAL
]


def test_tests_of_unchanged_rules_pass(part: Callable[[str], Path], tmp_path: Path) -> None:
    files = generated("chat", ("availability",))
    program = str(part("promtool"))
    if failure(program, files, tmp_path):  # may happen once: tests/window_test_runs.py
        assert failure(program, files, tmp_path) == ""


@pytest.mark.parametrize("name", [USUAL, *OTHER])
def test_tests_of_mutated_rules_fail(part: Callable[[str], Path], name: str) -> None:
    mutant = BY_NAME[name]
    assert is_killed(str(part("promtool")), mutant) is not bool(mutant.survives), mutant.survives


def test_every_mutant_changes_a_generated_rule() -> None:
    assert len(BY_NAME) == len([*mutants()]) >= 55
    for mutant in BY_NAME.values():
        rule, changed = edited(mutant)
        assert changed != rule, mutant.name


def test_most_mutants_are_expected_to_be_killed() -> None:
    killed = [mutant for mutant in BY_NAME.values() if not mutant.survives]
    assert len(killed) >= LEAST_KILLED * len(BY_NAME)
