"""The generated tests fail on faults of the rule file."""

from __future__ import annotations

import sys
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


@pytest.mark.parametrize("fault", FAULTS)
def test_generated_tests_kill_mutants(fault: str, tmp_path: Path) -> None:
    promtool = str(parts.program("promtool", lambda text: print(text, file=sys.stderr)))
    plan = example(objective("availability", "0.999"), selector={"model": "llama"})
    for path, text in alerts.files(plan, source="slo.yaml", version="0").items():
        (tmp_path / Path(path).name).write_text(text)
    rules = (tmp_path / "chat.rules.yaml").read_text()
    assert not killed(promtool, tmp_path, "chat", rules)
    every = dict(mutants(rules))
    assert killed(promtool, tmp_path, "chat", every[f"chat/availability: {fault}"])
