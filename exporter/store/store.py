"""What was read, kept so that Prometheus is never told a thing twice.

Servers restart their counters when they reload a model, and the way a signal is obtained may change
from one reading to the next.  Passing such values through would make ``rate()`` see either a reset
that was none or a jump that never happened.  So every counter and histogram that leaves here is
the sidecar's own:

* it starts at 0 with the first good reading, because what was counted before belongs to whoever
  scraped before; a restarted sidecar is an ordinary counter reset for Prometheus;
* then only what came in since the previous reading *by the same method* is added: a value lower
  than before is a reset and counts whole, a series born since then counts from 0.  That a model
  was reloaded is no reset by itself: Triton restarts its successes, but not its failures;
* every method's last value is kept, so that the next best method can go on where the other
  stopped.  It never adds time that is already in: where its own previous value is older than what
  was last added, its first delta is left out.  Undercounted is a gap, counted twice is a lie.

A histogram is one thing: buckets, count and sum are reset together, and other bucket edges start a
new histogram at 0.

Nothing here does I/O or looks at a clock: times are seconds, given by the caller, and must not go
backwards.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeVar

from exporter.methods import METHODS
from exporter.samples import (
    Distribution,
    Labels,
    Measurement,
    Missing,
    Model,
    ModelInfo,
    Snapshot,
    SourceError,
    Value,
    nothing_of,
)
from exporter.sources.unavailable import with_a_tap
from exporter.store import last_minute
from exporter.store.increase import plus, since
from exporter.store.last_minute import SPAN
from exporter.store.view import SignalState, SourceState, View, WaitingStreams
from slos.signals import SIGNALS

Item = TypeVar("Item", Measurement, Missing, ModelInfo)

MAX_NAME = 256
"""Characters that the name of a model and its version may have: they are labels of every series."""
SHOWN_NAME = 60
SNAPSHOT_EVERY = SPAN / 12
TAPS = "taps"
"""The name of the source of the taps."""
SLICE = 500
"""Signals that are updated in one step: a few milliseconds."""
ORDER = {signal: position for position, signal in enumerate(SIGNALS)}


@dataclass(slots=True)
class _Raw:
    """The last value one method read; ``current`` while its source still gives it.

    ``last`` holds the last value of every series a counter ever had: one that is missing from a
    single reading must not count again as new.
    """

    source: str
    at: float
    samples: Mapping[Labels, Value]
    last: Mapping[Labels, Value]
    note: str
    current: bool = True


@dataclass(slots=True)
class _Track:
    """One signal of one model: what was read, and what is told.

    ``shown`` is the state without words, kept until ``shown_until`` or the next survey that
    mentions the signal.
    """

    raws: dict[str, _Raw] = field(default_factory=dict)
    missing: dict[str, Missing] = field(default_factory=dict)
    told: dict[Labels, Value] = field(default_factory=dict)
    accounted: float = -inf
    seen: float = -inf
    shown: SignalState | None = None
    shown_until: float = -inf
    history: deque[tuple[float, Mapping[Labels, Value]]] = field(
        default_factory=lambda: deque(maxlen=round(SPAN / SNAPSHOT_EVERY) + 1)
    )


@dataclass(slots=True)
class _Source:
    """The health of a source, or of one part of it."""

    good: float | None = None
    took: float | None = None
    up: bool = False
    error: str = ""
    errors: Counter[str] = field(default_factory=Counter)

    def succeed(self, now: float, took: float) -> None:
        self.good, self.took, self.up, self.error = now, took, True, ""

    def fail(self, error: SourceError, took: float | None) -> None:
        self.took, self.up, self.error = took, False, str(error)
        self.errors[error.kind] += 1


class Store:
    """Chooses between methods, keeps counters monotone and forgets what is stale.

    Readings older than ``stale_after`` seconds have no series any more.  Models that no source has
    mentioned for ``forget_after`` seconds are forgotten, but only while all sources answer.  When
    there are ``max_models`` models (versions counted) new ones take the places of those that no
    source mentions any more; where there are none, and where a name is longer than ``MAX_NAME``,
    they are refused and shown as excluded.  ``tapped`` says that there is a tap, so that no fix
    advises one.
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
        self._sources: dict[str, _Source] = {}
        self._parts: dict[str, dict[str, _Source]] = {}
        self._surveys: dict[str, tuple[float, Snapshot]] = {}
        self.updates = asyncio.Lock()
        """Held while a survey is stored in steps."""
        self._tracks: dict[Model, dict[str, _Track]] = {}  # signals in catalogue order
        self._models: dict[Model, float] = {}
        self._refused: dict[str, Mapping[Model, str]] = {}
        self._joined: dict[str, Mapping[Model, Model]] = {}

    def update(self, snapshot: Snapshot, now: float, took: float) -> None:
        """Store the survey that a source returned at ``now`` after ``took`` seconds.

        Readings of a model without a version belong to its version if the model has exactly one.
        """
        for _ in self.updating(snapshot, now, took):
            pass

    def updating(self, snapshot: Snapshot, now: float, took: float) -> Iterator[None]:
        """Store a survey as :meth:`update` does, in steps of a few milliseconds.

        A step contains whole models.  Views may be taken between steps; hold :attr:`updates`, so
        that no other survey is stored between them.
        """
        source = self._sources.setdefault(snapshot.source, _Source())
        before = self._surveys.get(snapshot.source)
        known_before = None if before is None else self._known(before[1])
        snapshot = self._join_versions(snapshot)
        source.succeed(now, took)
        self._update_parts(snapshot, now, took)
        self._surveys[snapshot.source] = (now, snapshot)
        refused = self._admit(snapshot, now)
        yield

        items = _by_model(snapshot, refused)
        done = 0
        for model in [*items, *(self._tracks.keys() - items)]:
            measurements, missing = items.get(model, ((), ()))
            born = known_before is not None and model not in known_before
            self._update_model(model, snapshot.source, measurements, missing, now, born=born)
            done += len(self._tracks[model])
            if done >= SLICE:
                done = 0
                yield
        self._forget(now)

    def fail(self, source: str, error: SourceError, now: float, took: float) -> None:
        """Take in that a source could not be read at all."""
        self._sources.setdefault(source, _Source()).fail(error, took)
        for part in self._parts.get(source, {}).values():
            part.up, part.error = False, str(error)

    def view(self, now: float, *, in_words: bool = True) -> View:
        """Return everything that may be shown at ``now``.

        Without ``in_words`` nothing is said of the last minute, which takes longer than all else.
        """
        return View(
            signals=tuple(
                self._signal_state(model, signal, track, now, in_words=True)
                if in_words
                else self._kept_state(model, signal, track, now)
                for model in sorted(self._tracks)
                for signal, track in self._tracks[model].items()
            ),
            sources=tuple(self._source_states(now)),
            models=tuple(self._model_infos(now)),
            engine_stats_age={
                model: age + now - at
                for at, snapshot in self._fresh_surveys(now)
                for model, age in sorted(snapshot.engine_stats_age.items())
                if model in self._models
            },
            waiting_streams={
                model: WaitingStreams(at, count)
                for at, snapshot in self._fresh_surveys(now)
                for model, count in snapshot.waiting_streams.items()
            },
        )

    def models(self, now: float) -> tuple[ModelInfo, ...]:
        """Return every model that a source knows at ``now``."""
        return tuple(self._model_infos(now))

    # Taking in

    def _update_parts(self, snapshot: Snapshot, now: float, took: float) -> None:
        parts = self._parts.setdefault(snapshot.source, {})
        for name, error in snapshot.parts.items():
            part = parts.setdefault(name, _Source())
            if error is None:
                part.succeed(now, took)
            else:
                part.fail(error, took)
                self._sources[snapshot.source].errors[error.kind] += 1

    def _admit(self, snapshot: Snapshot, now: float) -> Mapping[Model, str]:
        """Note the survey's models; return those that are refused, with the reason."""
        mentioned = _mentioned(snapshot)
        refused = {model: why for model in mentioned if (why := _misfit(model))}
        fit = [model for model in mentioned if model not in refused]
        self._make_room(len(self._models.keys() | fit) - self._max_models, now)
        for model in fit:
            if model in self._models or len(self._models) < self._max_models:
                self._models[model] = now
            else:
                refused[model] = f"more than {self._max_models} models are reported on already"
        self._refused[snapshot.source] = refused
        return refused

    def _make_room(self, places: int, now: float) -> None:
        """Forget up to ``places`` models that no source mentions now, the longest gone first."""
        if places <= 0:
            return
        here = {model for _, snapshot in self._fresh_surveys(now) for model in _mentioned(snapshot)}
        gone = sorted(self._models.keys() - here, key=lambda model: (self._models[model], model))
        self._drop(frozenset(gone[:places]))

    def _update_model(
        self,
        model: Model,
        source: str,
        measurements: Iterable[Measurement],
        missing: Iterable[Missing],
        now: float,
        *,
        born: bool,
    ) -> None:
        """Store what a survey has about one model, and withdraw what it no longer has."""
        tracks = self._tracks.setdefault(model, {})
        known = len(tracks)
        read = _by_signal(measurements)
        gaps = {item.signal: item for item in missing}
        for signal, by_method in read.items():
            track = tracks.setdefault(signal, _Track())
            self._take(track, signal, source, by_method, now, born=born)
        for signal, gap in gaps.items():
            if signal not in read:
                track = tracks.get(signal) or tracks.setdefault(signal, _Track())
                before = track.missing.get(source)
                if before is not gap and before != gap:
                    track.missing[source], track.shown = gap, None
        if len(tracks) > known:
            tracks = self._tracks[model] = _in_order(tracks)
        for signal, track in tracks.items():
            gap_ = gaps.get(signal)
            if signal in read or gap_:
                track.seen = now
            if signal in read:
                track.shown = None
            elif not (gap_ and gap_.unread):
                _withdraw(track, source, gap_)
            # Here, in steps, so that a view only collects the states.
            self._kept_state(model, signal, track, now)

    def _take(
        self,
        track: _Track,
        signal: str,
        source: str,
        measurements: Mapping[str, Measurement],
        now: float,
        *,
        born: bool,
    ) -> None:
        track.missing.pop(source, None)
        previous = dict(track.raws)
        counts = SIGNALS[signal].kind != "gauge"
        for method, raw in track.raws.items():
            if raw.source == source and method not in measurements:
                raw.current = False
        for method, measurement in measurements.items():
            before = previous.get(method)
            last = (
                {**before.last, **measurement.samples} if before and counts else measurement.samples
            )
            track.raws[method] = _Raw(source, now, measurement.samples, last, measurement.note)
        best = self._best(track, now)
        if best in measurements and counts:
            _account(track, track.raws[best].samples, previous.get(best), now, born=born)

    def _join_versions(self, snapshot: Snapshot) -> Snapshot:
        """Give models without a version their only version, in the survey and in the store.

        A tap may see a model before its server is read.  Join before counting: each increase is
        then that of the sum, and is counted once.
        """
        mentioned = _mentioned(snapshot)
        known = self._models.keys() | (model for model in mentioned if not _misfit(model))
        for bare, named in _only_versions(self._models, known).items():
            self._models[named] = max(self._models.pop(bare), self._models.get(named, -inf))
            for source, (at, earlier) in self._surveys.items():
                self._surveys[source] = at, _with_versions(earlier, {bare: named})
            tracks = self._tracks.get(named, {})
            for signal, other in self._tracks.pop(bare, {}).items():
                tracks[signal] = track = _merged(tracks.get(signal), other)
                track.shown = None
            self._tracks[named] = _in_order(tracks)
        joined = _only_versions((*mentioned, *snapshot.waiting_streams), known)
        self._split_versions(snapshot.source, self._joined.get(snapshot.source, {}), joined)
        self._joined[snapshot.source] = joined
        return _with_versions(snapshot, joined)

    def _split_versions(
        self, source: str, before: Mapping[Model, Model], joined: Mapping[Model, Model]
    ) -> None:
        """Leave out the next increase of models that were joined and have several versions now.

        Their sum falls, which is no reset.
        """
        apart = {named for bare, named in before.items() if bare not in joined}
        for model in apart:
            for track in self._tracks.get(model, {}).values():
                track.raws = {
                    method: raw for method, raw in track.raws.items() if raw.source != source
                }
                track.shown = None

    def _known(self, snapshot: Snapshot) -> frozenset[Model]:
        """Return the models that a survey names, loaded or not: others are new in the next one."""
        named = frozenset(map(_model, snapshot.models)) | frozenset(
            map(_model, snapshot.measurements)
        )
        return named | self._joined.get(snapshot.source, {}).keys()

    def _drop(self, models: Container[Model]) -> None:
        self._models = {model: at for model, at in self._models.items() if model not in models}
        self._tracks = {
            model: tracks for model, tracks in self._tracks.items() if model not in models
        }

    def _forget(self, now: float) -> None:
        """Drop what nobody mentions; a source that is down may come back with all of it."""
        if not all(source.up for source in self._sources.values()):
            return
        horizon = now - self._forget_after
        self._models = {model: seen for model, seen in self._models.items() if seen > horizon}
        for model, tracks in [*self._tracks.items()]:
            for signal in [one for one, track in tracks.items() if track.seen <= horizon]:
                del tracks[signal]
            if not tracks or model not in self._models:
                del self._tracks[model]

    # Showing

    def _best(self, track: _Track, now: float) -> str:
        """Return the best method with a value that still holds, or an empty string."""
        fresh = [
            method
            for method, raw in track.raws.items()
            if raw.current and now - raw.at <= self._stale_after
        ]
        return min(fresh, key=lambda method: (METHODS[method].rank, method), default="")

    def _kept_state(self, model: Model, signal: str, track: _Track, now: float) -> SignalState:
        """Return the state without words; it changes with a survey or when a reading is stale."""
        if track.shown is None or now > track.shown_until:
            track.shown = self._signal_state(model, signal, track, now, in_words=False)
            if track.shown.method:
                track.shown_until = track.raws[track.shown.method].at + self._stale_after
            else:
                lapsed = any(raw.current for raw in track.raws.values())
                track.shown_until = -inf if lapsed else inf
        return track.shown

    def _signal_state(
        self, model: Model, name: str, track: _Track, now: float, *, in_words: bool
    ) -> SignalState:
        best = self._best(track, now)
        if not best:
            reason, fix = self._why_unavailable(track, now)
            return SignalState(name, *model, "", "unavailable", {}, note=reason, fix=fix)
        raw, method, signal = track.raws[best], METHODS[best], SIGNALS[name]
        latest = (track.accounted, track.told)
        shown = in_words and signal.kind != "gauge"
        return SignalState(
            name,
            *model,
            best,
            method.quality,
            raw.samples if signal.kind == "gauge" else dict(track.told),
            note="; ".join(filter(None, (method.note, raw.note))),
            recent=last_minute.in_words(signal, track.history, latest) if shown else "",
            last_minute=last_minute.increase(track.history, latest) if shown else {},
        )

    def _why_unavailable(self, track: _Track, now: float) -> tuple[str, str]:
        """Return reason and fix: what the source said, unless it had it and fell silent."""
        lapsed = [raw for raw in track.raws.values() if raw.current]
        if lapsed:
            raw = max(lapsed, key=lambda raw: raw.at)
            gap = track.missing.get(raw.source)
            source = self._sources[raw.source]
            reason = f"no good reading for {now - raw.at:.0f} s"
            why = source.error or (gap.reason if gap else "")
            fix = gap.fix if gap and not source.error else f"see the source {raw.source}"
            return (f"{reason}: {why}" if why else reason), fix
        gaps = sorted(track.missing.items(), key=lambda item: item[0] == TAPS)
        for _, gap in reversed(gaps):  # a tap sees most
            return gap.reason, with_a_tap(gap.fix) if self._tapped else gap.fix
        return "the server does not report on this model any more", "load the model"

    def _source_states(self, now: float) -> Iterator[SourceState]:
        for name, source in sorted(self._sources.items()):
            snapshot = self._surveys.get(name)
            ready = snapshot[1].ready if snapshot and source.up else None
            lost = snapshot[1].lost_records if snapshot else None
            yield replace(_source_state(name, source, now, ready), lost_records=lost)
            for part_name, part in sorted(self._parts.get(name, {}).items()):
                yield _source_state(f"{name}/{part_name}", part, now, None)

    def _fresh_surveys(self, now: float) -> Iterator[tuple[float, Snapshot]]:
        for _, (at, snapshot) in sorted(self._surveys.items()):
            if now - at <= self._stale_after:
                yield at, snapshot

    def _model_infos(self, now: float) -> Iterator[ModelInfo]:
        infos: dict[Model, ModelInfo] = {}
        for _, snapshot in self._fresh_surveys(now):
            refused = self._refused.get(snapshot.source, {})
            for info in snapshot.models:
                model = _model(info)
                if why := refused.get(model) or _misfit(model):
                    name, version = map(_cut, model)
                    info = replace(info, model=name, version=version, excluded=why)
                infos.setdefault(_model(info), info)
        yield from (info for _, info in sorted(infos.items()))


