"""The generated tests fail on faults of the rule file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from service_example import example, objective

import alerts
from lab import parts
from tests.rule_mutants import killed, mutants

FAULTS = (
    "slo:bad:increase1m: forgets time-outs",
    "slo:total:increase1m: counts cancelled requests",
    "slo:total:increase1m: drops the model",
    "slo:error_ratio:rate1h: swaps 1h and 6h",
    "slo:error_ratio:rate1d: reads another objective",
    "ChatAvailabilityErrorBudgetBurn 1h: has another severity",
    "ChatAvailabilityErrorBudgetBurn 6h: has another burn_rate",
    "ChatAvailabilityErrorBudgetBurn 3d: raises the guard",
)


OTHER_FAULTS = [fault for fault in FAULTS if fault not in FAULTS[::3]]

Judge = Callable[[str], bool]


@pytest.fixture(scope="module")
def rules_and_judge(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Judge]:
    """Return a rule file, and whether the tests beside it fail with a text in its place."""
    folder = tmp_path_factory.mktemp("mutants")
    promtool = str(parts.program("promtool", lambda text: print(text, file=sys.stderr)))
    plan = example(objective("availability", "0.999"), selector={"model": "llama"})
    for path, text in alerts.files(plan, source="slo.yaml", version="0").items():
        (folder / Path(path).name).write_text(text)
    return (folder / "chat.rules.yaml").read_text(), partial(killed, promtool, folder, "chat")


def test_generated_tests_pass_without_a_fault(rules_and_judge: tuple[str, Judge]) -> None:
    rules, is_killed = rules_and_judge
    assert not is_killed(rules)


@pytest.mark.parametrize(
    "fault", [*FAULTS[::3], *(pytest.param(each, marks=pytest.mark.long) for each in OTHER_FAULTS)]
)
def test_generated_tests_kill_mutants(rules_and_judge: tuple[str, Judge], fault: str) -> None:
    rules, is_killed = rules_and_judge
    assert is_killed(dict(mutants(rules))[f"chat/availability: {fault}"])
