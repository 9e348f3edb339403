"""Render new models once before the store has them, so that no scrape meets empty caches.

Label sets and the heads of lines of 200 models take 0.1 to 0.2 s; every later scrape finds them.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from exporter.samples import Missing, ModelInfo, Reading, Survey
from exporter.store.store import Store
from exporter.web.collector import expose


class WarmUp:
    """Fills the caches of :func:`exporter.web.collector.expose` for the models of one source."""

    def __init__(self) -> None:
        self._known: frozenset[ModelInfo] = frozenset()

    def take(self, survey: Survey) -> None:
        """Render the models that are new or changed since the last survey; discard the text."""
        models = frozenset(survey.models)
        new = {(info.model, info.version) for info in models - self._known}
        self._known = models
        if not new:
            return

        def is_new(item: Reading | Missing) -> bool:
            return (item.model, item.version) in new

        preview = Store(inf)
        part = replace(
            survey,
            readings=tuple(filter(is_new, survey.readings)),
            missing=tuple(filter(is_new, survey.missing)),
        )
        preview.update(part, 0.0, 0.0)
        expose(preview.view(0.0, in_words=False), "")
