"""Scrape one source at an interval, and store what it gives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from time import monotonic

from exporter.log import ProblemLog
from exporter.objectives.objective_log import ObjectiveLog
from exporter.objectives.slo_events import SloEvents
from exporter.objectives.unclassified_models import with_unclassified
from exporter.render_gate import RENDER_GATE
from exporter.samples import Snapshot, SourceError
from exporter.sources import Source
from exporter.sources.probe import without_probes
from exporter.sources.tap_source import TapSource
from exporter.store.store import Store
from exporter.web.warm_up import WarmUp

DEFECT = "internal error, please report it"
MIN_PAUSE = 0.25
"""Minimum pause after a scrape, as a share of the interval: the sidecar serves meanwhile."""


async def scrape(
    source: Source,
    store: Store,
    objectives: ObjectiveLog,
    events: SloEvents,
    interval: float,
    probed: Collection[str],
    updated: Callable[[], None],
    *,
    has_classes: bool = False,
) -> None:
    """Scrape a source and store the results, until the task is cancelled.

    ``probed`` are models with probes of their own, and ``updated`` is called after every step.
    With ``has_classes``, models without prompt classes get the reason.
    """
    problem_log = ProblemLog()
    warm_up = WarmUp()
    while True:
        began = monotonic()
        snapshot = await _scrape_once(
            source,
            store,
            problem_log,
            events,
            warm_up,
            began,
            probed,
            updated,
            has_classes=has_classes,
        )
        await RENDER_GATE.opened()
        try:
            objectives.update(snapshot, store.view, monotonic())
        except Exception as error:
            # A defect in logging objectives must not stop the scrape.
            what = "logging which objectives can be measured"
            problem_log.failed(what, DEFECT, monotonic(), error)
        await asyncio.sleep(max(MIN_PAUSE * interval, began + interval - monotonic()))


async def _scrape_once(
    source: Source,
    store: Store,
    problem_log: ProblemLog,
    events: SloEvents,
    warm_up: WarmUp,
    began: float,
    probed: Collection[str],
    updated: Callable[[], None],
    *,
    has_classes: bool,
) -> Snapshot | None:
    """Scrape a source and store the result; return the snapshot, None after an error."""
    what = f"scraping {source.name}"
    if isinstance(source, TapSource):
        source.set_models(store.models(began))
    try:
        scraped = await source.snapshot(began)
        await RENDER_GATE.opened()
        snapshot = events.added(without_probes(scraped, probed), began)
        if has_classes:
            snapshot = with_unclassified(snapshot)
        await asyncio.to_thread(warm_up.warm, snapshot)
        now = await _store(store, snapshot, monotonic() - began, updated)
    except SourceError as error:
        now = monotonic()
        store.fail(source.name, error, now, now - began)
        problem_log.failed(what, str(error), now)
        return None
    except Exception as error:
        # A defect in one source must not stop other sources or serving.
        now = monotonic()
        store.fail(
            source.name, SourceError("defect", f"internal error: {error!r}"), now, now - began
        )
        problem_log.failed(what, DEFECT, now, error)
        return None
    problem_log.recovered(what, now)
    for part, problem in snapshot.parts.items():
        if problem:
            problem_log.failed(f"{what}/{part}", str(problem), now)
        else:
            problem_log.recovered(f"{what}/{part}", now)
    return snapshot


async def _store(
    store: Store, snapshot: Snapshot, took: float, updated: Callable[[], None]
) -> float:
    """Store a snapshot in steps, so that the sidecar continues to serve; return its time.

    ``updated`` is called after every step.
    """
    async with store.updates:
        now = monotonic()
        for _ in store.updating(snapshot, now, took):
            updated()
            await RENDER_GATE.opened()
    return now
