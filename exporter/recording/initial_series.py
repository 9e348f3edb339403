"""Label sets known before the first event, which are exposed at zero from the start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from exporter.recording.goodput import GoodputObjective
from exporter.samples import UNLABELLED, Labels
from slos.signals import (
    DISCONNECT_PHASES,
    LATENCIES,
    OUTCOME_CLAUSE,
    OUTCOMES,
    PHASES,
    RESULTS,
    slo_events,
    threshold_label,
)

SLO_EVENTS = frozenset(map(slo_events, LATENCIES))


def known_labels(
    signal: str, *, thresholds: Iterable[float] = (), objectives: Iterable[GoodputObjective] = ()
) -> tuple[Labels, ...]:
    """Return the label sets of a counter that every model has; empty if there are none.

    ``thresholds`` (seconds) are those of the SLO event's latency; ``objectives`` those of the
    model.  Reasons and tenants are not known in advance: their series begin later.
    """
    match signal:
        case "requests" | "requests_without_first_token":
            return tuple((("outcome", outcome),) for outcome in OUTCOMES)
        case "streams":
            return tuple(
                (("outcome", outcome), ("phase", phase))
                for outcome, phase in product(OUTCOMES, PHASES)
                if (outcome == "ok") == (phase == "complete")
            )
        case "disconnects":
            return tuple((("phase", phase),) for phase in DISCONNECT_PHASES)
        case "goodput":
            return tuple(labels for objective in objectives for labels in _verdicts(objective))
        case events if events in SLO_EVENTS:
            return tuple(
                (("result", result), ("threshold", threshold_label(threshold)))
                for threshold, result in product(thresholds, RESULTS)
            )
        case "request_failures":
            return ()
    return (UNLABELLED,)


def slice_labels(objective: str) -> tuple[Labels, ...]:
    """Return the label sets of an objective's time slices; ``objective`` is its label."""
    return tuple((("objective", objective), ("result", result)) for result in RESULTS)


def _verdicts(objective: GoodputObjective) -> Iterator[Labels]:
    verdicts = [("good", ""), ("unknown", "")]
    verdicts += [("bad", clause) for clause in (OUTCOME_CLAUSE, *objective.clauses)]
    for result, clause in verdicts:
        yield ("clause", clause), ("objective", objective.name), ("result", result)
