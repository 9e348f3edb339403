"""Measure requests by outcome and failures by reason from a server's counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from exporter.recording.initial_series import known_labels
from exporter.samples import Labels, Measurement, Model, Value

_NO_REQUESTS: Mapping[Labels, Value] = dict.fromkeys(known_labels("requests"), 0.0)


@dataclass(frozen=True, slots=True)
class FinishedCount:
    """The number of finished requests that an engine counted, and the method."""

    method: str
    reason: str
    count: float


def request_measurements(
    model: Model, method: str, samples: Mapping[tuple[str, str], float], note: str = ""
) -> Iterator[Measurement]:
    """Yield requests and request failures; ``samples`` are counts by outcome and reason."""
    outcomes: dict[Labels, Value] = dict(_NO_REQUESTS)
    failures: dict[Labels, Value] = {}
    totals: dict[str, float] = {}
    for (outcome, reason), count in samples.items():
        totals[outcome] = totals.get(outcome, 0.0) + count
        if outcome != "ok":
            failures[("outcome", outcome), ("reason", reason)] = count
    outcomes.update(((("outcome", outcome),), total) for outcome, total in totals.items())
    yield Measurement("requests", *model, method, outcomes, note)
    yield Measurement("request_failures", *model, method, failures, note)
