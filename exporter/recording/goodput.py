"""Goodput objectives, and the verdict on a request when it has ended.

A request that breaks a clause is bad at that moment, whatever its outcome then is
(:mod:`exporter.recording.judgement`).  One that ends without that is bad if the server failed it.
If its client disconnected, cancelled or sent an invalid request, it is not counted: the wire does
not show how it would have gone on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from exporter.protocol.events import Outcome, Stream
from slos.model import Service
from slos.names import goodput_objective

FAILED = ("error", "rejected", "timeout")
OUTCOME = "outcome"
"""What stands for the clause of a request that the server failed."""


@dataclass(frozen=True, slots=True)
class GoodputObjective:
    """A goodput objective: the most seconds by signal, in the file's order.

    ``name`` is service and objective; an empty ``model`` is every one.
    """

    name: str
    model: str
    clauses: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class GoodputVerdict:
    """``result`` is good, bad or unknown; ``clause`` is the first of the file that failed."""

    result: str
    clause: str = ""


def goals(services: Iterable[Service]) -> Iterator[GoodputObjective]:
    """Yield every goodput objective of SLO files."""
    for service in services:
        for objective in service.objectives:
            if objective.indicator == "goodput":
                yield GoodputObjective(
                    goodput_objective(service.service, objective.name),
                    service.selects(objective).get("model", ""),
                    {signal: float(seconds) for signal, seconds in objective.clauses.items()},
                )


def times(stream: Stream, end: float, tpot: float | None) -> dict[str, float]:
    """Return what is known of a request's times, in seconds by signal.

    ``stream`` is as it was at ``end``, when the answer was complete or the client disconnected.
    ``tpot`` is None where it is not known.
    """
    known = {"e2e": end - stream.arrived}
    if stream.stages and stream.stages.queue is not None:
        known["queue"] = stream.stages.queue
    if not stream.streaming or stream.opaque:
        return known
    if stream.chunks:
        known["ttft"] = stream.first - stream.arrived
        known["max_gap"] = stream.max_gap
    if tpot is not None:
        known["tpot"] = tpot
    return known


def verdict_at_end(
    goal: GoodputObjective, outcome: Outcome, known: Mapping[str, float]
) -> GoodputVerdict | None:
    """Return the verdict on a request that had broken no clause before it ended.

    None if it does not count.  The first clause in the file's order is named of those that show
    only at the end (``tpot``, ``queue``).
    """
    if outcome in FAILED:
        return GoodputVerdict("bad", OUTCOME)
    if outcome not in ("ok", "disconnected"):
        return None
    for signal, most in goal.clauses.items():
        if known.get(signal, 0.0) > most:
            return GoodputVerdict("bad", signal)
    if outcome == "disconnected":
        return None
    return GoodputVerdict("good" if goal.clauses.keys() <= known.keys() else "unknown")
