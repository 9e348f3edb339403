"""Label sets known before the first event, which are exposed at zero from the start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from exporter.recording.goodput import GoodputObjective
from exporter.samples import UNLABELLED, Labels
from slos.outcomes import OUTCOMES, REFUSALS
from slos.signals import (
    CLASS_BASES,
    DISCONNECT_PHASES,
    LATENCIES,
    OUTCOME_CLAUSE,
    PHASES,
    PROMPT_CLASS,
    RESULTS,
    SIGNALS,
    event_results,
    slo_events,
    threshold_label,
)

SLO_EVENTS = {slo_events(key): event_results(key) for key in LATENCIES}
"""The results of SLO events, by signal."""


def known_labels(
    signal: str,
    *,
    thresholds: Iterable[float] = (),
    objectives: Iterable[GoodputObjective] = (),
    prompt_classes: Iterable[str] = (),
) -> tuple[Labels, ...]:
    """Return the label sets of a signal that every model has; empty if there are none.

    ``thresholds`` (seconds) are those of the SLO event's latency; ``objectives`` those of the
    model.  Reasons and tenants are not known in advance: their series begin later.
    """
    every = _known_labels(signal, thresholds, objectives)
    if not SIGNALS[signal].by_prompt_class:
        return every
    return tuple(
        with_prompt_class(labels, one) for labels in every for one in (prompt_classes or ("",))
    )


def with_prompt_class(labels: Labels, prompt_class: str) -> Labels:
    """Return labels, sorted, with a prompt class; an empty one adds none."""
    return tuple(sorted((*labels, (PROMPT_CLASS, prompt_class)))) if prompt_class else labels


def _known_labels(
    signal: str, thresholds: Iterable[float], objectives: Iterable[GoodputObjective]
) -> tuple[Labels, ...]:
    match signal:
        case "requests" | "requests_without_first_token":
            return tuple((("outcome", outcome),) for outcome in OUTCOMES)
        case "streams":
            return tuple(
                (("outcome", outcome), ("phase", phase))
                for outcome, phase in product(OUTCOMES, PHASES)
                if (outcome == "ok") == (phase == "complete")
            )
        case "prompt_class":
            return tuple((("basis", basis),) for basis in CLASS_BASES)
        case "disconnects":
            return tuple((("phase", phase),) for phase in DISCONNECT_PHASES)
        case "goodput":
            return tuple(labels for objective in objectives for labels in _verdicts(objective))
        case events if events in SLO_EVENTS:
            return tuple(
                (("result", result), ("threshold", threshold_label(threshold)))
                for threshold, result in product(thresholds, SLO_EVENTS[events])
            )
        case "request_failures":
            return ()
    return (UNLABELLED,)


def slice_labels(objective: str) -> tuple[Labels, ...]:
    """Return the label sets of an objective's time slices; ``objective`` is its label."""
    return tuple((("objective", objective), ("result", result)) for result in RESULTS)


def _verdicts(objective: GoodputObjective) -> Iterator[Labels]:
    verdicts = [("good", ""), ("unknown", "")]
    verdicts += [(refusal, OUTCOME_CLAUSE) for refusal in REFUSALS]
    verdicts += [("bad", clause) for clause in (OUTCOME_CLAUSE, *objective.clauses)]
    for result, clause in verdicts:
        yield ("clause", clause), ("objective", objective.name), ("result", result)
