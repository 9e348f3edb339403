"""Parse request timings of trtllm-serve: items of ``/perf_metrics`` and of its files.

Times are read from a steady clock, in seconds since the machine started, so only differences are
meaningful (TensorRT-LLM, ``RequestPerfMetrics``).  An unset time is missing, null or 0.  The
span from ``arrival_time`` on is the engine's; what HTTP and the tokenizer took before is not in it.

An item has neither the number of tokens nor the outcome.  It has the numbers of
its first and last iteration, which is one token each without speculative decoding, and hence an
estimate of the time per token.

With the PyTorch backend an item also has the time of every step (``time_breakdown_metrics``), on a
clock of its own.  A step brings a request its next token, or several with speculative decoding, so
the gaps between steps are the gaps between the chunks of its stream.

Disaggregated serving splits a request between servers with clocks of their own.  Each half carries
``ctx_request_id`` and is no request; the orchestrator's items hold both halves and its own times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from time import monotonic

from exporter.recording.metric_recorder import MAX_REQUEST_SECONDS, MetricRecorder, Series
from exporter.samples import Measurement
from exporter.sources.json_numbers import amount

EXACT = "trtllm_request_timing"
FROM_ITERATIONS = "trtllm_request_iterations"
FROM_STEPS = "trtllm_request_steps"

SPANS = {
    "ttft": ("arrival_time", "first_token_time"),
    "queue": ("arrival_time", "first_scheduled_time"),
    "prefill": ("first_scheduled_time", "first_token_time"),
    "decode": ("first_token_time", "last_token_time"),
    "e2e": ("arrival_time", "last_token_time"),
}
# Spans in an orchestrator's item: its own, and those within one of the halves.
ORCHESTRATED = (
    ("ttft", (), ("disagg_server_arrival_time", "disagg_server_first_token_time")),
    ("ttft", (), ("disagg_server_arrival_time", "disagg_server_first_token_ts")),
    ("queue", ("ctx_perf_metrics", "perf_metrics", "timing_metrics"), SPANS["queue"]),
    ("prefill", ("ctx_perf_metrics", "perf_metrics", "timing_metrics"), SPANS["prefill"]),
)
METHODS = {
    **dict.fromkeys(SPANS, EXACT),
    "tpot": FROM_ITERATIONS,
    "itl": FROM_STEPS,
    "max_gap": FROM_STEPS,
}
"""The signals that items provide, by method."""

CLOCK_DIGITS = 9
"""The clock counts nanoseconds."""

PARTS = frozenset({"perf_metrics", "ctx_perf_metrics"})
"""Keys of which an item has one."""

HALF = "half of a disaggregated request"
NO_TIMES = "without usable times"
NO_REQUEST = "not about a request"


class RequestTimings:
    """Record the timing of all requests of one model in histograms.

    ``thresholds`` are SLO thresholds in seconds by signal: each becomes an exact bucket boundary.
    ``refused`` counts unusable items by reason.
    """

    def __init__(self, model: str, thresholds: Mapping[str, Iterable[float]]) -> None:
        self.refused: Counter[str] = Counter()
        self._model = model
        self._recorder = MetricRecorder(thresholds, start_time=monotonic())

    def add(self, items: Iterable[Mapping[str, object]], *, past: bool = False) -> int:
        """Add items and return their number.

        Items of the ``past`` only show which signals are available.
        """
        count = 0
        for item in items:
            if PARTS.isdisjoint(item):
                self.refused[NO_REQUEST] += 1
                continue
            count += 1
            found = dict(timing(item))
            gaps = token_gaps(item)
            if gaps:
                found["max_gap"] = max(gaps)
            if not found:
                self.refused[HALF if _is_half(item) else NO_TIMES] += 1
            for signal, seconds in found.items():
                self._recorder.observe(self._series(signal), seconds, weight=not past)
            for seconds in gaps:
                self._recorder.observe(self._series("itl"), seconds, weight=not past)
        return count

    def measurements(self) -> tuple[Measurement, ...]:
        """Return the measurements so far."""
        return self._recorder.measurements()

    def _series(self, signal: str) -> Series:
        return (signal, self._model, "", METHODS[signal])


def timing(item: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """Yield the signals of an item in seconds; nothing if its times contradict each other."""
    if _is_half(item):
        return
    if "ctx_perf_metrics" in item:
        for signal, path, span in ORCHESTRATED:
            seconds = _between(_at(item, *path), *span)
            if seconds is not None:
                yield signal, seconds
        return
    times = _at(item, "perf_metrics", "timing_metrics")
    moments = [_moment(times, name) for name in (*SPANS["queue"], *SPANS["decode"])]
    known = [moment for moment in moments if moment is not None]
    if known != sorted(known):
        return
    for signal, span in SPANS.items():
        seconds = _between(times, *span)
        if seconds is not None and (seconds > 0 or signal != "decode"):
            yield signal, seconds
    yield from _per_token(_at(item, "perf_metrics"))


def token_gaps(item: Mapping[str, object]) -> list[float]:
    """Return the gaps between the tokens of a request in seconds; empty for unusable times.

    The first token is that of the last chunk of the prefill.  The half of a disaggregated request
    that decodes does not have it, so its first gap is omitted.
    """
    if _is_half(item):
        return []
    path = ("gen_perf_metrics", "time_breakdown_metrics")
    breakdown = _at(item, *(path if "ctx_perf_metrics" in item else path[1:]))
    chunks, steps = (_steps(breakdown, key) for key in ("ctx_chunk_metrics", "step_metrics"))
    moments = [_moment(step, "token_time") for step in (*chunks[-1:], *steps)]
    times = [moment for moment in moments if moment is not None]
    if len(times) < len(moments):
        return []
    gaps = [round(late - early, CLOCK_DIGITS) for early, late in pairwise(times)]
    return gaps if all(0 <= gap <= MAX_REQUEST_SECONDS for gap in gaps) else []


def _steps(breakdown: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    steps = breakdown.get(key)
    if not isinstance(steps, list):
        return []
    return [step if isinstance(step, dict) else {} for step in steps]


def _per_token(metrics: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """Estimate the time per output token: one per iteration after the first, and accepted drafts.

    Too low where a prefill took several iterations, too high where the request was paused.
    """
    seconds = _between(_at(metrics, "timing_metrics"), *SPANS["decode"])
    first, last = amount(metrics.get("first_iter")), amount(metrics.get("last_iter"))
    if seconds and first is not None and last is not None and last > first:
        drafts = _at(metrics, "speculative_decoding").get("total_accepted_draft_tokens")
        yield "tpot", seconds / (last - first + (amount(drafts) or 0.0))


def _is_half(item: Mapping[str, object]) -> bool:
    return item.get("ctx_request_id") is not None


def _between(times: Mapping[str, object], start: str, end: str) -> float | None:
    first, last = _moment(times, start), _moment(times, end)
    if first is None or last is None or not 0 <= last - first <= MAX_REQUEST_SECONDS:
        return None
    # Rounded, because differences of large floats are inexact: 0.8 s must stay within 0.8 s.
    return round(last - first, CLOCK_DIGITS)


def _moment(times: Mapping[str, object], name: str) -> float | None:
    """Return a time; None for 0, which is an unset time."""
    return amount(times.get(name)) or None


def _at(document: Mapping[str, object], *path: str) -> Mapping[str, object]:
    """Return the object at ``path``, or an empty one."""
    for key in path:
        value = document.get(key)
        document = value if isinstance(value, dict) else {}
    return document
