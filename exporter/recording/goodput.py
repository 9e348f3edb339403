"""Goodput objectives, and the verdict on an ended request.

A request is bad from the moment it breaks a clause, whatever its outcome
(:mod:`exporter.recording.slo_evaluation`).  A request that breaks none is bad if the server failed
it, and ``shed`` or ``quota`` if it was refused: SLO files decide whether these are bad.  It is not
counted if its client disconnected, cancelled or sent an invalid request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exporter.protocol.events import Stream
from slos.outcomes import FAILURES, REFUSALS, Outcome
from slos.signals import OUTCOME_CLAUSE

if TYPE_CHECKING:
    from slos.model import Service


@dataclass(frozen=True, slots=True)
class GoodputObjective:
    """A goodput objective: maximum seconds by signal, in the order of the SLO file.

    ``name`` is service and objective; an empty ``model`` matches every model.
    """

    name: str
    model: str
    clauses: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class GoodputVerdict:
    """``result`` is good, bad, unknown or a refusal; ``clause`` is the first failed clause."""

    result: str
    clause: str = ""


def goodput_objectives(services: Iterable[Service]) -> Iterator[GoodputObjective]:
    """Yield every goodput objective of SLO files."""
    from slos.names import goodput_objective

    for service in services:
        for objective in service.objectives:
            if objective.indicator == "goodput":
                yield GoodputObjective(
                    goodput_objective(service.service, objective.name),
                    service.selects(objective).get("model", ""),
                    {signal: float(seconds) for signal, seconds in objective.clauses.items()},
                )


def times(stream: Stream, end: float, tpot: float | None) -> dict[str, float]:
    """Return the measured times of a request in seconds, by signal.

    ``stream`` is the state at ``end``: the end of the response or the client's disconnect.
    ``tpot`` is None if unknown.
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
    objective: GoodputObjective, outcome: Outcome, known: Mapping[str, float], *, empty: bool
) -> GoodputVerdict | None:
    """Return the verdict on a request that broke no clause before its end; None if not counted.

    An ``empty`` stream had no token; if it ended ``ok``, it breaks the clause ``ttft``.
    Of the clauses that are evaluated only at the end (``tpot``, ``queue``), the verdict names the
    first failed one of the SLO file.
    """
    if outcome in REFUSALS:
        return GoodputVerdict(outcome, OUTCOME_CLAUSE)
    if outcome in FAILURES:
        return GoodputVerdict("bad", OUTCOME_CLAUSE)
    if outcome not in ("ok", "client_disconnected"):
        return None
    if empty and outcome == "ok" and "ttft" in objective.clauses:
        return GoodputVerdict("bad", "ttft")
    for signal, most in objective.clauses.items():
        if known.get(signal, 0.0) > most:
            return GoodputVerdict("bad", signal)
    if outcome == "client_disconnected":
        return None
    return GoodputVerdict("good" if objective.clauses.keys() <= known.keys() else "unknown")
