"""The generated tests fail on mutants of the alerts.

This is apart from the recording rules' mutants, because a process runs whole modules.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rule_mutant_table import Mutant, mutants
from tests.rule_mutants import is_killed

pytestmark = pytest.mark.long  # each is a replay of ten seconds; test_rules has broken rules too

ALERTS = [mutant for mutant in mutants() if not mutant.rule.startswith("slo:")]


@pytest.mark.parametrize("mutant", ALERTS, ids=lambda mutant: mutant.name)
def test_tests_of_mutated_alerts_fail(part: Callable[[str], Path], mutant: Mutant) -> None:
    assert is_killed(str(part("promtool")), mutant) is not bool(mutant.survives), mutant.survives
