"""Load reports with the fields that a capacity is read from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OBJECTIVES = {"chat/first-token": "2s", "chat/token-pace": "60ms"}


def level(
    kind: str, value: float, rate: float, e2e: float, ttft: float, verdict: str | None = "kept"
) -> dict[str, Any]:
    """Return a load level: requests of 900 input and 250 output tokens."""
    return {
        "kind": kind,
        "value": value,
        "completed_per_second": rate,
        "output_tokens_per_second": 250 * rate,
        "latencies": {
            "ttft": {"p50": ttft / 2, "p99": ttft},
            "e2e": {"mean": e2e},
        },
        "prompts": [
            {"words": 100, "requests": 50, "mean_input_tokens": 100.0, "ttft": {"p50": ttft / 4}},
            {"words": 1700, "requests": 50, "mean_input_tokens": 1700.0, "ttft": {"p50": ttft}},
            {"words": 5, "requests": 0, "mean_input_tokens": None, "ttft": None},
        ],
        "objectives": [{"name": name, "limit": limit} for name, limit in OBJECTIVES.items()],
        "verdict": verdict,
    }


def load_report(*levels: Mapping[str, Any], kept: float | None = 0.0) -> dict[str, Any]:
    """Return a report; ``kept`` is the rate that a search found, 0 without a search."""
    found = None if kept == 0 else {"kept": kept, "missed": 12.0}
    return {"endpoints": [{"levels": list(levels)}], "highest_rate": found}


SWEEP = (
    level("rate", 1, 1.0, 3.2, 0.4),
    level("rate", 4, 4.0, 3.6, 0.6),
    level("rate", 8, 7.5, 4.0, 1.1),
    level("rate", 10, 9.0, 6.0, 4.0, "missed"),
)


def write_report(path: Path, *levels: Mapping[str, Any], kept: float | None = 0.0) -> str:
    """Write a report, of a sweep without levels; return its path."""
    path.write_text(json.dumps(load_report(*(levels or SWEEP), kept=kept)))
    return str(path)
