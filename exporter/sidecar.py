"""The running sidecar: read the sources again and again, and serve what is known."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from time import monotonic

from exporter.config import Config
from exporter.log import LOG, Episodes
from exporter.objectives import ObjectiveState, judge
from exporter.readiness import readiness
from exporter.readings import ModelInfo, SourceError, Survey
from exporter.server import Facts, application, start
from exporter.sources import Source
from exporter.sources.configured import configured
from exporter.status import Status
from exporter.store import Store
from exporter.view import View
from slos.model import Service

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run(config: Config, services: Sequence[Service], version: str) -> None:
    """Run until the process is told to stop; raises InvalidFile if the port cannot be had."""
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        sources = [await stack.enter_async_context(source) for source in configured(config)]
        for source in sources:
            LOG.info("reading %s every %g s", source.where, config.interval)
        await watch(sources, config, services, version, stop, announce=_announce)


async def watch(
    sources: Sequence[Source],
    config: Config,
    services: Sequence[Service],
    version: str,
    stop: asyncio.Event,
    *,
    announce: Callable[[str, str], None],
) -> None:
    """Read ``sources`` and serve until ``stop``; ``announce`` gets version and URL once ready."""
    store = Store(config.stale_after)

    def status(view: View) -> Status:
        return Status(
            version=version,
            time=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            view=view,
            readiness=readiness(view, config.stale_after),
            objectives=judge(services, view),
        )

    app = application(Facts(version, lambda: store.view(monotonic()), status))
    async with AsyncExitStack() as stack:
        url, close = await start(app, config.listen)
        stack.push_async_callback(close)
        announce(version, url)
        for source in sources:
            reading = asyncio.create_task(_read(source, store, services, config.interval))
            stack.push_async_callback(_cancel, reading)
        await stop.wait()


async def _read(source: Source, store: Store, services: Sequence[Service], interval: float) -> None:
    episodes, told = Episodes(), _Told()
    models: tuple[ModelInfo, ...] | None = None
    while True:
        began = monotonic()
        survey = await _read_once(source, store, episodes, began)
        if services and survey and survey.models != models:
            models = survey.models
            told.tell(judge(services, store.view(monotonic())))
        await asyncio.sleep(max(0.0, began + interval - monotonic()))


async def _read_once(
    source: Source, store: Store, episodes: Episodes, began: float
) -> Survey | None:
    """Read a source and store what came of it; return the survey if there is one."""
    what = f"reading {source.name}"
    try:
        survey = await source.survey(began)
    except SourceError as error:
        now = monotonic()
        store.fail(source.name, error, now, now - began)
        episodes.went_wrong(what, str(error), now)
        return None
    except Exception as error:
        # A defect in reading one source must not stop the others, nor what is served.
        now = monotonic()
        store.fail(
            source.name, SourceError("defect", f"internal error: {error!r}"), now, now - began
        )
        episodes.went_wrong(what, "internal error, please report it", now, error)
        return None
    now = monotonic()
    store.update(survey, now, now - began)
    episodes.went_well(what, now)
    for part, problem in survey.parts.items():
        if problem:
            episodes.went_wrong(f"{what}/{part}", str(problem), now)
        else:
            episodes.went_well(f"{what}/{part}", now)
    return survey


class _Told:
    """Logs what is to be known of each objective on each model, once."""

    def __init__(self) -> None:
        self._keys: set[tuple[str, str, str, str]] = set()

    def tell(self, states: Sequence[ObjectiveState]) -> None:
        for state in states:
            key = (state.file, state.objective, state.model, state.version)
            if key not in self._keys:
                self._keys.add(key)
                _tell(state)


def _tell(state: ObjectiveState) -> None:
    where = f"{state.service}/{state.objective}" + (f" on {state.model}" if state.model else "")
    if state.quality == "unavailable":
        fix = f". Fix: {state.fix}." if state.fix else ""
        LOG.warning("objective %s cannot be measured: %s%s", where, state.note, fix)
    else:
        note = f": {state.note}" if state.note else ""
        LOG.info("objective %s is measured, quality %s%s", where, state.quality, note)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _announce(version: str, url: str) -> None:
    print(f"tokenslo {version}: metrics {url}/metrics, status {url}/", flush=True)
