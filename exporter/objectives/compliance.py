"""Compliance of objectives in the last minute, from the sidecar's own counters.

Rules in Prometheus evaluate the whole window and all replicas; this is one sidecar, now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from exporter.samples import UNLABELLED, Distribution, count_of
from exporter.store.view import SignalState, gauge
from slos.indicators import INDICATORS, Verdicts, bad_results, verdicts_of
from slos.model import Objective, Service
from slos.names import goodput_objective
from slos.signals import PROMPT_CLASS, TENANT, TENANT_SIGNALS, slo_events, threshold_label

Signals = Mapping[str, SignalState]


@dataclass(frozen=True, slots=True)
class Compliance:
    """Good and bad events of the last minute; a gauge is one event."""

    good: float
    bad: float

    @property
    def ratio(self) -> float | None:
        """The share of good events, None if there were none."""
        total = self.good + self.bad
        return self.good / total if total else None

    def meets(self, target: Decimal) -> bool | None:
        """Whether the share of good events reaches the target, None if there were no events."""
        return None if self.ratio is None else self.ratio >= float(target)


def compliance(service: Service, objective: Objective, signals: Signals) -> Compliance | None:
    """Return the events of an objective on one model, None if they cannot be counted here."""
    indicator = INDICATORS.get(objective.indicator)
    if indicator is None or objective.slices is not None:
        return None
    selected = service.selects(objective)
    tenant = selected.get(TENANT, "")
    wanted = {label: selected[label] for label in (TENANT, PROMPT_CLASS) if label in selected}
    if verdicts := verdicts_of(objective, service):
        return _by_verdict(verdicts, service, objective, signals, wanted)
    if tenant or objective.threshold is None:
        return None
    if indicator.threshold == "seconds":
        bad = bad_results(objective, service)
        return _by_threshold(indicator.signals[0], objective.threshold, bad, signals, wanted)
    return _by_gauges(indicator.signals, objective.threshold, signals)


def _by_verdict(
    verdicts: Verdicts,
    service: Service,
    objective: Objective,
    signals: Signals,
    wanted: Mapping[str, str],
) -> Compliance | None:
    state = signals.get(TENANT_SIGNALS[verdicts.signal] if TENANT in wanted else verdicts.signal)
    if state is None or not state.samples:
        return None
    wanted = {**wanted}
    if verdicts.signal == "goodput":
        wanted["objective"] = goodput_objective(service.service, objective.name)
    counts = {"good": 0.0, "bad": 0.0}
    for labels, value in state.last_minute.items():
        given = dict(labels)
        if wanted.items() <= given.items() and all(
            one.accepts(given.get(one.label, "")) for one in verdicts.among
        ):
            result = given.get(verdicts.label, "")
            kind = "good" if result in verdicts.good else "bad" if result in verdicts.bad else ""
            if kind:
                counts[kind] += count_of(value)
    return Compliance(counts["good"], counts["bad"])


def _by_threshold(
    signal: str,
    threshold: Decimal,
    bad: tuple[str, ...],
    signals: Signals,
    wanted: Mapping[str, str],
) -> Compliance | None:
    events = signals.get(slo_events(signal))
    if events is not None and events.samples:
        own = {**wanted, "threshold": threshold_label(threshold)}
        counts: dict[str, float] = {}
        for labels, count in events.last_minute.items():
            given = dict(labels)
            if own.items() <= given.items():
                result = given["result"]
                counts[result] = counts.get(result, 0.0) + count_of(count)
        return Compliance(counts.get("good", 0.0), sum(counts.get(each, 0.0) for each in bad))
    state = signals.get(signal)
    value = state.last_minute.get(UNLABELLED) if state and not wanted else None
    if not isinstance(value, Distribution) or float(threshold) not in value.boundaries:
        return None
    good = value.counts[value.boundaries.index(float(threshold))]
    return Compliance(good, value.count - good)


def _by_gauges(names: tuple[str, ...], threshold: Decimal, signals: Signals) -> Compliance | None:
    values = [gauge(signals, name) for name in names]
    first, second = values[0], values[1] if len(values) > 1 else 1.0
    if first is None or not second:
        return None
    good = first / second <= float(threshold)
    return Compliance(float(good), float(not good))
