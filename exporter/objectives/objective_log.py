"""Log the measurement quality of every objective, and its changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from exporter.log import LOG
from exporter.objectives.objective_status import ObjectiveState, evaluate
from exporter.samples import ModelInfo, Snapshot
from exporter.store.view import View
from slos.model import Service

CHECK_INTERVAL = 5.0
"""Seconds between two checks while no source's models change."""
SETTLED = 10.0
"""Seconds that a change must last before it is logged: flapping must not fill the log."""

_NUMBER = re.compile(r"[0-9][0-9.,]*")

Key = tuple[str, str, str, str]
Kind = tuple[str, str]


@dataclass(slots=True)
class _LogState:
    """The current kind of state, since when, when seen last, and the kind logged last."""

    kind: Kind
    since: float
    seen: float
    logged: Kind | None = None


class ObjectiveLog:
    """Log each objective on each model once, and again after a lasting change.

    Nothing is logged before all ``sources`` were scraped and one of them successfully.
    """

    def __init__(self, services: Sequence[Service], sources: Iterable[str]) -> None:
        self._services = services
        self._sources = frozenset(sources)
        self._models: dict[str, tuple[ModelInfo, ...]] = {}
        self._states: dict[Key, _LogState] = {}
        self._due = -inf

    def update(self, snapshot: Snapshot | None, view: Callable[[float], View], now: float) -> None:
        """Log changed objectives after a scrape of a source at ``now`` (seconds).

        ``snapshot`` is its result, None if it failed.  ``view`` returns the view at a time; it is
        called only when a check is due.
        """
        changed = snapshot is not None and self._models.get(snapshot.source) != snapshot.models
        if not self._services or (now < self._due and not changed):
            return
        current = view(now)
        tried = {source.source for source in current.sources}
        if not (self._sources <= tried and any(one.age is not None for one in current.sources)):
            return
        if snapshot:
            self._models[snapshot.source] = snapshot.models
        self._due = now + CHECK_INTERVAL
        for state in evaluate(self._services, current):
            self._log_change(state, now)
        self._states = {
            key: known for key, known in self._states.items() if now - known.seen <= SETTLED
        }

    def _log_change(self, state: ObjectiveState, now: float) -> None:
        key = (state.file, state.objective, state.model, state.version)
        # Numbers in notes change ("for 7 s"): another number is no change of state.
        kind = (state.quality, _NUMBER.sub("#", state.note))
        known = self._states.setdefault(key, _LogState(kind, now, now))
        known.seen = now
        if known.kind != kind:
            known.kind, known.since = kind, now
        if known.logged is None or (known.logged != kind and now - known.since >= SETTLED):
            known.logged = kind
            _log(state)


def _log(state: ObjectiveState) -> None:
    where = f"{state.service}/{state.objective}" + (f" on {state.model}" if state.model else "")
    if state.quality == "unavailable":
        fix = f". Fix: {state.fix}." if state.fix else ""
        LOG.warning("objective %s cannot be measured: %s%s", where, state.note, fix)
    else:
        note = f": {state.note}" if state.note else ""
        LOG.info("objective %s is measured, quality %s%s", where, state.quality, note)
