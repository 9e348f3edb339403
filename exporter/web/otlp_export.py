"""Push the metrics of ``/metrics`` over OTLP/HTTP with OpenTelemetry's exporter.

Metrics keep their names in OpenTelemetry's style (``llm_sequences_max`` is ``llm.sequences_max``, a
unit is a field instead of a suffix), so that a receiver that translates names to Prometheus gets
exactly those of ``/metrics``.  Latencies defined by OpenTelemetry's GenAI conventions are sent a
second time under those names, in a scope with their schema URL (:mod:`exporter.genai`).

Headers, compression, timeout and certificates come from the standard variables
OTEL_EXPORTER_OTLP_*, resource attributes from OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from socket import gethostname
from urllib.parse import urlsplit, urlunsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from exporter.families import MetricFamily, own_family
from exporter.genai import OPERATIONS, TEXT_COMPLETION, GenAiProfile, GenAiSeries, provider
from exporter.log import ProblemLog
from exporter.samples import Distribution, ModelInfo, Value, count_of
from exporter.store.increase import add_values
from exporter.web.otlp_session import OtlpSession
from promql.http_client import public

Attributes = Mapping[str, str | int]
Models = Sequence[ModelInfo]

PATH = "/v1/metrics"
LAST_SECONDS = 2.0
"""Time limit in seconds of the last export, at shutdown."""
FORGET_AFTER = 3600 * 10**9

_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1"}
_CUMULATIVE = AggregationTemporality.CUMULATIVE
_COUNTED = {
    "requests": "{request}",
    "failures": "{request}",
    "token": "{request}",  # requests without first token
    "streams": "{stream}",
    "disconnects": "{disconnect}",
    "tokens": "{token}",
    "retries": "{retry}",
    "blocks": "{block}",
    "sequences": "{sequence}",
    "max": "{sequence}",
    "events": "{event}",
    "slices": "{slice}",
    "errors": "{error}",
    "records": "{record}",
    "connections": "{connection}",
    "opened": "{connection}",
    "refused": "{connection}",
    "skipped": "{request}",
    "packets": "{packet}",
    "preemptions": "{preemption}",
    "restarts": "{restart}",
    "exports": "{export}",
}
"""What counters and gauges without a base unit count, by the last word of their name."""


@dataclass(frozen=True, slots=True)
class Push:
    """The content of one export; ``families`` is called in the export thread."""

    families: Callable[[], Iterable[MetricFamily]]
    models: Models = ()
    genai: Sequence[GenAiSeries] = ()


class StartTimes:
    """Track the start time of every cumulative series, by which receivers detect resets.

    A new or reset series starts at the previous export.  Times are in Unix nanoseconds; ``clock``
    is a monotonic clock in nanoseconds.
    """

    def __init__(self, began: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._before = began
        self._clock = clock
        self._ticks = clock()
        self._series: dict[object, tuple[int, float, int]] = {}

    def begin(self, now: int) -> None:
        """Begin an export at ``now``; after a backward step of the clock, move all times with it.

        A point must not end before it starts.
        """
        ticks = self._clock()
        if now <= self._before:
            step = now - self._before - max(1, ticks - self._ticks)
            self._before += step
            self._series = {
                key: (start + step, count, seen + step)
                for key, (start, count, seen) in self._series.items()
            }
        self._ticks = ticks

    def of(self, series: object, count: float, now: int) -> int:
        """Return the start of a series that is at ``count``."""
        start, last, _ = self._series.get(series, (self._before, 0.0, now))
        if count < last:
            start = self._before
        self._series[series] = start, count, now
        return start

    def exported(self, now: int) -> None:
        """Record the time of an export, and drop series not exported for an hour."""
        self._before = now
        horizon = now - FORGET_AFTER
        self._series = {key: one for key, one in self._series.items() if one[2] > horizon}


def endpoint(url: str) -> str:
    """Return the address to post to; a base address gets the path that the protocol defines."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith(PATH) else path + PATH))


def server_attributes(urls: Iterable[str]) -> Attributes:
    """Return ``server.address`` and ``server.port`` if all sources are one server."""
    servers = {(parts.hostname or "", parts.port) for parts in map(urlsplit, filter(None, urls))}
    if len(servers) != 1:
        return {}
    [(host, port)] = servers
    return {"server.address": host} | ({"server.port": port} if port else {})


