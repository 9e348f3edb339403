"""The taps as a source: run their process and fetch snapshots of its metrics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Self

from exporter.background import Supervisor, TaskState
from exporter.families import MetricFamily, own_family
from exporter.genai import GenAiSeries
from exporter.recording.model_metrics import UNUSED
from exporter.samples import (
    Labels,
    Measurement,
    Missing,
    Model,
    ModelInfo,
    Snapshot,
    SourceError,
)
from exporter.sources import BaseSource
from exporter.sources.served_models import ServedModels
from exporter.sources.unavailable import Unavailable, with_missing_signals
from exporter.taps.process.child_process import TapProcess
from exporter.taps.process.messages import TapState

Counted = tuple[str, Labels]
"""Metric and labels."""
STORE_SECONDS = 1.0
"""Time for the last snapshot to be stored after the tap process has ended."""

_READ_MORE = "give the sidecar --triton URL, --trtllm URL, --vllm URL or --sglang URL as well"
_USAGE = "have clients request it: stream_options.include_usage, in OpenAI's API"
_STAGES = (
    "have clients request it: return_perf_metrics from Triton's TensorRT-LLM backends, the header "
    "X-TRTLLM-return-metrics: 1 from trtllm-serve; or start vLLM with --enable-per-request-metrics"
)
_NO_STAGES = Unavailable("no response had the engine's own timing", _STAGES)
_NO_USAGE = Unavailable("no response had the number of tokens", _USAGE)
_UNAVAILABLE: Mapping[str, Unavailable] = {
    "itl_normalized": Unavailable(
        "no stream had the number of tokens of each chunk",
        "have clients request it: stream_options.continuous_usage_stats, from vLLM and "
        "trtllm-serve",
    ),
    "queue": _NO_STAGES,
    "prefill": _NO_STAGES,
    "input_tokens": _NO_USAGE,
    "cached_input_tokens": _NO_USAGE,
    "output_tokens": _NO_USAGE,
    "kv_token_seconds": Unavailable(
        "no stream had the number of its input tokens",
        f"{_USAGE}; or let the tap estimate it from the prompts: --tap-tenant-header NAME, or "
        "prompt_classes in the SLO file",
    ),
    "goodput": Unavailable(
        "no goodput objective selects this model",
        "write one, with the clauses of a good request, and give the sidecar --slo FILE",
    ),
}
"""Reasons and fixes for signals that a tap measures only under a condition."""
MEASURED_BY_TAPS = frozenset(
    (
        *_UNAVAILABLE,
        *("ttft", "itl", "tpot", "e2e", "decode", "max_gap"),
        *("requests", "streams", "live_streams", "requests_without_first_token"),
        *("disconnects", "disconnect_age", "disconnect_release", "suspected_retries"),
        *("partial_tokens", "wasted_tokens", "client_backpressure"),
    )
)
"""Signals that a tap measures."""
_NOT_MEASURED = Unavailable("bytes on the wire do not show it", _READ_MORE)


_NOTES: Mapping[str, str] = {
    **dict.fromkeys(("e2e", "decode", "tpot"), "of requests that ended well"),
    "output_tokens": "tokens sent after a client disconnect count as wasted tokens instead",
    "goodput": "a request whose client disconnected counts only if it violated a clause before",
}
"""Notes in addition to those of the method."""


class TapSource(BaseSource):
    """Runs the ``process`` of the taps and takes snapshots of its metrics.

    ``alone``: no other source reads the servers, so this one reports all unavailable signals.  A
    snapshot may take ``timeout`` seconds.  ``served`` holds the models that the servers list, if no
    other source has them.
    """

    def __init__(
        self,
        process: TapProcess,
        *,
        alone: bool = True,
        timeout: float = 2.0,
        name: str = "taps",
        served: ServedModels | None = None,
    ) -> None:
        self.name = name
        self._process = process
        self._alone = alone
        self._timeout = timeout
        self._served = served
        self._supervisor = Supervisor()
        self._listed: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        self._limited: Mapping[str, int] = {}
        self._restarts = 0
        self._states: Sequence[TapState] = ()
        self._live = 0
        self._tasks: Sequence[TaskState] = ()
        self._genai: Sequence[GenAiSeries] = ()
        self._ended_counts: Counter[Counted] = Counter()
        self._lost = 0
        self._last: Snapshot | None = None
        self._draining = False
        self._stored = asyncio.Event()

    @property
    def where(self) -> str:
        """The addresses of the taps."""
        return f"streams by {' and '.join(self._process.taps)}"

    async def __aenter__(self) -> Self:
        """Start the taps; raises InvalidFile if one cannot start."""
        if self._served:
            await self._served.refresh()
            self._supervisor.start("list served models", self._served.run)
        await self._process.start()
        return self

    async def close(self) -> None:
        """Stop the taps immediately."""
        self._supervisor.cancel()
        await self._process.close()

    async def drain(self) -> None:
        """Drain connections within the configured time, and wait until the last counts are stored.

        Snapshots remain possible, and repeat the last one after the end.
        """
        self._draining = True
        await self._process.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(STORE_SECONDS):
                await self._stored.wait()

    @property
    def genai(self) -> Sequence[GenAiSeries]:
        """Histograms of requests by endpoint, from the last snapshot."""
        return self._genai

    def set_models(self, models: Iterable[ModelInfo]) -> None:
        """Set the models that other sources reported."""
        if not self._served:
            infos = tuple(models)
            reported = {info.model for info in infos if info.ready and not info.excluded}
            self._listed = frozenset(info.model for info in infos), frozenset(reported)

    def tasks(self) -> Sequence[TaskState]:
        """Return the task that restarts the process, and those in the process."""
        return (*self._supervisor.states, *self._process.tasks, *self._tasks)

    async def snapshot(self, now: float) -> Snapshot:
        """Return the measurements so far; raises SourceError."""
        if self._process.restarts != self._restarts:
            self._restart()
        if self._served:
            self._listed = self._served.names(), self._served.generative()
        try:
            answer = await self._process.snapshot(self._timeout, *self._listed)
        except SourceError as error:
            if not (self._draining and self._last and error.kind == "ended"):
                raise
            self._stored.set()  # as snapshots are stored one after the other
            return self._last
        self._limited = answer.limited
        self._states, self._live, self._tasks = answer.taps, answer.live, answer.tasks
        self._genai = answer.genai
        measurements, missing = self._with_missing_signals(answer.measurements)
        self._last = Snapshot(
            source=self.name,
            measurements=tuple(
                replace(measurement, note=_NOTES.get(measurement.signal, ""))
                for measurement in measurements
            ),
            missing=missing,
            models=tuple(_models(measurements)) if self._alone else (),
            lost_records=self._lost + sum(state.lossy for state in self._states),
            waiting_streams={
                **{(measurement.model, measurement.version): 0 for measurement in measurements},
                **answer.waiting,
            },
        )
        return self._last

    @property
    def pid(self) -> int | None:
        """The id of the tap process, None while it does not run."""
        return self._process.pid

    def families(self) -> tuple[MetricFamily, ...]:
        """Return the metric families of the taps themselves."""
        counted = self._ended_counts.copy()
        for state in self._states:
            counted.update(_counted(state))
        by_name: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in _COUNTERS}
        for (name, labels), value in sorted(counted.items()):
            by_name[name].append((dict(labels), value))
        return (
            own_family(
                "tokenslo_tap_connections",
                [({"tap": state.tap}, state.traffic.connections) for state in self._states],
            ),
            *(own_family(name, series) for name, series in by_name.items()),
            own_family(
                "tokenslo_tap_limited_labels",
                [({"label": label}, count) for label, count in sorted(self._limited.items())],
            ),
            own_family("tokenslo_tap_restarts", [({}, self._process.restarts)]),
        )

    def _restart(self) -> None:
        """Keep the counts of the process that ended; its open streams are lost."""
        self._restarts = self._process.restarts
        for state in self._states:
            self._ended_counts.update(_counted(state))
            self._lost += state.lossy
        self._lost += self._live
        self._states, self._live = (), 0

    def _with_missing_signals(
        self, found: Sequence[Measurement]
    ) -> tuple[tuple[Measurement, ...], tuple[Missing, ...]]:
        def why(model: Model, signal: str) -> Missing | None:
            if not self._alone and signal not in _UNAVAILABLE:
                return None
            return _UNAVAILABLE.get(signal, _NOT_MEASURED).missing(signal, model)

        models = dict.fromkeys((one.model, one.version) for one in found)
        return with_missing_signals(found, models, why)


_COUNTERS = (
    "tokenslo_tap_connections_opened",
    "tokenslo_tap_refused",
    "tokenslo_tap_skipped",
    "tokenslo_tap_lossy_streams",
    "tokenslo_tap_dropped_packets",
    "tokenslo_tap_late_reads",
    "tokenslo_tap_late_gaps",
)


def _counted(state: TapState) -> Mapping[Counted, int]:
    """Return the counters of a tap by metric and labels."""
    tap = ("tap", state.tap)
    traffic = state.traffic
    found: dict[Counted, int] = {
        ("tokenslo_tap_connections_opened", (tap,)): traffic.opened,
        ("tokenslo_tap_lossy_streams", (tap,)): state.lossy,
        ("tokenslo_tap_late_reads", (tap,)): traffic.late_reads,
        ("tokenslo_tap_late_gaps", (tap,)): state.late_gaps,
    }
    if traffic.dropped is not None:
        found["tokenslo_tap_dropped_packets", (tap,)] = traffic.dropped
    for reason, count in traffic.refused.items():
        found["tokenslo_tap_refused", (("reason", reason), tap)] = count
    for reason, count in state.skipped.items():
        found["tokenslo_tap_skipped", (("reason", reason), tap)] = count
    return found


def _models(measurements: Iterable[Measurement]) -> Iterator[ModelInfo]:
    """Yield the measured models, and whether they stream."""
    streams: dict[tuple[str, str], bool] = {}
    for measurement in measurements:
        model = measurement.model, measurement.version
        of_a_stream = measurement.signal == "itl" and measurement.method != UNUSED
        streams[model] = streams.get(model, False) or of_a_stream
    for model, decoupled in streams.items():
        yield ModelInfo(*model, decoupled=decoupled)
