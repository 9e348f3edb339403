"""One signal of one model: the last value of every method, and the counters served from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from exporter.methods import METHODS
from exporter.samples import Distribution, Labels, Measurement, Missing, Model, Value, zero_of
from exporter.store.increase import add_values, continued
from exporter.store.last_minute import SPAN, History
from exporter.store.view import SignalState
from slos.signals import SIGNALS

HISTORY_STEP = SPAN / 12
"""Seconds between two entries of a signal's history."""

_ORDER = {signal: position for position, signal in enumerate(SIGNALS)}


@dataclass(slots=True)
class MethodRecord:
    """The last measurement by one method; ``current`` while its source still reports it.

    ``last`` holds the last value of every series that a counter had since ``start_time``: a series
    that is missing from one snapshot must not count as new in the next.
    """

    source: str
    at: float
    samples: Mapping[Labels, Value]
    last: Mapping[Labels, Value]
    note: str
    start_time: float | None
    current: bool = True


@dataclass(slots=True)
class SignalRecord:
    """One signal of one model.

    ``served`` are the sidecar's own counters, never changed in place, and ``counted_at`` the time
    of their last update.  ``state`` lacks the last minute; it is valid until ``state_expires``,
    which the next change ends.
    """

    methods: dict[str, MethodRecord] = field(default_factory=dict)
    missing: dict[str, Missing] = field(default_factory=dict)
    served: Mapping[Labels, Value] = field(default_factory=dict)
    counted_at: float = -inf
    reported_at: float = -inf
    state: SignalState | None = None
    state_expires: float = -inf
    history: deque[tuple[float, Mapping[Labels, Value]]] = field(
        default_factory=lambda: deque(maxlen=round(SPAN / HISTORY_STEP) + 1)
    )

    def counted(self) -> History:
        """Return the served counters of the last minute."""
        return self.counted_at, tuple(self.history)

    def best_method(self, now: float, stale_after: float) -> str:
        """Return the preferred method with a current value, or an empty string."""
        if len(self.methods) == 1:
            ((method, record),) = self.methods.items()
            return method if record.current and now - record.at <= stale_after else ""
        fresh = [
            method
            for method, record in self.methods.items()
            if record.current and now - record.at <= stale_after
        ]
        return min(fresh, key=lambda method: (METHODS[method].rank, method), default="")

    def update(
        self,
        signal: str,
        source: str,
        measurements: Mapping[str, Measurement],
        now: float,
        *,
        stale_after: float,
        new_model: bool,
    ) -> None:
        """Store a source's measurements by method, and count the increase of the preferred one.

        ``new_model`` is true if the source did not have the model in its previous snapshot: its
        counters then count from 0.
        """
        self.missing.pop(source, None)
        self.reported_at, self.state_expires = now, -inf
        is_counter = SIGNALS[signal].kind != "gauge"
        if len(measurements) == 1 and self.methods.keys() == measurements.keys():
            ((method, measurement),) = measurements.items()
            if self.methods[method].start_time == measurement.start_time:
                self._continue(self.methods[method], source, measurement, now, is_counter)
                return
        previous = {method: self._previous(source, method, measurements) for method in measurements}
        for method, record in self.methods.items():
            if record.source == source and method not in measurements:
                record.current = False
        for method, measurement in measurements.items():
            before, samples = previous[method], measurement.samples
            last = {**before.last, **samples} if before and is_counter else samples
            self.methods[method] = MethodRecord(
                source, now, samples, last, measurement.note, measurement.start_time
            )
        best = self.best_method(now, stale_after)
        if best in measurements and is_counter:
            record = self.methods[best]
            is_new = new_model and self.counted_at == -inf
            from_zero = is_new or record.start_time is not None
            self._count_increase(record.samples, previous[best], now, from_zero=from_zero)

    def _continue(
        self,
        record: MethodRecord,
        source: str,
        measurement: Measurement,
        now: float,
        is_counter: bool,
    ) -> None:
        """Store the next values of the only method, whose record is ``record``."""
        samples = measurement.samples
        if is_counter:
            self._count_increase(samples, record, now, from_zero=False)
        record.last = {**record.last, **samples} if is_counter else samples
        record.source, record.at, record.samples = source, now, samples
        record.note, record.current = measurement.note, True

    def withdraw(self, source: str, missing: Missing | None) -> None:
        """Mark the measurements of a source that no longer reports the signal."""
        if missing is None and source in self.missing:
            del self.missing[source]
            self.state_expires = -inf
        for record in self.methods.values():
            if record.source == source and record.current:
                record.current, self.state_expires = False, -inf

    def _previous(
        self, source: str, method: str, measurements: Mapping[str, Measurement]
    ) -> MethodRecord | None:
        """Return the record of the totals that a measurement continues, None if they are new.

        Totals with a start time may have had another method, whose record is removed.
        """
        start, before = measurements[method].start_time, self.methods.get(method)
        if start is None or (before and (before.start_time is None or before.start_time >= start)):
            return before
        former = (
            name
            for name, record in self.methods.items()
            if name not in measurements and (record.source, record.start_time) == (source, start)
        )
        return self.methods.pop(next(former, ""), None)

    def _count_increase(
        self,
        samples: Mapping[Labels, Value],
        before: MethodRecord | None,
        now: float,
        *,
        from_zero: bool,
    ) -> None:
        """Add the increase since the previous record to the served counters.

        Without a record, add the value itself if it counts ``from_zero``, otherwise nothing.
        """
        countable = before.at >= self.counted_at if before else from_zero
        last = before.last if before else {}
        served: dict[Labels, Value] | None = None
        for labels, value in samples.items():
            previous, total = last.get(labels), self.served.get(labels)
            if isinstance(total, Distribution) and not _same_boundaries(total, value):
                self.history.clear()
            elif type(total) is type(value) and previous == value:
                continue  # most models are idle
            if served is None:
                served = {**self.served}
            served[labels] = (
                continued(total, previous, value)
                if countable
                else add_values(total, zero_of(value))
            )
        if served is not None:
            self.served = served
        self.counted_at = now
        if not self.history or now - self.history[-1][0] >= HISTORY_STEP:
            self.history.append((now, self.served))


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The signals of a model in the last snapshot of a source, measured and missing.

    ``unavailable`` are the records of the missing ones.
    """

    measured: frozenset[str]
    missing: Sequence[Missing]
    unavailable: Sequence[SignalRecord]


def measured_state(model: Model, name: str, record: SignalRecord, best: str) -> SignalState:
    """Return the state by the best method: the same object as before if nothing has changed."""
    last, method = record.methods[best], METHODS[best]
    samples = last.samples if SIGNALS[name].kind == "gauge" else record.served
    note = f"{method.note}; {last.note}" if method.note and last.note else method.note or last.note
    before = record.state
    if before and before.method == best and before.note == note and before.samples == samples:
        return before
    return SignalState(name, *model, best, method.quality, samples, note=note)


def merged_record(record: SignalRecord | None, other: SignalRecord) -> SignalRecord:
    """Merge ``other`` into ``record``, whose served counters continue."""
    if record is None:
        return other
    if record.counted_at == -inf:
        record.counted_at, record.served = other.counted_at, other.served
        record.history = other.history
    for method, theirs in other.methods.items():
        ours = record.methods.get(method)
        record.methods[method] = (
            _method_sum(ours, theirs) if ours and ours.source == theirs.source else ours or theirs
        )
    record.missing = {**other.missing, **record.missing}
    record.reported_at = max(record.reported_at, other.reported_at)
    return record


def by_signal(measurements: Iterable[Measurement]) -> dict[str, dict[str, Measurement]]:
    """Return measurements by signal and method.

    A model may be measured twice, with and without its version: such samples are summed.
    """
    found: dict[str, dict[str, Measurement]] = {}
    for measurement in measurements:
        methods = found.setdefault(measurement.signal, {})
        twin = methods.get(measurement.method)
        if twin:
            measurement = replace(
                measurement,
                samples=_sums(twin.samples, measurement.samples),
                start_time=_earliest(twin.start_time, measurement.start_time),
            )
        methods[measurement.method] = measurement
    return found


def in_catalogue_order(records: Mapping[str, SignalRecord]) -> dict[str, SignalRecord]:
    """Return the records sorted as the signal catalogue is."""
    return {signal: records[signal] for signal in sorted(records, key=_ORDER.__getitem__)}


def _method_sum(one: MethodRecord, other: MethodRecord) -> MethodRecord:
    return replace(
        one,
        at=min(one.at, other.at),
        samples=_sums(one.samples, other.samples),
        last=_sums(one.last, other.last),
        start_time=_earliest(one.start_time, other.start_time),
        current=one.current or other.current,
    )


def _sums(one: Mapping[Labels, Value], other: Mapping[Labels, Value]) -> dict[Labels, Value]:
    sums = dict(one)
    for labels, value in other.items():
        sums[labels] = add_values(sums.get(labels), value)
    return sums


def _earliest(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else min(one, other)


def _same_boundaries(served: Distribution, value: Value) -> bool:
    return isinstance(value, Distribution) and served.boundaries == value.boundaries
