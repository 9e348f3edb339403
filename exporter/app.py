"""The running sidecar: scrape the sources at an interval, and serve the results."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from time import monotonic, time
from typing import TYPE_CHECKING

from exporter.background import Supervisor, TaskState, cancel
from exporter.families import MetricFamily, own_family
from exporter.genai import PROFILES, GenAiProfile
from exporter.http_server import start
from exporter.interpreter import (
    limit_garbage_collection,
    return_free_memory,
    shorten_thread_switches,
)
from exporter.log import LOG, ProblemLog
from exporter.objectives.objective_log import ObjectiveLog
from exporter.objectives.objective_status import evaluate
from exporter.objectives.slo_events import SloEvents
from exporter.objectives.time_slices import SliceEvaluator
from exporter.objectives.unseen_models import selected_models, with_unseen
from exporter.process_metrics import families as process_families
from exporter.process_metrics import tap_families
from exporter.render_gate import RENDER_GATE
from exporter.scrape_loop import scrape
from exporter.settings import Settings
from exporter.settings.listeners import listener_access
from exporter.sources import Source
from exporter.sources.factory import configured
from exporter.sources.probe import Probe, of_openai, of_triton
from exporter.sources.probe import families as probe_families
from exporter.sources.tap_source import TapSource
from exporter.store.decode_progress import DecodeProgress
from exporter.store.latency_history import LatencyRecorder
from exporter.store.store import Store
from exporter.store.view import View
from exporter.web.gateway_page import GatewayPage
from exporter.web.last_scrape import LastScrape
from exporter.web.otlp_genai import from_engines
from exporter.web.readiness import Readiness, ReadinessInputs, readiness
from exporter.web.readiness import family as ready_family
from exporter.web.server import Facts, application
from exporter.web.status import Status
from exporter.web.view_families import families
from slos.model import Service
from slos.prompt_classes import shared_classes
from slos.thresholds import thresholds

if TYPE_CHECKING:
    from exporter.web.otlp_export import OtlpExport, Push

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
CHECK_INTERVAL = 1.0
"""Shortest time between checks whether engines decode."""


async def run(config: Settings, services: Sequence[Service], version: str) -> None:
    """Run until a stop signal; raises InvalidFile if the port is not available."""
    shorten_thread_switches()
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        sources = [
            await stack.enter_async_context(source) for source in configured(config, services)
        ]
        for source in sources:
            LOG.info("scraping %s every %g s", source.where, config.interval)
        limit_garbage_collection()
        return_free_memory()
        await watch(sources, config, services, version, stop, announce=_announce)


async def watch(
    sources: Sequence[Source],
    config: Settings,
    services: Sequence[Service],
    version: str,
    stop: asyncio.Event,
    *,
    announce: Callable[[str, str], None],
) -> None:
    """Scrape and serve until ``stop``; ``announce`` gets version and URL once serving."""
    store = Store(config.stale_after, tapped=bool(config.tap))
    selected = selected_models(services)
    boundaries = thresholds(services)
    has_classes = bool(shared_classes(services).labels)
    objectives = ObjectiveLog(services, (source.name for source in sources))
    progress = DecodeProgress(config.stuck_after, unwatched_after=config.unready_after)
    slices = SliceEvaluator(services)
    latencies = LatencyRecorder(config.interval)
    probes = tuple(_probes(config, store, progress))
    taps = [source for source in sources if isinstance(source, TapSource)]
    export = _otlp_export(config, version)
    supervisor = Supervisor()
    gateway_metrics = tuple(chain.from_iterable(config.gateway_metrics))
    last_scrape = LastScrape()
    gateway_page = GatewayPage(lambda: store.states_by_model(monotonic()), gateway_metrics)

    def tasks() -> tuple[TaskState, ...]:
        return (
            *supervisor.states,
            *chain.from_iterable(source.tasks() for source in sources),
        )

    def current_view() -> View:
        view = store.view(monotonic())
        return replace(with_unseen(view, selected), slices=slices.states())

    def current_readiness(view: View) -> Readiness:
        decoding = progress.decoding(view, monotonic())
        answers = {probe.model: probe.state for probe in probes}
        return readiness(
            view, config.unready_after, ReadinessInputs(config.expect_model, decoding, answers)
        )

    def own(view: View, ready: Readiness) -> tuple[MetricFamily, ...]:
        exported = (export.family(),) if export else ()
        tapped = tuple(chain.from_iterable(source.families() for source in taps))
        restarts = own_family(
            "tokenslo_task_restarts", [({"task": one.task}, one.restarts) for one in tasks()]
        )
        return (
            ready_family(ready),
            *probe_families(probes),
            *tapped,
            restarts,
            *exported,
        )

    def of_processes() -> tuple[MetricFamily, ...]:
        pids = [source.pid for source in taps if source.pid is not None]
        return (*process_families(), *chain.from_iterable(map(tap_families, pids)))

    async def metrics_families(view: View) -> tuple[MetricFamily, ...]:
        # In a thread: the kernel takes milliseconds to list thousands of open files.
        processes = await asyncio.to_thread(of_processes)
        # Steps, each of about a millisecond with hundreds of models.
        ready = current_readiness(view)
        await asyncio.sleep(0)
        own_families = own(view, ready)
        await asyncio.sleep(0)
        return (*own_families, *gateway_page.families(), *processes)

    def status(view: View) -> Status:
        return Status(
            version=version,
            time=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            view=view,
            readiness=current_readiness(view),
            objectives=evaluate(services, view),
            tasks=tasks(),
            history=latencies.history,
        )

    def current_push(profile: GenAiProfile | None) -> Push:
        from exporter.web.otlp_export import Push

        view = current_view()
        tapped = tuple(chain.from_iterable(source.genai for source in taps))
        series = (*tapped, *from_engines(view, profile)) if profile else ()
        more = own(view, current_readiness(view))
        return Push(partial(families, view, version, more), view.models, series)

    facts = Facts(
        version,
        current_view,
        lambda: store.summarized_view(monotonic()),
        current_readiness,
        status,
        metrics_families,
        gateway_page.render if gateway_metrics else None,
        last_scrape.rendered,
    )
    async with AsyncExitStack() as stack:
        access = listener_access(config, config.listen)
        url, close = await start(application(facts), config.listen, access)
        stack.push_async_callback(close)
        announce(version, url)
        if export:
            stack.push_async_callback(lambda: export.close(current_push(export.profile)))
        await stack.enter_async_context(supervisor)
        if export:
            push = partial(
                _push, export, lambda: current_push(export.profile), config.otlp_interval
            )
            supervisor.start("otlp-push", push)
        for source in sources:
            work = partial(
                scrape,
                source,
                store,
                objectives,
                SloEvents(boundaries),
                config.interval,
                config.probe,
                gateway_page.update,
                has_classes=has_classes,
            )
            supervisor.start(f"read {source.name}", work)
        interval_seconds = max(config.interval, CHECK_INTERVAL)
        supervisor.start(
            "progress",
            partial(
                _track_progress,
                progress,
                slices,
                latencies,
                store,
                current_readiness,
                interval_seconds,
            ),
        )
        for probe in probes:
            supervisor.start(f"probe {probe.model}", probe.run)
        await stop.wait()
        stop.clear()
        if taps:
            await _drain(taps, stop, partial(last_scrape.wait, current_view), config.tap_drain)


async def _drain(
    taps: Sequence[TapSource],
    stop: asyncio.Event,
    scraped: Callable[[float], Awaitable[None]],
    seconds: float,
) -> None:
    """Let streams end, and be ``scraped``, for ``seconds`` or until a second stop signal.

    The sidecar continues to serve.
    """

    async def drained() -> None:
        deadline = monotonic() + seconds
        await asyncio.gather(*(source.drain() for source in taps))
        await scraped(max(0.0, deadline - monotonic()))

    LOG.info("draining streams; send the signal again to stop at once")
    tasks = [asyncio.create_task(drained()), asyncio.create_task(stop.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await cancel(*tasks)


def _probes(config: Settings, store: Store, progress: DecodeProgress) -> Iterator[Probe]:
    def produced_since(time: float) -> bool:
        _update_progress(progress, store)
        return progress.produced_since(time)

    send_probe = (
        of_triton(config.triton)
        if config.triton
        else of_openai(config.trtllm or config.vllm or config.sglang)
    )
    for model in config.probe:
        yield Probe(
            model,
            send_probe,
            interval=config.probe_interval,
            timeout=config.probe_timeout,
            produced_since=produced_since,
        )


def _otlp_export(config: Settings, version: str) -> OtlpExport | None:
    if not config.otlp_endpoint:
        return None
    # OpenTelemetry's libraries are slow to load, so they are imported only to push.
    from exporter.web.otlp_export import OtlpExport, server_attributes

    server = server_attributes([config.triton, config.trtllm, config.vllm, config.sglang])
    profile = PROFILES.get(config.otlp_genai)
    export = OtlpExport(config.otlp_endpoint, version, server, profile)
    LOG.info("sending metrics to %s every %g s", export.where, config.otlp_interval)
    return export


async def _push(
    export: OtlpExport,
    current_push: Callable[[], Push],
    interval: float,
) -> None:
    while True:
        await asyncio.sleep(interval)
        export.offer(current_push())


async def _track_progress(
    progress: DecodeProgress,
    slices: SliceEvaluator,
    latencies: LatencyRecorder,
    store: Store,
    current_readiness: Callable[[View], Readiness],
    interval_seconds: float,
) -> None:
    problem_log = ProblemLog()
    while True:
        await RENDER_GATE.opened()
        now = monotonic()
        view = store.view(now)
        await RENDER_GATE.opened()
        progress.update(view, now)
        await RENDER_GATE.opened()
        slices.update(view, time())
        await RENDER_GATE.opened()
        _log_readiness(current_readiness(view), problem_log, now)
        await RENDER_GATE.opened()
        latencies.update(view, now)
        await asyncio.sleep(interval_seconds)


def _log_readiness(readiness: Readiness, problem_log: ProblemLog, now: float) -> None:
    """Log when a layer becomes unready and when it is ready again.

    Sources and probes have log lines of their own.
    """
    for layer in readiness.layers:
        if layer.layer in ("server", "model", "decode"):
            what = f"readiness of {layer.layer} {layer.name}"
            if layer.ready is False:
                problem_log.failed(what, layer.reason, now)
            elif layer.ready:
                problem_log.recovered(what, now)


def _update_progress(progress: DecodeProgress, store: Store) -> None:
    now = monotonic()
    progress.update(store.view(now), now)


def _announce(version: str, url: str) -> None:
    print(f"tokenslo {version}: metrics {url}/metrics, status {url}/", flush=True)
