"""The generated tests fail on mutants of the alerts.

This is apart from the recording rules' mutants, because a process runs whole modules.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rule_mutant_table import Mutant, mutants
from tests.rule_mutants import is_killed

USUAL = "chat/availability MetricAbsent: drops the model"
ALERTS = [
    pytest.param(mutant, id=mutant.name, marks=[pytest.mark.long] * (mutant.name != USUAL))
    for mutant in mutants()
    if not mutant.rule.startswith("slo:")
]


@pytest.mark.parametrize("mutant", ALERTS)
def test_tests_of_mutated_alerts_fail(part: Callable[[str], Path], mutant: Mutant) -> None:
    assert is_killed(str(part("promtool")), mutant) is not bool(mutant.survives), mutant.survives
