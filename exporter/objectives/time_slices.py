"""Judge the time slices of objectives from the sidecar's own counters.

Prometheus sees a slice through two or three scrapes, so near the limit its verdict is a guess.  The
sidecar reads its sources every interval and judges a slice by all events that were counted in it.
A slice begins at a whole multiple of its length in Unix time, is judged for each model of each
sidecar, and is good if it has no events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal

from exporter.objectives.compliance import Compliance, Signals, compliance
from exporter.objectives.objective_status import chooses
from exporter.recording.initial_series import slice_labels
from exporter.samples import Labels, Model, Value
from exporter.store.view import SignalState, View
from slos.indicators import slices_are_judged
from slos.model import Objective, Service, TimeSlices
from slos.names import goodput_objective
from slos.signals import RESULTS

LATE = Decimal("0.1")
"""The share of a slice that may pass before it is first looked at: later, it is not judged."""

Key = tuple[str, str, str]
"""Objective, model and version."""


@dataclass(frozen=True, slots=True)
class _Slice:
    """The slice under way: its ``number``, and the events counted before it began.

    ``whole`` is False if it was first looked at too late.
    """

    number: int
    before: Compliance
    whole: bool


class SliceJudge:
    """Counts good and bad time slices of the objectives of ``services``."""

    def __init__(self, services: Iterable[Service]) -> None:
        self._objectives = tuple(
            (service, objective, objective.slices)
            for service in services
            for objective in service.objectives
            if objective.slices and slices_are_judged(objective, service)
        )
        self._slices: dict[Key, _Slice] = {}
        self._counts: dict[Key, dict[str, float]] = {}

    def update(self, view: View, now: float) -> None:
        """Judge the slices that have ended at ``now``, in Unix time.

        Slices in which the signals were unavailable are not judged.
        """
        by_model = view.by_model()
        for service, objective, slices in self._objectives:
            name = goodput_objective(service.service, objective.name)
            for model, signals in by_model.items():
                if chooses(service.selects(objective), model):
                    events = _events(service, objective, signals)
                    self._look((name, *model), slices, events, now)

    def states(self) -> tuple[SignalState, ...]:
        """Return the counts of every objective, by model."""
        found: dict[Model, dict[Labels, Value]] = {}
        for (objective, model, version), counts in sorted(self._counts.items()):
            samples = found.setdefault((model, version), {})
            samples |= {
                labels: counts[dict(labels)["result"]] for labels in slice_labels(objective)
            }
        return tuple(
            SignalState("slo_slices", model, version, "", "exact", samples)
            for (model, version), samples in found.items()
        )

    def _look(self, key: Key, slices: TimeSlices, events: Compliance | None, now: float) -> None:
        if events is None:
            self._slices.pop(key, None)
            return
        counts = self._counts.setdefault(key, dict.fromkeys(RESULTS, 0.0))
        seconds = float(slices.window)
        number = int(now // seconds)
        known = self._slices.get(key)
        if known and known.number == number:
            return
        follows = known is not None and number == known.number + 1
        if known and follows and known.whole:
            counts[_result(known.before, events, slices)] += 1
        in_time = now - number * seconds <= float(LATE) * seconds
        self._slices[key] = _Slice(number, events, follows and in_time)


def _result(before: Compliance, after: Compliance, slices: TimeSlices) -> str:
    good, bad = after.good - before.good, after.bad - before.bad
    return RESULTS[Decimal(bad) > (1 - slices.target) * Decimal(good + bad)]


def _events(service: Service, objective: Objective, signals: Signals) -> Compliance | None:
    """Return all events so far."""
    since_start = {key: replace(one, last_minute=one.samples) for key, one in signals.items()}
    return compliance(service, replace(objective, slices=None), since_start)
