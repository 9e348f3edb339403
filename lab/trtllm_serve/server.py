"""The HTTP server of the simulated trtllm-serve.

A real server has no ``/lab/truth``.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from aiohttp import web

from lab.driver import Driver
from lab.engine import EngineStep, SimulatedEngine
from lab.engine_events import EngineEvent, EngineRequest
from lab.engine_settings import EngineSettings
from lab.trtllm_serve import iteration_json, openai, perf_metrics, typed_events
from lab.trtllm_serve.iteration_readers import BodyReader, Buffer, OneFetch, Tee, UntilIdle
from lab.trtllm_serve.openai import Api, BadRequest, CompletionWriter
from lab.trtllm_serve.perf_metrics import FinishedRequest
from lab.trtllm_serve.prometheus import Exposition, simulate_dead_worker
from lab.trtllm_serve.settings import ServeSettings
from lab.trtllm_serve.truth import RequestLog

_POLL_SECONDS = 1.0
"""Interval between checks for client disconnects."""


class SimulatedTrtllmServe:
    """One server and its engine, which starts immediately."""

    def __init__(self, settings: ServeSettings, engine: EngineSettings) -> None:
        self._settings = settings
        self._exposition: Exposition | None = None
        if settings.prometheus != "none":
            if settings.dead_worker:
                simulate_dead_worker(settings, engine, _dead_worker_records(settings, engine))
            self._exposition = Exposition(settings, engine)
        self._buffer = Buffer(settings.kept_records)
        self._reader = self._make_reader()
        self._records = iteration_json.records(settings, engine)
        self._file = _open(settings.iterations_file)
        self._perf_metrics: deque[FinishedRequest] = deque(
            maxlen=settings.perf_metrics_max_requests
        )
        self._output = None
        if settings.perf_metrics_output_dir:
            self._output = perf_metrics.output_file(Path(settings.perf_metrics_output_dir))
        self._truth = RequestLog()
        self._created = int(time.time())
        self._watchers: set[asyncio.Task[None]] = set()
        self._driver = Driver(SimulatedEngine(engine), self._observe)

    def app(self) -> web.Application:
        """Return the application; its cleanup closes the engine."""
        app = web.Application(client_max_size=16 * 2**20)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/responses", self._responses)
        app.router.add_post("/v1/messages", self._messages)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        if self._exposition:
            app.router.add_get("/prometheus/metrics", self._prometheus)
        if self._settings.per_request == "endpoint":
            app.router.add_get("/perf_metrics", self._read_perf_metrics)
        app.router.add_get("/lab/truth", self._read_truth)
        app.cleanup_ctx.append(self._lifetime)
        return app

    async def _lifetime(self, _: web.Application) -> AsyncIterator[None]:
        work = asyncio.create_task(self._reader.run())
        yield
        work.cancel()
        # The driver's listeners need the event loop, so the driver closes first.
        await asyncio.to_thread(self._driver.close)
        if self._file:
            self._file.close()

    def _make_reader(self) -> BodyReader:
        if self._settings.read == "until-idle":
            return UntilIdle(self._buffer)
        if self._settings.read == "one-fetch" or not self._exposition:
            update = self._exposition.iteration if self._exposition else None
            return OneFetch(self._buffer, update)
        kept, copies = self._settings.kept_records, self._settings.record_copies
        return Tee(self._buffer, self._exposition.iteration, kept, copies)

    def _observe(self, now: float, step: EngineStep) -> None:
        """Record a step of the engine, on its thread."""
        if not self._settings.iteration_stats:
            return
        for record in self._records.of(now, step):
            self._buffer.add(record)
            if self._file:
                self._file.write(openai.compact(record) + "\n")
                self._file.flush()

    # Completions

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._respond(openai.COMPLETIONS, request)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._respond(openai.CHAT, request)

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        return await self._respond(typed_events.RESPONSES, request)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        return await self._respond(typed_events.MESSAGES, request)

    async def _respond(self, api: Api, request: web.Request) -> web.StreamResponse:
        arrived = time.monotonic()
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[EngineEvent] = asyncio.Queue()

        def listen(event: EngineEvent) -> None:
            self._truth.record(event)
            loop.call_soon_threadsafe(events.put_nowait, event)

        try:
            body = openai.read(api, await request.read())
            work = EngineRequest(body.prompt, body.max_tokens, body.fail_after)
            request_id = self._driver.submit(work, listen)
        except (BadRequest, ValueError) as error:
            if self._exposition:
                self._exposition.rejected(400)
            return web.json_response(api.error(str(error)), status=400)
        self._reader.submitted()
        watcher = self._watch(request, request_id)
        writer = api.writer(api, body, self._settings)
        respond = self._stream if body.stream else self._complete
        response = await respond(request, writer, events, arrived)
        if not _is_disconnected(request):
            watcher.cancel()
        return response

    async def _stream(
        self,
        request: web.Request,
        writer: CompletionWriter,
        events: asyncio.Queue[EngineEvent],
        arrived: float,
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        response.charset = "utf-8"
        await response.prepare(request)
        first: float | None = None
        with suppress(ConnectionError):  # the client has disconnected: nothing is recorded
            await response.write(writer.begin())
            while writer.reason is None:
                event = await events.get()
                if chunks := writer.handle(event):
                    first = first or time.monotonic()
                    await response.write(chunks)
            if writer.reason == "error" and (failed := writer.failed()):
                await response.write(failed)
            elif writer.reason == "error" and request.transport:
                request.transport.close()
            else:
                await response.write(writer.end())
                finished = self._finish(writer, event, arrived, first)
                if _wants_metrics(request, self._settings):
                    await response.write(perf_metrics.event(finished))
        return response

    async def _complete(
        self,
        request: web.Request,
        writer: CompletionWriter,
        events: asyncio.Queue[EngineEvent],
        arrived: float,
    ) -> web.StreamResponse:
        """Wait for the end; after a client disconnect the request ends as cancelled."""
        while writer.reason is None:
            event = await events.get()
            writer.handle(event)
        if writer.reason == "error":
            message = "the engine failed while it generated"
            return web.json_response(writer.error(message), status=400)
        finished = self._finish(writer, event, arrived, None)
        headers = {}
        if _wants_metrics(request, self._settings):
            headers = perf_metrics.headers(finished)
        return web.json_response(writer.whole(), headers=headers)

    def _finish(
        self, writer: CompletionWriter, end: EngineEvent, arrived: float, first: float | None
    ) -> FinishedRequest:
        """Record a request that has ended for its client."""
        assert end.metrics is not None and writer.reason is not None  # noqa: S101, PT018
        metrics = end.metrics.since(self._driver.epoch)
        finished = FinishedRequest(end.request_id, writer.reason, metrics, arrived, first)
        if self._exposition:
            self._exposition.request(finished)
        if self._settings.per_request == "endpoint":
            self._perf_metrics.append(finished)
        if self._output:
            with self._output.open("a") as output:
                output.write(perf_metrics.line(finished))
        self._reader.completed()
        return finished

    def _watch(self, request: web.Request, request_id: int) -> asyncio.Task[None]:
        """Cancel the request within a second after its client disconnects."""

        async def abort() -> None:
            while not _is_disconnected(request):  # noqa: ASYNC110 - trtllm-serve polls
                await asyncio.sleep(_POLL_SECONDS)
            self._driver.cancel(request_id)

        watcher = asyncio.create_task(abort())
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return watcher

    # Other endpoints

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": self._settings.model, "object": "model", "created": self._created}
        return web.json_response({"object": "list", "data": [model | {"owned_by": "tensorrt_llm"}]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self._settings.version})

    async def _metrics(self, request: web.Request) -> web.Response:
        assert request.transport is not None  # noqa: S101 - of a request that has just come
        address, _ = request.transport.get_extra_info("sockname")
        copy = self._settings.addresses.index(address)
        return web.json_response(await self._reader.read(copy))

    async def _prometheus(self, request: web.Request) -> web.Response:
        assert self._exposition is not None  # noqa: S101 - there is no route without one
        body, content_type = self._exposition.render(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _read_perf_metrics(self, _: web.Request) -> web.Response:
        found = [perf_metrics.record(request) for request in self._perf_metrics]
        self._perf_metrics.clear()
        return web.json_response(found)

    async def _read_truth(self, request: web.Request) -> web.Response:
        mark = self._driver.epoch + time.monotonic()
        since = float(request.query.get("since", "0"))
        return web.json_response({"mark": mark} | self._truth.since(since))


def _is_disconnected(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _wants_metrics(request: web.Request, settings: ServeSettings) -> bool:
    requested = request.headers.get(perf_metrics.RETURN_METRICS, "").strip() == "1"
    return requested and settings.per_request == "headers"


def _dead_worker_records(
    settings: ServeSettings, engine: EngineSettings
) -> list[iteration_json.Json]:
    """Return the records of a short-lived engine, as of a worker that died."""
    simulated, records, now = (
        SimulatedEngine(engine),
        iteration_json.records(settings, engine),
        time.time(),
    )
    simulated.submit(EngineRequest(("a", "worker", "that", "dies"), 8), now)
    found = []
    for _ in range(4):
        step = simulated.step(now)
        found += records.of(now, step)
        now += step.seconds or 0.0
    return found


def _open(path: str) -> TextIO | None:
    return Path(path).open("a") if path else None