def metrics(families: Iterable[MetricFamily], starts: StartTimes, now: int) -> list[Metric]:
    """Return the families as OTLP metrics of the time ``now`` (Unix nanoseconds)."""
    found = []
    for family in families:
        name, unit = _otel_name(family)
        points: list[tuple[dict[str, str | int], Value]] = [
            ({**labels}, value) for labels, value in family.series
        ]
        data = _data(family.name, family.kind, points, starts, now)
        found.append(Metric(name, family.help, unit, data))
    return found


def genai_metrics(
    push: Push, profile: GenAiProfile, server: Attributes, starts: StartTimes, now: int
) -> list[Metric]:
    """Return the latencies of a push under a version of the GenAI conventions."""
    infos = {(one.model, one.version): one for one in push.models}
    points: dict[str, list[tuple[dict[str, str | int], Value]]] = {}
    for one in push.genai:
        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": OPERATIONS.get(one.endpoint, TEXT_COMPLETION),
            "gen_ai.provider.name": provider(infos.get((one.model, one.version)), one.endpoint),
            "gen_ai.request.model": one.model,
            "gen_ai.response.model": one.model,
            **({"tokenslo.model.version": one.version} if one.version else {}),
            **({"error.type": one.error} if one.error else {}),
            **server,
        }
        points.setdefault(one.signal, []).append((attributes, one.value))
    return [
        Metric(
            metric.name,
            metric.description,
            "s",
            _data(metric.name, "histogram", _merged(points[signal]), starts, now),
        )
        for signal, metric in profile.metrics.items()
        if signal in points
    ]


def _merged(
    points: Iterable[tuple[dict[str, str | int], Value]],
) -> list[tuple[dict[str, str | int], Value]]:
    """Sum histograms of equal attributes: several endpoints may be one operation."""
    found: dict[tuple[object, ...], tuple[dict[str, str | int], Value]] = {}
    for attributes, value in points:
        boundaries = value.boundaries if isinstance(value, Distribution) else ()
        key = (*sorted(attributes.items()), boundaries)
        if key in found:
            value = add_values(found[key][1], value)
        found[key] = attributes, value
    return list(found.values())


def _otel_name(family: MetricFamily) -> tuple[str, str]:
    """Return a family's name and unit in OpenTelemetry's style.

    Units in braces are notes: receivers add no suffix for them.
    """
    stem, _, last = family.name.rpartition("_")
    name = stem if last in _UNITS else family.name
    unit = _UNITS.get(last) or ("" if family.kind == "histogram" else _COUNTED.get(last, ""))
    return name.replace("_", ".", 1), unit


def _data(
    name: str,
    kind: str,
    points: Sequence[tuple[dict[str, str | int], Value]],
    starts: StartTimes,
    now: int,
) -> Sum | Gauge | Histogram:
    def start(attributes: Attributes, value: Value) -> int:
        boundaries = value.boundaries if isinstance(value, Distribution) else ()
        count = count_of(value)
        return starts.of((name, tuple(attributes.items()), boundaries), count, now)

    if kind == "histogram":
        histograms = [
            _histogram(attributes, start(attributes, value), now, value)
            for attributes, value in points
            if isinstance(value, Distribution)
        ]
        return Histogram(histograms, _CUMULATIVE)
    numbers = [
        NumberDataPoint(attributes, 0 if kind == "gauge" else start(attributes, value), now, value)
        for attributes, value in points
        if not isinstance(value, Distribution)
    ]
    return Gauge(numbers) if kind == "gauge" else Sum(numbers, _CUMULATIVE, True)


def _histogram(
    attributes: Attributes, start: int, now: int, value: Distribution
) -> HistogramDataPoint:
    upto = [round(count) for count in value.counts]
    return HistogramDataPoint(
        attributes,
        start,
        now,
        count=upto[-1],
        sum=value.sum,
        bucket_counts=[after - before for before, after in pairwise((0, *upto))],
        explicit_bounds=[boundary for boundary in value.boundaries if boundary != inf],
        min=None,  # type: ignore[arg-type]  # unknown; optional in the protocol
        max=None,  # type: ignore[arg-type]
    )


