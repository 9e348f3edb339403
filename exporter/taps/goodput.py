"""Whether single requests met every clause of an objective.

A request that the server failed is bad, whatever its times.  One whose client left is bad if a
clause was broken by then: the wait for a first token or for the next one counts as far as it went.
If none was, nobody can say what would have come, and it is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from exporter.wire.events import Outcome, Stream
from slos.model import Service
from slos.names import goodput_objective

FAILED = ("error", "rejected", "timeout")
OUTCOME = "outcome"
"""What stands for the clause of a request that the server failed."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A goodput objective: the most seconds by signal, in the file's order.

    ``name`` is service and objective; an empty ``model`` is every one.
    """

    name: str
    model: str
    clauses: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``result`` is good, bad or unknown; ``clause`` is the first of the file that failed."""

    result: str
    clause: str = ""


def goals(services: Iterable[Service]) -> Iterator[Goal]:
    """Yield every goodput objective of SLO files."""
    for service in services:
        for objective in service.objectives:
            if objective.indicator == "goodput":
                yield Goal(
                    goodput_objective(service.service, objective.name),
                    service.selects(objective).get("model", ""),
                    {signal: float(seconds) for signal, seconds in objective.clauses.items()},
                )


def times(stream: Stream, end: float, tpot: float | None, *, complete: bool) -> dict[str, float]:
    """Return what is known of a request's times, in seconds by signal.

    ``stream`` is as it was at ``end``, when the answer was complete or the client left; then its
    times are the least that they would have become.  ``tpot`` is None where it is not known.
    """
    known = {"e2e": end - stream.arrived}
    if stream.stages and stream.stages.queue is not None:
        known["queue"] = stream.stages.queue
    if not stream.streaming:
        return known
    if stream.chunks:
        known["ttft"] = stream.first - stream.arrived
        known["max_gap"] = stream.max_gap if complete else max(stream.max_gap, end - stream.last)
    elif not complete:
        known["ttft"] = end - stream.arrived
    if tpot is not None:
        known["tpot"] = tpot
    return known


def judge(goal: Goal, outcome: Outcome, known: Mapping[str, float]) -> Verdict | None:
    """Return what a request was, None if it does not count."""
    if outcome in FAILED:
        return Verdict("bad", OUTCOME)
    if outcome not in ("ok", "disconnected"):
        return None
    for signal, most in goal.clauses.items():
        if known.get(signal, 0.0) > most:
            return Verdict("bad", signal)
    if outcome == "disconnected":
        return None
    return Verdict("good" if goal.clauses.keys() <= known.keys() else "unknown")
