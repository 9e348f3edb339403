"""Evaluate time slices of objectives from the sidecar's own counters.

Prometheus scrapes a slice two or three times, so its result is unreliable near the limit.  The
sidecar scrapes its sources every interval and evaluates a slice from all events counted in it.  A
slice begins at a whole multiple of its length in Unix time, is evaluated for each model of each
sidecar, and is good if it has no events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal

from exporter.objectives.compliance import Compliance, Signals, compliance
from exporter.objectives.objective_status import selects_model
from exporter.recording.initial_series import slice_labels
from exporter.samples import Labels, Model, Value
from exporter.store.view import SignalState, View
from slos.indicators import sidecar_evaluates_slices
from slos.model import Objective, Service, TimeSlices
from slos.names import goodput_objective
from slos.signals import RESULTS

LATE = Decimal("0.1")
"""Maximum share of a slice before its first update; a later one is not evaluated."""

Key = tuple[str, str, str]
"""Objective, model and version."""


@dataclass(frozen=True, slots=True)
class _Slice:
    """The current slice: its ``number``, and the events counted before it began.

    ``whole`` is False if its first update came too late.
    """

    number: int
    before: Compliance
    whole: bool


class SliceEvaluator:
    """Count good and bad time slices of the objectives of ``services``."""

    def __init__(self, services: Iterable[Service]) -> None:
        self._objectives = tuple(
            (service, objective, objective.slices)
            for service in services
            for objective in service.objectives
            if objective.slices and sidecar_evaluates_slices(objective, service)
        )
        self._slices: dict[Key, _Slice] = {}
        self._counts: dict[Key, dict[str, float]] = {}

    def update(self, view: View, now: float) -> None:
        """Evaluate the slices that have ended at ``now``, in Unix time.

        Slices with unavailable signals are not evaluated.
        """
        by_model = view.by_model
        for service, objective, slices in self._objectives:
            name = goodput_objective(service.service, objective.name)
            for model, signals in by_model.items():
                if selects_model(service.selects(objective), model):
                    events = _events(service, objective, signals)
                    self._update_slice((name, *model), slices, events, now)

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

    def _update_slice(
        self, key: Key, slices: TimeSlices, events: Compliance | None, now: float
    ) -> None:
        if events is None:
            self._slices.pop(key, None)
            return
        counts = self._counts.setdefault(key, dict.fromkeys(RESULTS, 0.0))
        seconds = float(slices.window)
        number = int(now // seconds)
        current = self._slices.get(key)
        if current and current.number == number:
            return
        follows = current is not None and number == current.number + 1
        if current and follows and current.whole:
            counts[_result(current.before, events, slices)] += 1
        in_time = now - number * seconds <= float(LATE) * seconds
        self._slices[key] = _Slice(number, events, follows and in_time)


def _result(before: Compliance, after: Compliance, slices: TimeSlices) -> str:
    good, bad = after.good - before.good, after.bad - before.bad
    return RESULTS[Decimal(bad) > (1 - slices.target) * Decimal(good + bad)]


def _events(service: Service, objective: Objective, signals: Signals) -> Compliance | None:
    """Return all events so far."""
    since_start = {key: one._replace(last_minute=one.samples) for key, one in signals.items()}
    return compliance(service, replace(objective, slices=None), since_start)
