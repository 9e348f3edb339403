"""The store: snapshots of sources in, a view with the sidecar's own monotonic counters out.

Servers restart their counters when they reload a model, and the preferred method of a signal may
change between two snapshots.  Passed through, such values would show ``rate()`` a false reset or a
false increase.  Every counter and histogram in a view is therefore the sidecar's own:

* It starts at 0.  The first snapshot of a server's counter adds nothing: those events are older
  than the sidecar.  Totals with a start time are the sidecar's own and add their first value in
  full.  A restarted sidecar is an ordinary counter reset for Prometheus.
* Only the increase since the previous snapshot *by the same method* is added.  A value lower than
  the previous one, or a later start time, is a reset and counts in full; a series new since then
  counts from 0.  A reload of the model is no reset: Triton keeps its counters of failures.
* Totals that keep their start time and change their method continue: the increase since their value
  under the former method is added.
* The last value of every method is kept, so that a fallback continues where the preferred method
  stopped.  Its first increase is left out where it would cover time already counted: an undercount
  is a gap in the data, a double count is an error.

Buckets, count and sum of a histogram reset together; a histogram with other bucket boundaries
starts at 0.

The store does no I/O and reads no clock: times are seconds given by the caller, which must not go
backwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from operator import attrgetter, is_

from exporter.samples import Measurement, Missing, Model, ModelInfo, Snapshot, SourceError
from exporter.store import last_minute
from exporter.store.model_infos import model_infos
from exporter.store.model_names import name_error
from exporter.store.model_versions import (
    items_by_model,
    model_of,
    only_versions,
    reported_models,
    with_versions,
    without_start_times,
)
from exporter.store.signal_record import (
    ModelReport,
    SignalRecord,
    by_signal,
    in_catalogue_order,
    measured_state,
    merged_record,
)
from exporter.store.source_health import SourceHealth
from exporter.store.unavailability import why_unavailable
from exporter.store.view import SignalState, SourceState, View, WaitingStreams

STEP_SIZE = 100
"""Signals updated in one step, which takes about a millisecond."""
FORGET_SIZE = 25
"""Models whose records are checked in one step."""


class Store:
    """Choose the preferred method of every signal, keep counters monotonic and drop stale values.

    Measurements older than ``stale_after`` seconds have no series.  Models that no source has
    reported for ``forget_after`` seconds are dropped, but only while all sources are up.  Beyond
    ``max_models`` models (versions counted) new ones replace those that no source reports any
    more; if there are none, or if a name is longer than ``MAX_NAME`` (:mod:`model_names`), the new
    ones are excluded.  ``tapped`` is true if a tap runs: no fix then recommends one.
    """

    def __init__(
        self,
        stale_after: float,
        *,
        forget_after: float = 3600.0,
        max_models: int = 256,
        tapped: bool = False,
    ) -> None:
        self._tapped = tapped
        self._stale_after = stale_after
        self._forget_after = forget_after
        self._max_models = max_models
        self._sources: dict[str, SourceHealth] = {}
        self._parts: dict[str, dict[str, SourceHealth]] = {}
        self._snapshots: dict[str, tuple[float, Snapshot]] = {}
        self.updates = asyncio.Lock()
        """Held while a snapshot is stored in steps."""
        self._records: dict[Model, dict[str, SignalRecord]] = {}  # signals in catalogue order
        self._states: dict[Model, tuple[float, Mapping[str, SignalState]]] = {}
        self._reports: dict[Model, dict[str, ModelReport]] = {}
        self._models: dict[Model, float] = {}
        self._excluded: dict[str, Mapping[Model, str]] = {}
        self._joined: dict[str, Mapping[Model, Model]] = {}
        self._oldest = -inf
        """No model and no signal was last reported before this time."""

    def update(self, snapshot: Snapshot, now: float, took: float) -> None:
        """Store the snapshot that a source returned at ``now`` after ``took`` seconds.

        Measurements of a model without a version belong to its version if it has exactly one.
        """
        for _ in self.updating(snapshot, now, took):
            pass

    def updating(self, snapshot: Snapshot, now: float, took: float) -> Iterator[None]:
        """Store a snapshot as :meth:`update` does, in steps of a few milliseconds.

        A step contains whole models.  Views may be taken between steps; hold :attr:`updates`, so
        that no other snapshot is stored between them.
        """
        source = self._sources.setdefault(snapshot.source, SourceHealth())
        before = self._snapshots.get(snapshot.source)
        previous_models = None if before is None else self._snapshot_models(before[1])
        yield
        items = items_by_model(snapshot)
        yield
        if (joined := self._join_versions(snapshot, items)) is not snapshot:
            snapshot, items = joined, items_by_model(joined)
        yield
        source.succeed(now, took)
        self._update_parts(snapshot, now, took)
        self._snapshots[snapshot.source] = (now, snapshot)
        for model in self._admit(snapshot.source, items, now):
            items.pop(model, None)
        yield
        done = 0
        for model in [*items, *(self._records.keys() - items)]:
            measurements, missing = items.get(model, ((), ()))
            is_new = previous_models is not None and model not in previous_models
            self._update_model(model, snapshot.source, measurements, missing, now, new_model=is_new)
            done += len(self._records[model])
            if done >= STEP_SIZE:
                done = 0
                yield
        yield from self._forget(now)

    def fail(self, source: str, error: SourceError, now: float, took: float) -> None:
        """Record a failed scrape of a source."""
        self._sources.setdefault(source, SourceHealth()).fail(error, took)
        for part in self._parts.get(source, {}).values():
            part.up, part.error = False, str(error)

    def view(self, now: float) -> View:
        """Return the current state of all models, signals and sources."""
        return View(
            by_model=self.states_by_model(now),
            sources=tuple(self._source_states(now)),
            models=self.models(now),
            engine_stats_age={
                model: age + now - at
                for at, snapshot in self._fresh_snapshots(now)
                for model, age in sorted(snapshot.engine_stats_age.items())
                if model in self._models
            },
            waiting_streams={
                model: WaitingStreams(at, count)
                for at, snapshot in self._fresh_snapshots(now)
                for model, count in snapshot.waiting_streams.items()
            },
        )

    def summarized_view(self, now: float) -> Callable[[], View]:
        """Return a function that adds the last minute to the current view.

        It is slow and reads nothing that changes, so it may run in a thread.
        """
        view = self.view(now)
        histories = {
            model: {signal: one.counted() for signal, one in self._records[model].items()}
            for model in view.by_model
        }
        return partial(last_minute.with_summaries, view, histories)

    def states_by_model(self, now: float) -> dict[Model, Mapping[str, SignalState]]:
        """Return the states of every model by signal, the same object until one changes."""
        found: dict[Model, Mapping[str, SignalState]] = {}
        for model in sorted(self._records):
            expires, states = self._states.get(model, (-inf, {}))
            if states := states if now <= expires else self._compute_states(model, now):
                found[model] = states
        return found

    def models(self, now: float) -> tuple[ModelInfo, ...]:
        """Return every model that a source reports."""
        return model_infos((one for _, one in self._fresh_snapshots(now)), self._excluded)

    # Updates

    def _update_parts(self, snapshot: Snapshot, now: float, took: float) -> None:
        parts = self._parts.setdefault(snapshot.source, {})
        for name, error in snapshot.parts.items():
            part = parts.setdefault(name, SourceHealth())
            if error is None:
                part.succeed(now, took)
            else:
                part.fail(error, took)
                self._sources[snapshot.source].errors[error.kind] += 1

    def _admit(self, source: str, reported: Iterable[Model], now: float) -> Mapping[Model, str]:
        """Admit a source's models up to the limit; return the excluded ones with the reason."""
        excluded = {model: why for model in reported if (why := name_error(model))}
        valid = [model for model in reported if model not in excluded]
        self._make_room(len(self._models.keys() | valid) - self._max_models, now)
        for model in valid:
            if model in self._models or len(self._models) < self._max_models:
                self._models[model] = now
            else:
                excluded[model] = f"more than {self._max_models} models are reported on already"
        self._excluded[source] = excluded
        return excluded

    def _make_room(self, places: int, now: float) -> None:
        """Drop up to ``places`` models that no source reports now, the longest absent first."""
        if places <= 0:
            return
        fresh = {
            model
            for _, snapshot in self._fresh_snapshots(now)
            for model in reported_models(snapshot)
        }
        absent = sorted(self._models.keys() - fresh, key=lambda model: (self._models[model], model))
        self._drop(frozenset(absent[:places]))

    def _update_model(
        self,
        model: Model,
        source: str,
        measurements: Iterable[Measurement],
        missing: Sequence[Missing],
        now: float,
        *,
        new_model: bool,
    ) -> None:
        """Store a snapshot's items of one model, and withdraw signals that it lacks."""
        records = self._records.setdefault(model, {})
        measured = by_signal(measurements)
        for signal, by_method in measured.items():
            record = records.get(signal) or records.setdefault(signal, SignalRecord())
            record.update(
                signal, source, by_method, now, stale_after=self._stale_after, new_model=new_model
            )
        reports = self._reports.setdefault(model, {})
        report = reports.get(source)
        if report and report.missing == missing and report.measured == measured.keys():
            for record in report.unavailable:
                record.reported_at = now
        else:
            reports[source] = self._withdraw_others(model, source, measured, missing, now)
        # Computed here, in steps, so that a view only collects the states.
        self._compute_states(model, now)

    def _withdraw_others(
        self,
        model: Model,
        source: str,
        measured: Collection[str],
        missing: Sequence[Missing],
        now: float,
    ) -> ModelReport:
        """Store the missing signals of a model, and withdraw all that a source has not measured."""
        records = self._records[model]
        unavailable = {item.signal: item for item in missing if item.signal not in measured}
        for signal, item in unavailable.items():
            record = records.get(signal) or records.setdefault(signal, SignalRecord())
            record.reported_at = now
            if record.missing.get(source) != item:
                record.missing[source], record.state_expires = item, -inf
        for signal, record in records.items():
            reason = unavailable.get(signal)
            if signal not in measured and not (reason and reason.unread):
                record.withdraw(source, reason)
        self._records[model] = in_catalogue_order(records)
        found = tuple(map(records.__getitem__, unavailable))
        return ModelReport(frozenset(measured), missing, found)

    def _join_versions(self, snapshot: Snapshot, reported: Collection[Model]) -> Snapshot:
        """Give models without a version their only version, in the snapshot and in the store.

        A tap may see a model before its server is scraped.  Join before counting: each increase is
        then that of the sum, and is counted once.
        """
        known = self._models.keys() | (model for model in reported if not name_error(model))
        for bare, versioned in only_versions(self._models, known).items():
            self._models[versioned] = max(self._models.pop(bare), self._models.get(versioned, -inf))
            for source, (at, earlier) in self._snapshots.items():
                self._snapshots[source] = at, with_versions(earlier, {bare: versioned})
            self._forget_states(bare, versioned)
            records = self._records.get(versioned, {})
            for signal, other in self._records.pop(bare, {}).items():
                records[signal] = record = merged_record(records.get(signal), other)
                record.state, record.state_expires = None, -inf
            self._records[versioned] = in_catalogue_order(records)
        joined = only_versions((*reported, *snapshot.waiting_streams), known)
        previous = self._joined.get(snapshot.source, {})
        self._joined[snapshot.source] = joined
        snapshot = with_versions(snapshot, joined)
        split = {bare: versioned for bare, versioned in previous.items() if bare not in joined}
        return self._split_versions(snapshot, split) if split else snapshot

    def _split_versions(self, snapshot: Snapshot, split: Mapping[Model, Model]) -> Snapshot:
        """Return the snapshot so that models that were joined count no increase in it.

        Their sum falls, which is no counter reset, and includes both parts.
        """
        for model in split.values():
            self._forget_states(model)
            for record in self._records.get(model, {}).values():
                record.methods = {
                    method: last
                    for method, last in record.methods.items()
                    if last.source != snapshot.source
                }
                record.state, record.state_expires = None, -inf
        return without_start_times(snapshot, {*split, *split.values()})

    def _snapshot_models(self, snapshot: Snapshot) -> frozenset[Model]:
        """Return the snapshot's models, loaded or not; any other is new in the next snapshot."""
        found = {*map(model_of, snapshot.models), *map(model_of, snapshot.measurements)}
        return frozenset(found) | self._joined.get(snapshot.source, {}).keys()

    def _drop(self, models: Iterable[Model]) -> None:
        for model in models:
            self._models.pop(model, None)
            self._records.pop(model, None)
        self._forget_states(*models)

    def _forget_states(self, *models: Model) -> None:
        for model in models:
            self._states.pop(model, None)
            self._reports.pop(model, None)

    def _forget(self, now: float) -> Iterator[None]:
        """Drop what no source has reported for long, unless a source is down and may return."""
        horizon = now - self._forget_after
        if self._oldest > horizon or not all(source.up for source in self._sources.values()):
            return
        self._models = {model: seen for model, seen in self._models.items() if seen > horizon}
        for number, (model, records) in enumerate([*self._records.items()]):
            if not number % FORGET_SIZE:
                yield
            expired = [one for one, record in records.items() if record.reported_at <= horizon]
            for signal in expired:
                del records[signal]
            if not records or model not in self._models:
                del self._records[model]
            if expired or model not in self._records:
                self._forget_states(model)
        reported = [one.reported_at for kept in self._records.values() for one in kept.values()]
        self._oldest = min([*self._models.values(), *reported], default=-inf)

    # Views

    def _compute_states(self, model: Model, now: float) -> Mapping[str, SignalState]:
        """Return a model's states, cached until one expires: the same object until one changes."""
        records = self._records[model]
        for signal, record in records.items():
            if now > record.state_expires:
                self._update_state(model, signal, record, now)
        states: Mapping[str, SignalState]
        states = {signal: record.state for signal, record in records.items() if record.state}
        _, before = self._states.get(model, (-inf, {}))
        if len(before) == len(states) and all(map(is_, before.values(), states.values())):
            states = before
        self._states[model] = (
            min(map(attrgetter("state_expires"), records.values()), default=inf),
            states,
        )
        return states

    def _update_state(self, model: Model, signal: str, record: SignalRecord, now: float) -> None:
        """Compute a state without the last minute, after a snapshot or on expiry."""
        best = record.best_method(now, self._stale_after)
        if best:
            record.state = measured_state(model, signal, record, best)
            record.state_expires = record.methods[best].at + self._stale_after
            return
        note, fix, reason = why_unavailable(record, now, self._sources, tapped=self._tapped)
        stale = any(last.current for last in record.methods.values())
        record.state = SignalState(
            signal, *model, "", "unavailable", {}, note=note, fix=fix, reason=reason, stale=stale
        )
        record.state_expires = -inf if stale else inf

    def _source_states(self, now: float) -> Iterator[SourceState]:
        for name, source in sorted(self._sources.items()):
            snapshot = self._snapshots.get(name)
            ready = snapshot[1].ready if snapshot and source.up else None
            lost = snapshot[1].lost_records if snapshot else None
            yield replace(source.state(name, now, ready=ready), lost_records=lost)
            for part_name, part in sorted(self._parts.get(name, {}).items()):
                yield part.state(f"{name}/{part_name}", now, ready=None)

    def _fresh_snapshots(self, now: float) -> Iterator[tuple[float, Snapshot]]:
        for _, (at, snapshot) in sorted(self._snapshots.items()):
            if now - at <= self._stale_after:
                yield at, snapshot