def resource(version: str) -> Resource:
    """Return the resource; attributes of the standard variables take precedence."""
    ours = {
        "service.name": "tokenslo",
        "service.version": version,
        "service.instance.id": gethostname(),
    }
    return Resource(ours).merge(OTELResourceDetector().detect())


class OtlpExport:
    """Export families in a background thread, without blocking the caller."""

    def __init__(
        self, url: str, version: str, server: Attributes, profile: GenAiProfile | None = None
    ) -> None:
        self.where = public(endpoint(url))
        self._exporter = OTLPMetricExporter(endpoint(url), session=OtlpSession())
        self._resource = resource(version)
        self._version = version
        self.profile = profile
        self._server = server
        self._starts = StartTimes(time.time_ns())
        self._results = Counter[str]()
        self._problem_log = ProblemLog()
        self._messages = _capture_exporter_log()
        self._offers: queue.Queue[Callable[[], None] | None] = queue.Queue(1)
        # A daemon: an unresponsive receiver must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="otlp", daemon=True)
        self._thread.start()

    def offer(self, push: Push) -> None:
        """Queue a push, or skip it if the previous one is still being sent."""
        try:
            self._offers.put_nowait(self._export(push))
        except queue.Full:
            self._results["skipped"] += 1

    def family(self) -> MetricFamily:
        """Return the export results as a metric."""
        results = sorted(self._results.items())
        return own_family(
            "tokenslo_otlp_exports", [({"result": result}, count) for result, count in results]
        )

    async def close(self, push: Push) -> None:
        """Send a last push and stop, within LAST_SECONDS."""
        await asyncio.to_thread(self._finish, self._export(push))

    def _finish(self, last: Callable[[], None]) -> None:
        end = time.monotonic() + LAST_SECONDS
        for offer in (last, None):
            with suppress(queue.Full):
                self._offers.put(offer, timeout=max(0.0, end - time.monotonic()))
        self._thread.join(max(0.0, end - time.monotonic()))
        self._exporter.shutdown()

    def _work(self) -> None:
        while export := self._offers.get():
            what, problem, cause = f"sending metrics to {self.where}", "", None
            self._messages.clear()
            try:
                export()
            except _NotAcceptedError as error:
                problem = str(error)
            except Exception as error:
                # A defect here must not end the thread.
                problem, cause = "internal error, please report it", error
            now = time.monotonic()
            self._results["failed" if problem else "ok"] += 1
            if problem:
                self._problem_log.failed(what, problem, now, cause)
            else:
                self._problem_log.recovered(what, now)

    def _export(self, push: Push) -> Callable[[], None]:
        now = time.time_ns()

        def export() -> None:
            data = MetricsData([ResourceMetrics(self._resource, self._scopes(push, now), "")])
            if self._exporter.export(data) is not MetricExportResult.SUCCESS:
                raise _NotAcceptedError(self._messages[0] if self._messages else "not accepted")

        return export

    def _scopes(self, push: Push, now: int) -> list[ScopeMetrics]:
        self._starts.begin(now)
        own = InstrumentationScope("tokenslo", self._version)
        scopes = [ScopeMetrics(own, metrics(push.families(), self._starts, now), "")]
        if self.profile:
            found = genai_metrics(push, self.profile, self._server, self._starts, now)
            schema = self.profile.schema_url
            scope = InstrumentationScope("tokenslo.gen_ai", self._version, schema)
            scopes += [ScopeMetrics(scope, found, schema)] if found else []
        self._starts.exported(now)
        return scopes


class _NotAcceptedError(Exception):
    """The receiver rejected an export."""


class _LogCapture(logging.Handler):
    """Collect the exporter's log messages, which would otherwise repeat at every export."""

    def __init__(self, kept: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        self._kept.append(text if len(text) <= 300 else f"{text[:300]}…")


def _capture_exporter_log() -> list[str]:
    """Redirect the exporter's log messages to a list, and return it."""
    messages: list[str] = []
    logger = logging.getLogger("opentelemetry.exporter.otlp.proto.http")
    logger.propagate = False
    logger.handlers = [_LogCapture(messages)]
    return messages
