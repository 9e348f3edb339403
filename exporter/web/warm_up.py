"""Render new models once before the store has them, so that no scrape meets empty caches.

Label sets and the heads of lines of 200 models take 0.1 to 0.2 s; every later scrape finds them.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from exporter.samples import Measurement, Missing, ModelInfo, Snapshot
from exporter.store.store import Store
from exporter.web.collector import expose


class WarmUp:
    """Fills the caches of :func:`exporter.web.collector.expose` for the models of one source."""

    def __init__(self) -> None:
        self._known: frozenset[ModelInfo] = frozenset()

    def take(self, snapshot: Snapshot) -> None:
        """Render the models that are new or changed since the last survey; discard the text."""
        models = frozenset(snapshot.models)
        new = {(info.model, info.version) for info in models - self._known}
        self._known = models
        if not new:
            return

        def is_new(item: Measurement | Missing) -> bool:
            return (item.model, item.version) in new

        preview = Store(inf)
        part = replace(
            snapshot,
            measurements=tuple(filter(is_new, snapshot.measurements)),
            missing=tuple(filter(is_new, snapshot.missing)),
        )
        preview.update(part, 0.0, 0.0)
        expose(preview.view(0.0, with_last_minute=False), "")
