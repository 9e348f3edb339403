"""Count good and bad events of latency signals that only an engine's histogram measures.

A histogram counts the observations within a threshold only if the threshold is one of its bucket
boundaries.  Otherwise the events are unavailable: nothing is interpolated.  Requests that ended
before their first token are events of ``ttft``, bad or refused, if the same source counts them.
Taps evaluate every request themselves (:mod:`exporter.recording.model_metrics`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from exporter.recording.metric_recorder import Series
from exporter.samples import UNLABELLED, Distribution, Labels, Measurement, Missing, Snapshot, Value
from exporter.store.increase import increase_since
from slos.durations import format_duration
from slos.outcomes import REFUSALS
from slos.signals import event_results, slo_events, threshold_label

FAILED_EARLY = "requests_without_first_token"
NO_EVENT = frozenset({"invalid"})
"""Outcomes that are no event of ``ttft``: the request itself was invalid."""
FORGET_AFTER = 3600.0


@dataclass(slots=True)
class _Counted:
    """Events of one histogram by threshold and result, and its last values."""

    histogram: Distribution | None = None
    without_first_token: Mapping[str, float] | None = None
    events: dict[Labels, float] = field(default_factory=dict)
    seen: float = 0.0


class SloEvents:
    """Add the events of every threshold to the snapshots of one source.

    ``thresholds`` are seconds by latency signal.
    """

    def __init__(self, thresholds: Mapping[str, Sequence[float]]) -> None:
        self._thresholds = {
            signal: boundaries for signal, boundaries in thresholds.items() if boundaries
        }
        self._counted: dict[Series, _Counted] = {}

    def added(self, snapshot: Snapshot, now: float) -> Snapshot:
        """Return the snapshot with the events of its latency signals, or why they are missing."""
        if not self._thresholds:
            return snapshot
        measured = {
            (measurement.signal, measurement.model, measurement.version)
            for measurement in snapshot.measurements
        }
        without_first_token = _without_first_token(snapshot)
        more = [
            found
            for measurement in snapshot.measurements
            if measurement.signal in self._thresholds
            and (slo_events(measurement.signal), measurement.model, measurement.version)
            not in measured
            for found in self._events(measurement, without_first_token, now)
        ]
        missing = [
            replace(each, signal=slo_events(each.signal))
            for each in snapshot.missing
            if each.signal in self._thresholds
        ]
        self._counted = {
            series: counted
            for series, counted in self._counted.items()
            if now - counted.seen < FORGET_AFTER
        }
        return replace(
            snapshot,
            measurements=(
                *snapshot.measurements,
                *(one for one in more if isinstance(one, Measurement)),
            ),
            missing=(
                *snapshot.missing,
                *missing,
                *(one for one in more if isinstance(one, Missing)),
            ),
        )

    def _events(
        self,
        measurement: Measurement,
        without_first_token: Mapping[tuple[str, str], Mapping[str, float]],
        now: float,
    ) -> Iterator[Measurement | Missing]:
        histogram = measurement.samples.get(UNLABELLED)
        if not isinstance(histogram, Distribution):
            return
        signal, model = measurement.signal, (measurement.model, measurement.version)
        usable = [each for each in self._thresholds[signal] if each in histogram.boundaries]
        if not usable:
            yield Missing(slo_events(signal), *model, *self._why_not(signal))
            return
        counted = self._counted.setdefault((signal, *model, measurement.method), _Counted())
        counted.seen = now
        failed_total = without_first_token.get(model) if signal == "ttft" else None
        failed: dict[str, float] = {}
        if failed_total is not None:
            before = counted.without_first_token or {}
            # A counter that begins after its histogram may hold failures from before.
            first = counted.without_first_token is None and counted.histogram is not None
            if not first:
                failed = {
                    result: _increase(before.get(result), total)
                    for result, total in failed_total.items()
                }
            counted.without_first_token = failed_total
        added = increase_since(counted.histogram, histogram)
        assert isinstance(added, Distribution)  # noqa: S101  (as is the histogram)
        counted.histogram = histogram
        for threshold in usable:
            good = added.counts[added.boundaries.index(threshold)]
            observed = {"good": good, "bad": added.count - good}
            for result in event_results(signal):
                labels = (("result", result), ("threshold", threshold_label(threshold)))
                count = observed.get(result, 0.0) + failed.get(result, 0.0)
                counted.events[labels] = counted.events.get(labels, 0.0) + count
        samples: dict[Labels, Value] = {**counted.events}
        yield replace(measurement, signal=slo_events(signal), samples=samples)

    def _why_not(self, signal: str) -> tuple[str, str]:
        thresholds = ", ".join(
            format_duration(Decimal(repr(each))) for each in self._thresholds[signal]
        )
        return (
            f"no threshold ({thresholds}) is a bucket boundary of the server's histogram",
            "use one of its boundaries as threshold, or add a tap",
        )


def _without_first_token(snapshot: Snapshot) -> dict[tuple[str, str], dict[str, float]]:
    """Return how many requests ended before their first token, by model and result."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for measurement in snapshot.measurements:
        if measurement.signal != FAILED_EARLY:
            continue
        by_result = found.setdefault((measurement.model, measurement.version), {"bad": 0.0})
        for labels, value in measurement.samples.items():
            outcome = dict(labels).get("outcome", "")
            if not isinstance(value, Distribution) and outcome not in NO_EVENT:
                result = outcome if outcome in REFUSALS else "bad"
                by_result[result] = by_result.get(result, 0.0) + value
    return found


def _increase(before: float | None, value: float) -> float:
    increase = increase_since(before, value)
    assert not isinstance(increase, Distribution)  # noqa: S101  (as is the value)
    return increase