def _model(item: Measurement | Missing | ModelInfo) -> Model:
    return (item.model, item.version)


def _only_versions(models: Iterable[Model], known: Iterable[Model]) -> dict[Model, Model]:
    """Map each model without a version to its version, if ``known`` has exactly one."""
    bare = {name for name, version in models if not version}
    versions: dict[str, list[Model]] = {}
    for model in known if bare else ():
        if model[1] and model[0] in bare:
            versions.setdefault(model[0], []).append(model)
    return {(name, ""): found[0] for name, found in versions.items() if len(found) == 1}


def _merged(track: _Track | None, other: _Track) -> _Track:
    """Add another track of the same signal; what ``track`` counts goes on."""
    if track is None:
        return other
    if track.accounted == -inf:
        track.accounted, track.told, track.history = other.accounted, other.told, other.history
    for method, raw in other.raws.items():
        twin = track.raws.get(method)
        track.raws[method] = _both(twin, raw) if twin and twin.source == raw.source else twin or raw
    track.missing = {**other.missing, **track.missing}
    track.seen = max(track.seen, other.seen)
    return track


def _both(one: _Raw, other: _Raw) -> _Raw:
    return replace(
        one,
        at=min(one.at, other.at),
        samples=_sums(one.samples, other.samples),
        last=_sums(one.last, other.last),
        current=one.current or other.current,
    )


