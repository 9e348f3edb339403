"""Latency limits of MLPerf Inference as objectives.

The limits are those of the 99th percentile in ``loadgen/mlperf.conf`` of mlcommons/inference.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadtest.objectives import ClientObjective

MLPERF_SECONDS = 600
"""MLPerf's minimum duration of a run."""
_TARGET = 0.99

# Model: milliseconds of TTFT and TPOT, by scenario.
_LIMITS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "llama2-70b": {"server": (2000, 200), "interactive": (450, 40)},
    "mixtral-8x7b": {"server": (2000, 200)},
    "llama3.1-405b": {"server": (6000, 175), "interactive": (4500, 80)},
    "llama3.1-8b": {"server": (2000, 100), "interactive": (500, 30)},
    "deepseek-r1": {"server": (2000, 80), "interactive": (1500, 15)},
    "gpt-oss-120b": {"server": (3000, 80), "interactive": (2000, 15)},
}
PRESETS: Mapping[str, tuple[int, int]] = {
    f"mlperf-{model}-{scenario}": limits
    for model, scenarios in _LIMITS.items()
    for scenario, limits in scenarios.items()
}
"""Limits of TTFT and TPOT in milliseconds, by name."""


def preset_objectives(name: str) -> list[ClientObjective]:
    """Return the objectives of a preset: 99 % of the requests within each limit."""
    return [
        ClientObjective(f"{name}/{indicator}", indicator, _TARGET, limit / 1000, text=f"{limit}ms")
        for indicator, limit in zip(("ttft", "tpot"), PRESETS[name], strict=True)
    ]
