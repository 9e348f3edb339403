"""What the log says of objectives: how each is measured on each model, and when that changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from exporter.log import LOG
from exporter.objectives.objective_status import ObjectiveState, judge
from exporter.samples import ModelInfo, Snapshot
from exporter.store.view import View
from slos.model import Service

LOOK_EVERY = 5.0
"""Seconds between two looks as long as no source's models change."""
SETTLED = 10.0
"""Seconds for which a change must have held to be told, lest what flaps fills the log."""

_NUMBER = re.compile(r"[0-9][0-9.,]*")

Key = tuple[str, str, str, str]
Kind = tuple[str, str]


@dataclass(slots=True)
class _Word:
    """The kind of state that was seen last, since when, when last, and the one that was told."""

    kind: Kind
    since: float
    seen: float
    told: Kind | None = None


class ObjectiveLog:
    """Tells of each objective on each model once, and again when it has changed for good.

    Nothing is told before each of ``sources`` was tried and one of them could be read.
    """

    def __init__(self, services: Sequence[Service], sources: Iterable[str]) -> None:
        self._services = services
        self._sources = frozenset(sources)
        self._models: dict[str, tuple[ModelInfo, ...]] = {}
        self._words: dict[Key, _Word] = {}
        self._due = -inf

    def look(self, snapshot: Snapshot | None, view: Callable[[float], View], now: float) -> None:
        """Tell what there is to tell after an attempt to read a source, at ``now`` (seconds).

        ``snapshot`` is what came of it, if anything, and ``view`` returns what is known at a time;
        it is asked only when it is time to look.
        """
        changed = snapshot is not None and self._models.get(snapshot.source) != snapshot.models
        if not self._services or (now < self._due and not changed):
            return
        shown = view(now)
        tried = {source.source for source in shown.sources}
        if not (self._sources <= tried and any(one.age is not None for one in shown.sources)):
            return
        if snapshot:
            self._models[snapshot.source] = snapshot.models
        self._due = now + LOOK_EVERY
        for state in judge(self._services, shown):
            self._hear(state, now)
        self._words = {key: word for key, word in self._words.items() if now - word.seen <= SETTLED}

    def _hear(self, state: ObjectiveState, now: float) -> None:
        key = (state.file, state.objective, state.model, state.version)
        # Numbers come and go in notes ("for 7 s"): another number is no news.
        kind = (state.quality, _NUMBER.sub("#", state.note))
        word = self._words.setdefault(key, _Word(kind, now, now))
        word.seen = now
        if word.kind != kind:
            word.kind, word.since = kind, now
        if word.told is None or (word.told != kind and now - word.since >= SETTLED):
            word.told = kind
            _tell(state)


def _tell(state: ObjectiveState) -> None:
    where = f"{state.service}/{state.objective}" + (f" on {state.model}" if state.model else "")
    if state.quality == "unavailable":
        fix = f". Fix: {state.fix}." if state.fix else ""
        LOG.warning("objective %s cannot be measured: %s%s", where, state.note, fix)
    else:
        note = f": {state.note}" if state.note else ""
        LOG.info("objective %s is measured, quality %s%s", where, state.quality, note)