def _with_versions(snapshot: Snapshot, joined: Mapping[Model, Model]) -> Snapshot:
    if not joined:
        return snapshot

    def versioned(item: Item) -> Item:
        model = joined.get(_model(item))
        return replace(item, version=model[1]) if model else item

    streams: Counter[Model] = Counter()
    for model, count in snapshot.waiting_streams.items():
        streams[joined.get(model, model)] += count
    return replace(
        snapshot,
        measurements=tuple(map(versioned, snapshot.measurements)),
        missing=tuple(map(versioned, snapshot.missing)),
        models=tuple(map(versioned, snapshot.models)),
        waiting_streams=streams,
    )


def _mentioned(snapshot: Snapshot) -> dict[Model, None]:
    """Return the models that a survey reports on, in its order."""
    return dict.fromkeys([*map(_model, snapshot.measurements), *map(_model, snapshot.missing)])


def _misfit(model: Model) -> str:
    """Say why a model's name cannot be a label; empty if it can."""
    if max(map(len, model)) > MAX_NAME:
        return f"its name or version is longer than {MAX_NAME} characters"
    return ""


def _cut(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[:SHOWN_NAME]}…"


def _by_model(
    snapshot: Snapshot, refused: Container[Model]
) -> dict[Model, tuple[list[Measurement], list[Missing]]]:
    found: dict[Model, tuple[list[Measurement], list[Missing]]] = {}
    for measurement in snapshot.measurements:
        if (model := _model(measurement)) not in refused:
            found.setdefault(model, ([], []))[0].append(measurement)
    for gap in snapshot.missing:
        if (model := _model(gap)) not in refused:
            found.setdefault(model, ([], []))[1].append(gap)
    return found


