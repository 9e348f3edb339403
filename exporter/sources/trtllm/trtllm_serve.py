"""Read one trtllm-serve: its Prometheus metrics and its request timings.

:mod:`exporter.sources.trtllm.iterations_source` reads its iteration records (``GET /metrics``).

Releases differ; the available endpoints decide (tensorrt_llm/serve/openai_server.py).  Metrics at
``/prometheus/metrics`` came with 1.1 and need ``return_perf_metrics``.  ``/perf_metrics``, which
returns the timing of each request once, to the first reader, came with 1.1, was removed on the way
to 1.4, and is empty without ``perf_metrics_max_requests``; after that, timing is written to files
in ``perf_metrics_output_dir``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from exporter.samples import Measurement, Missing, Model, Snapshot, SourceError
from exporter.sources.exposition.by_model import FamiliesByModel
from exporter.sources.exposition.counter_parts import CounterParts
from exporter.sources.exposition.incremental_reader import ExpositionReader
from exporter.sources.exposition.text_parser import ExpositionError, ParsedFamily
from exporter.sources.file_tailer import FileTailer
from exporter.sources.http_source import (
    HttpSource,
    Parts,
    attempt,
    duplicate_error,
    model_info,
    raise_if_all_failed,
)
from exporter.sources.trtllm import prometheus_metrics
from exporter.sources.trtllm.iterations.json_splitter import JsonSplitter
from exporter.sources.trtllm.iterations_source import BACKEND, served_model
from exporter.sources.trtllm.prometheus_metrics import ITERATIONS, GaugeState
from exporter.sources.trtllm.request_feed import RequestFeed
from exporter.sources.unavailable import (
    LORA,
    NEEDS_TAP,
    OBSERVE,
    TAP_SIGNALS,
    Unavailable,
    with_missing_signals,
)
from promql.http_client import FetchLimits, public

METRICS, TIMING = "/prometheus/metrics", "/perf_metrics"
PATTERN = "perf_metrics-*.jsonl"

FILE_BYTES = 8 * 1024 * 1024
"""Bytes of request files that are read at a time."""

UPGRADE = "upgrade TensorRT-LLM: 1.4 publishes it"
FILE_GRACE_SCRAPES = 10
"""Scrapes that a line may be late: trtllm-serve writes files in the background."""

RETURN = "set return_perf_metrics: true (TensorRT-LLM 1.1 or newer)"
KEEP = "set return_perf_metrics: true and perf_metrics_max_requests: 1000"
WRITE = (
    "set return_perf_metrics: true and perf_metrics_output_dir: DIR, and give "
    f"--trtllm-requests 'DIR/{PATTERN}'"
)

_PER_REQUEST = ("prefill", "decode")
_COUNTED = ("kv_reused_blocks", "kv_missed_blocks", "draft_tokens", "accepted_draft_tokens")
_ITERATION = (*prometheus_metrics.ALL_GAUGES, *_COUNTED)
_NOTHING_COUNTED = Unavailable(
    "the server publishes no such counter: it is off, or nothing was counted yet", ITERATIONS
)
_NO_SINGLE_TOKENS = Unavailable(
    "trtllm-serve has no metric of single tokens, and no timing of requests with their steps came",
    f"{WRITE}; or {ITERATIONS}, for an estimate",
)
UNAVAILABLE: Mapping[str, Unavailable] = {
    "itl": _NO_SINGLE_TOKENS,
    **dict.fromkeys(("max_gap", *TAP_SIGNALS), NEEDS_TAP),
    "requests_without_first_token": Unavailable(
        "trtllm-serve does not report which requests ended before their first token", OBSERVE
    ),
    "lora_adapters": LORA,
    "preemptions": Unavailable("trtllm-serve counts no paused sequences", ITERATIONS),
}
"""Signals that neither the metrics nor the request timings have."""


class TrtllmServeSource(HttpSource):
    """Reads one trtllm-serve at ``url``.

    ``thresholds`` are SLO thresholds in seconds by signal.  ``requests`` is a pattern of the files
    with request timings, which replaces /perf_metrics.  Gauges that show work but did not change
    for ``frozen_after`` seconds are refused.
    """

    def __init__(
        self,
        url: str,
        *,
        requests: str = "",
        thresholds: Mapping[str, Iterable[float]] | None = None,
        frozen_after: float = 5.0,
        limits: FetchLimits | None = None,
        name: str = "trtllm",
    ) -> None:
        super().__init__(name, url, limits)
        self._requests = requests
        self._files = FileTailer(requests, FILE_BYTES) if requests else None
        self._thresholds = thresholds or {}
        self._frozen_after = frozen_after
        self._version = ""
        self._model = ""
        self._reader = ExpositionReader(prometheus_metrics.FAMILIES)
        self._parts = CounterParts()
        self._gauge_state: GaugeState | None = None
        self._feed: RequestFeed | None = None
        self._reported_lost = 0.0
        self._has_timing = True

    @property
    def where(self) -> str:
        """The addresses and files that are read."""
        return super().where + (f" and {self._requests}" if self._requests else "")

    async def close(self) -> None:
        """Close files and connections; a later snapshot opens them again."""
        if self._files:
            self._files.close()
        await super().close()

    async def snapshot(self, now: float) -> Snapshot:
        """Read the server once; ``now`` is monotonic, in seconds.

        Raises SourceError if no part could be read.
        """
        parts: Parts = {}
        ready, model, version, families = await asyncio.gather(
            attempt(parts, "health", self.is_healthy()),
            attempt(parts, "models", self._read_model()),
            attempt(parts, "version", self.read_version()),
            attempt(parts, "metrics", self._read_metrics()),
        )
        raise_if_all_failed(parts)
        self._version = version or self._version
        self._set_model(model or self._model)
        if not self._model or self._feed is None:
            return Snapshot(self.name, ready=ready, parts=parts)
        metrics, labelled = FamiliesByModel(families or {}, self._parts), None
        if families is not None:
            parts["series"] = duplicate_error(metrics)
            labelled = prometheus_metrics.metrics_model(families, self._model)
        finished = prometheus_metrics.finished(metrics, labelled) if labelled else None
        # Read after the count: records beyond it are newer, not missing.
        await attempt(parts, "requests", self._read_timing(self._feed))
        self._feed.end_scrape(finished, now, failed=parts["requests"] is not None)
        self._report_lost(parts)
        found = list(self._feed.report(now)) if self._has_timing else []
        if families is not None and labelled:
            self._gauge_state = prometheus_metrics.update_gauges(
                self._gauge_state, families, finished, now
            )
            found += prometheus_metrics.interpret(
                metrics, labelled, self._gauge_state, self._model, now, self._frozen_after
            )
        measurements, missing = self._with_missing_signals(found, families, labelled is None, parts)
        return Snapshot(
            source=self.name,
            measurements=measurements,
            missing=missing,
            models=(model_info(self._model, BACKEND, self._version, ready),),
            ready=ready,
            parts=parts,
            lost_records=None if finished is None else round(self._feed.lost),
        )

    def _set_model(self, model: str) -> None:
        """Reset the state if the server serves another model."""
        if model == self._model:
            return
        self._model, self._gauge_state, self._reported_lost = model, None, 0.0
        self._feed = RequestFeed(
            model,
            self._thresholds,
            place=self._requests or public(self.url + TIMING),
            grace_scrapes=FILE_GRACE_SCRAPES if self._requests else 1,
            if_empty=WRITE if self._requests else KEEP,
            if_lost=(
                "check that nothing else removes these files"
                if self._requests
                else "let nothing else read /perf_metrics, and raise perf_metrics_max_requests"
            ),
        )

    async def _read_model(self) -> str:
        path = "/v1/models"
        name = served_model(await self.get_json(path))
        if name is None:
            raise SourceError("malformed", f"{public(self.url + path)} names no model")
        return name

    async def _read_metrics(self) -> dict[str, ParsedFamily] | None:
        """Return the families; None if the server publishes no metrics (yet)."""
        answer = await self.get(METRICS, (200, 404))
        if answer.status == 404:
            return None
        try:
            return await asyncio.to_thread(self._reader.read, answer.body)
        except ExpositionError as error:
            raise SourceError(
                "malformed", f"{public(self.url + METRICS)} are no Prometheus metrics ({error})"
            ) from None

    async def _read_timing(self, feed: RequestFeed) -> None:
        if self._files:
            await asyncio.to_thread(lambda files: feed.add(files.read()), self._files)
            if self._files.error:
                raise SourceError("unreadable", self._files.error)
            if lost := self._files.new_losses():
                raise SourceError("lost", lost)
            return
        splitter = JsonSplitter()
        try:
            status = await self.stream_body(
                TIMING, lambda chunk: feed.add(splitter.feed(chunk)), (200, 404)
            )
            self._has_timing = status == 200
        finally:
            feed.add(splitter.end())
        if splitter.malformed and self._has_timing:
            where = public(self.url + TIMING)
            raise SourceError("malformed", f"{where} is not a list of requests")

    def _report_lost(self, parts: Parts) -> None:
        """Report newly lost request timings as an error of their part."""
        lost = self._feed.lost - self._reported_lost if self._feed else 0.0
        self._reported_lost += lost
        if lost and parts["requests"] is None:
            parts["requests"] = SourceError(
                "lost", f"the timing of {lost:.0f} ended requests is missing"
            )

    def _with_missing_signals(
        self,
        found: list[Measurement | Missing],
        families: dict[str, ParsedFamily] | None,
        nameless: bool,
        parts: Parts,
    ) -> tuple[tuple[Measurement, ...], tuple[Missing, ...]]:
        """Add the reasons for unavailable signals; those of unread metrics take precedence."""

        def why(model: Model, signal: str) -> Missing:
            return self._why(signal, families, nameless, parts).missing(signal, model)

        model = (self._model, "")
        preferred = (
            one
            for one in found
            if isinstance(one, Measurement) or not why(model, one.signal).unread
        )
        return with_missing_signals(preferred, [model], why)

    def _why(
        self,
        signal: str,
        families: dict[str, ParsedFamily] | None,
        nameless: bool,
        parts: Parts,
    ) -> Unavailable:
        """Return the reason and fix for a signal that nothing provides."""
        if signal in UNAVAILABLE:
            return UNAVAILABLE[signal]
        if error := parts["metrics"]:
            return Unavailable(
                f"the metrics could not be read: {error}", "see the source", unread=True
            )
        if families is None:
            fix = ITERATIONS if signal in _ITERATION else RETURN
            return Unavailable(f"{METRICS} answers 404: the server publishes no metrics", fix)
        if nameless:
            reason = f"{METRICS} has several models, and none is called {self._model}"
            return Unavailable(reason, prometheus_metrics.CLEAR)
        if signal in _COUNTED:
            return _NOTHING_COUNTED
        if signal in _ITERATION:
            return Unavailable("the server publishes nothing of its iterations", ITERATIONS)
        if not families:
            return Unavailable("no request has completed yet", "send a request")
        if signal in _PER_REQUEST:
            return Unavailable("this release publishes no histogram of it", self._timing_fix())
        return Unavailable("this release publishes no such metric", UPGRADE)

    def _timing_fix(self) -> str:
        if self._requests or self._has_timing:
            return WRITE if self._requests else KEEP
        release = f"TensorRT-LLM {self._version}" if self._version else "this release"
        return f"{WRITE} ({release} has no {TIMING})"
