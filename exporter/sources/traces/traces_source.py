"""Receive Triton's traces as an OTLP/HTTP endpoint.

An export is answered after decoding; only model names and times of a body are kept.  Probes are
excluded.  Reported are models that were observed to stream: the spans of other models do not show
whether they generate tokens.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from time import monotonic
from typing import Protocol, Self, TypeVar

from aiohttp import web

from exporter.background import Supervisor, TaskState
from exporter.http_server import add_headers, start
from exporter.recording.metric_recorder import MetricRecorder
from exporter.samples import (
    Measurement,
    Missing,
    Model,
    ModelInfo,
    Snapshot,
    SourceError,
)
from exporter.sockets import Listen
from exporter.sources import BaseSource
from exporter.sources.http_source import HttpSource
from exporter.sources.traces.forwarding import Forwarder
from exporter.sources.traces.span_join import SpanJoiner, TracedRequest
from exporter.sources.traces.spans import (
    MAX_PARTS,
    Export,
    ExportTooLargeError,
    MalformedExportError,
)
from exporter.sources.triton.trace_setting import PATH as SETTING_PATH
from exporter.sources.triton.trace_setting import TraceSetting, read_setting
from exporter.sources.unavailable import OBSERVE, TAP_SIGNALS, with_missing_signals
from exporter.web_config import ListenerAccess
from promql.http_client import CHUNK, FetchLimits

PATH = "/v1/traces"
ALL, SAMPLED = "triton_trace", "triton_trace_sampled"
NEEDS_TRITON = "give the server's --triton URL as well"
MEASURED = ("ttft", "itl", "max_gap", "decode", "e2e")

MAX_MODELS = 256
MAX_CONCURRENT_EXPORTS = 4
BODY_SECONDS = 10.0
SETTING_AGE = 30.0

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE = 3, 8, 14
"""Codes of google.rpc.Status."""

T = TypeVar("T")


class _Format(Protocol):
    """One encoding of OTLP; modules implement it."""

    def decode(self, body: bytes, /) -> Export: ...
    def response(self, rejected: int, message: str, /) -> bytes: ...
    def failure(self, code: int, message: str, /) -> bytes: ...


def _json() -> _Format:
    from exporter.sources.traces import otlp_json

    return otlp_json


def _protobuf() -> _Format:
    from exporter.sources.traces import otlp_protobuf

    return otlp_protobuf


FORMATS: Mapping[str, Callable[[], _Format]] = {
    "application/json": _json,
}
if find_spec("opentelemetry"):  # of the extra `otlp`
    FORMATS = {**FORMATS, "application/x-protobuf": _protobuf}


class _Refusal(Exception):  # noqa: N818 - a response, not an error of this code
    """A refused export: HTTP status, code of google.rpc.Status, kind for counting."""

    def __init__(self, status: int, code: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.kind = status, code, kind


class TracesSource(BaseSource):
    """Receives the traces of a Triton server at ``listen``; forwards them to ``forward`` if set.

    ``thresholds`` are SLO thresholds in seconds by signal.  ``models`` are glob patterns of models
    to report on although they were not seen to stream.  ``triton`` is the address of the server's
    HTTP API, which has the trace setting.  ``alone``: no other source reads the server, so this
    one reports all unavailable signals.  ``access`` protects the listener.
    """

    def __init__(
        self,
        listen: Listen,
        forward: str = "",
        *,
        thresholds: Mapping[str, Iterable[float]] | None = None,
        models: Sequence[str] = (),
        triton: str = "",
        alone: bool = True,
        limits: FetchLimits | None = None,
        access: ListenerAccess | None = None,
        name: str = "traces",
    ) -> None:
        self.name = name
        self.url = ""
        self._listen = listen
        self._access = access
        self._globs = tuple(models)
        self._alone = alone
        self._limits = limits or FetchLimits()
        self._forwarder = (
            Forwarder(forward, timeout=BODY_SECONDS, max_bytes=self._limits.max_bytes)
            if forward
            else None
        )
        self._triton = HttpSource("triton", triton, self._limits) if triton else None
        self._setting = TraceSetting()
        self._setting_problem: SourceError | None = None
        self._setting_due = 0.0
        self._recorder = MetricRecorder(thresholds or {}, start_time=monotonic())
        self._joiner = SpanJoiner()
        self._reported: dict[Model, None] = {}
        self._lost = 0
        self._active_exports = 0
        self._problem: SourceError | None = None
        self._thread = ThreadPoolExecutor(1, "traces")
        self._open = AsyncExitStack()
        self._supervisor = Supervisor()

    @property
    def where(self) -> str:
        """The address of the endpoint, and of the collector."""
        onward = f" (forwarded to {self._forwarder.where})" if self._forwarder else ""
        return f"traces sent to {self.url or f'http://{self._listen}'}{PATH}{onward}"

    async def __aenter__(self) -> Self:
        """Listen; raises InvalidFile if the address is not available."""
        async with AsyncExitStack() as stack:
            stack.callback(self._thread.shutdown, wait=False, cancel_futures=True)
            if self._triton:
                await stack.enter_async_context(self._triton)
            if self._forwarder:
                supervisor = await stack.enter_async_context(self._supervisor)
                supervisor.start("trace-forwarder", self._forwarder.run)
            # Bodies are forwarded unchanged, so they are inflated here.
            self.url, close = await start(
                self._application(),
                self._listen,
                self._access,
                setting="otlp-traces",
                auto_decompress=False,
            )
            stack.push_async_callback(close)
            self._open = stack.pop_all()
        return self

    async def close(self) -> None:
        """Close the listener, connections and the thread."""
        await self._open.aclose()

    def tasks(self) -> Sequence[TaskState]:
        """Return the state of the forwarder, if there is one."""
        return self._supervisor.states

    async def snapshot(self, now: float) -> Snapshot:
        """Return the measurements so far."""
        parts = {"exports": self._problem}
        self._problem = None
        if self._forwarder:
            parts["forward"] = self._forwarder.problem()
        if self._triton:
            await self._read_setting(self._triton, now)
            parts["setting"] = self._setting_problem
        measurements, models, lost = await self._in_thread(self._collect)
        _, missing = with_missing_signals(measurements, models if self._alone else (), _missing)
        method = ALL if self._setting.everything else SAMPLED
        return Snapshot(
            source=self.name,
            measurements=tuple(
                replace(measurement, method=method, note=self._setting.note)
                for measurement in measurements
            ),
            missing=missing,
            models=tuple(ModelInfo(*model, decoupled=True) for model in models)
            if self._alone
            else (),
            parts=parts,
            lost_records=lost,
        )

    async def _read_setting(self, triton: HttpSource, now: float) -> None:
        """Read the trace setting if the last one is older than SETTING_AGE."""
        if now < self._setting_due:
            return
        self._setting_due, self._setting_problem = now + SETTING_AGE, None
        try:
            self._setting = read_setting(await triton.get_json(SETTING_PATH))
        except SourceError as error:
            self._setting_problem = error

    # The endpoint

    def _application(self) -> web.Application:
        app = web.Application()
        app.router.add_post(PATH, self._answer)
        app.on_response_prepare.append(add_headers)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        kind = request.content_type
        if kind not in FORMATS:
            message = f"{PATH} accepts {' and '.join(FORMATS)}"
            self._problem = SourceError("content_type", f"an export was refused: {message}")
            return web.Response(status=415, text=f"{message}\n")
        try:
            return web.Response(body=await self._export(request, kind), content_type=kind)
        except _Refusal as refusal:
            self._problem = SourceError(refusal.kind, f"an export was refused: {refusal}")
            return web.Response(
                status=refusal.status,
                body=FORMATS[kind]().failure(refusal.code, str(refusal)),
                content_type=kind,
                headers={"Retry-After": "1"} if refusal.status == 503 else None,
            )

    async def _export(self, request: web.Request, kind: str) -> bytes:
        """Handle one export and return the body of the response; raises _Refusal."""
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding not in ("identity", "gzip"):
            raise _Refusal(415, INVALID_ARGUMENT, "encoding", "the only supported encoding is gzip")
        if self._active_exports >= MAX_CONCURRENT_EXPORTS:
            raise _Refusal(
                503, UNAVAILABLE, "busy", f"{MAX_CONCURRENT_EXPORTS} exports are in progress"
            )
        self._active_exports += 1
        try:
            body = await self._body(request)
            rejected, answer = await self._in_thread(self._record_export, body, encoding, kind)
        finally:
            self._active_exports -= 1
        if rejected:
            self._problem = SourceError("malformed", f"malformed spans were rejected: {rejected}")
        if self._forwarder:
            names = ("Content-Type", "Content-Encoding")
            self._forwarder.offer(
                body, {name: request.headers[name] for name in names if name in request.headers}
            )
        return answer

    async def _body(self, request: web.Request) -> bytes:
        """Read a body within limits of size and time; raises _Refusal."""
        if (request.content_length or 0) > self._limits.max_bytes:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.content.iter_chunked(CHUNK):
                    body += chunk
                    if len(body) > self._limits.max_bytes:
                        raise self._too_large()
        except TimeoutError:
            what = f"the body did not arrive within {BODY_SECONDS:g} s"
            raise _Refusal(408, INVALID_ARGUMENT, "timeout", what) from None
        except (ConnectionError, web.RequestPayloadError):
            raise _Refusal(400, INVALID_ARGUMENT, "truncated", "the body was truncated") from None
        return bytes(body)

    # Only this thread uses joiner, recorder and models: a large export would block the event loop
    # for a second.

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _record_export(self, body: bytes, encoding: str, kind: str) -> tuple[int, bytes]:
        """Record an export; return the number of malformed spans, and the response.

        Raises _Refusal.
        """
        codec = FORMATS[kind]()
        plain = self._inflated(body) if encoding == "gzip" else body
        try:
            export = codec.decode(plain)
        except ExportTooLargeError:
            raise self._too_large(f"{MAX_PARTS} spans, events and attributes") from None
        except MalformedExportError as error:
            raise _Refusal(400, INVALID_ARGUMENT, "malformed", str(error)) from None
        for span in export.spans:
            if request := self._joiner.add(span, monotonic()):
                self._record(request)
        return export.rejected, codec.response(export.rejected, "spans were malformed")

    def _record(self, request: TracedRequest) -> None:
        model, timing = (request.model, request.version), request.timing
        if model not in self._reported:
            if not (timing.streams or any(fnmatchcase(model[0], glob) for glob in self._globs)):
                return
            if len(self._reported) >= MAX_MODELS:
                self._lost += 1
                return
            self._reported[model] = None
            for signal in MEASURED:
                self._recorder.observe((signal, *model, ALL), 0.0, weight=0.0)
        observed = {
            "ttft": () if timing.first is None else (timing.first,),
            "itl": timing.gaps,
            "max_gap": (max(timing.gaps),) if timing.gaps else (),
            "decode": (sum(timing.gaps),) if timing.gaps else (),
            "e2e": () if timing.whole is None else (timing.whole,),
        }
        for signal, values in observed.items():
            for value in values:
                self._recorder.observe((signal, *model, ALL), value)

    def _collect(self) -> tuple[tuple[Measurement, ...], tuple[Model, ...], int]:
        """Return measurements, models and the number of lost requests."""
        self._joiner.expire(monotonic())
        lost = self._joiner.lost + self._lost
        return self._recorder.measurements(), tuple(self._reported), lost

    def _inflated(self, body: bytes) -> bytes:
        inflater = zlib.decompressobj(wbits=31)
        try:
            plain = inflater.decompress(body, self._limits.max_bytes + 1)
        except zlib.error:
            plain = b""
        if len(plain) > self._limits.max_bytes:
            raise self._too_large()
        if not inflater.eof or inflater.unused_data:
            raise _Refusal(400, INVALID_ARGUMENT, "malformed", "the body is not gzip")
        return plain

    def _too_large(self, most: str = "") -> _Refusal:
        fix = "start Triton with --trace-config opentelemetry,bsp_max_export_batch_size=32"
        if not most:
            most, fix = f"{self._limits.max_bytes} bytes", f"{fix}, or raise max-bytes"
        what = f"an export of more than {most}; {fix}"
        return _Refusal(413, RESOURCE_EXHAUSTED, "too_large", what)


def _missing(model: Model, signal: str) -> Missing:
    fix = OBSERVE if signal in TAP_SIGNALS else NEEDS_TRITON
    return Missing(signal, *model, "Triton's traces do not show it", fix)