def _by_signal(measurements: Iterable[Measurement]) -> dict[str, dict[str, Measurement]]:
    """Return readings by signal and method."""
    found: dict[str, dict[str, Measurement]] = {}
    for measurement in measurements:
        methods = found.setdefault(measurement.signal, {})
        twin = methods.get(measurement.method)
        methods[measurement.method] = _added_up(twin, measurement) if twin else measurement
    return found


def _in_order(tracks: Mapping[str, _Track]) -> dict[str, _Track]:
    return {signal: tracks[signal] for signal in sorted(tracks, key=ORDER.__getitem__)}


def _withdraw(track: _Track, source: str, gap: Missing | None) -> None:
    """Mark what a source used to give and now does not."""
    if gap is None and source in track.missing:
        del track.missing[source]
        track.shown = None
    for raw in track.raws.values():
        if raw.source == source and raw.current:
            raw.current, track.shown = False, None


def _added_up(one: Measurement, other: Measurement) -> Measurement:
    """Add readings of one model, of which one has the version that the other lacks."""
    return replace(other, samples=_sums(one.samples, other.samples))


def _sums(one: Mapping[Labels, Value], other: Mapping[Labels, Value]) -> dict[Labels, Value]:
    sums = dict(one)
    for labels, value in other.items():
        sums[labels] = plus(sums.get(labels), value)
    return sums


def _source_state(name: str, source: _Source, now: float, ready: bool | None) -> SourceState:
    return SourceState(
        source=name,
        up=source.up,
        age=None if source.good is None else now - source.good,
        read_seconds=source.took,
        error=source.error,
        errors=dict(sorted(source.errors.items())),
        ready=ready,
    )


def _account(
    track: _Track,
    samples: Mapping[Labels, Value],
    before: _Raw | None,
    now: float,
    *,
    born: bool,
) -> None:
    """Add to what is told what came in since the method's previous value.

    ``born`` says that the source did not know the model at its previous reading.
    """
    known = before.at >= track.accounted if before else born and track.accounted == -inf
    for labels, value in samples.items():
        previous = before.last.get(labels) if before else None
        added = since(previous, value) if known else nothing_of(value)
        told = track.told.get(labels)
        if isinstance(told, Distribution) and not _same_edges(told, value):
            track.history.clear()
        track.told[labels] = plus(told, added)
    track.accounted = now
    if not track.history or now - track.history[-1][0] >= SNAPSHOT_EVERY:
        track.history.append((now, dict(track.told)))


def _same_edges(told: Distribution, value: Value) -> bool:
    return isinstance(value, Distribution) and told.edges == value.edges
