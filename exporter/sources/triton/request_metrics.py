"""Interpret Triton's own request counters, where they are valid.

Triton counts a request when its backend reports it.  TensorRT-LLM's C++ backend and ensembles do so
at the end of the stream.  Python models, vLLM's and TensorRT-LLM's among them, do so when
``execute()`` returns, which for a decoupled model is before the first token: their successes and
durations are not those of streams (Triton python_backend, pb_metric_reporter.cc).  The counters of
other decoupled backends are not used either: their semantics are unknown.

When a model is reloaded its successes and durations restart at 0, but its failures continue: their
series outlive the model (observed on Triton 2.51).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from exporter.outcome_rules import counted_outcome
from exporter.samples import (
    UNLABELLED,
    Distribution,
    Labels,
    Measurement,
    Missing,
    Model,
    ModelInfo,
    Value,
)
from exporter.sources.exposition.by_model import FamiliesByModel
from exporter.sources.model_kind import Kind, kind_of
from exporter.sources.request_outcomes import FinishedCount, request_measurements

Origin = Literal["counters", "statistics"]

SUCCESS = "nv_inference_request_success"
FAILURE = "nv_inference_request_failure"
DURATION = "nv_inference_request_duration_us"
QUEUE = "nv_inference_queue_duration_us"
SUMMARY = "nv_inference_request_summary_us"
FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
FAMILIES = frozenset({SUCCESS, FAILURE, DURATION, QUEUE, SUMMARY, FIRST_RESPONSE})

IN_QUEUE = ("shed", "cancelled")
"""Outcomes of requests that end in the queue, before their first token."""

METHODS_OF: Mapping[Origin, Mapping[Kind, str]] = {
    "counters": {
        "tensorrtllm": "triton_counters",
        "ensemble": "triton_ensemble_counters",
        "unary": "triton_unary_counters",
    },
    "statistics": {
        "tensorrtllm": "statistics_requests",
        "ensemble": "statistics_requests",
        "unary": "statistics_requests",
    },
}
DURATION_METHOD = {"counters": "triton_duration", "statistics": "statistics_duration"}
QUEUE_METHOD = {"counters": "triton_queue", "statistics": "statistics_queue"}

FROZEN = (
    "Triton's counters are frozen: --metrics-config counter_latencies=false stops all of them, "
    "not only those of latencies"
)
FROZEN_FIX = "start Triton without counter_latencies=false"


@dataclass(frozen=True, slots=True)
class Tally:
    """Triton's counts for one model since it was loaded; durations of successes in seconds.

    ``failures`` are by Triton's reason, empty if it reports none.
    """

    ok: float
    failures: Mapping[str, float] = field(default_factory=dict)
    duration: float | None = None
    queue: float | None = None


def tallies(metrics: FamiliesByModel, models: Sequence[ModelInfo]) -> dict[Model, Tally]:
    """Read Triton's counters.

    Triton counts an ensemble's requests under version 1 for every version, and each failure there
    and under the real version: its versions are merged under the newest (observed on Triton 2.51).
    """
    ok, failures = metrics.total(SUCCESS), metrics.totals(FAILURE, "reason")
    durations, queues = metrics.total(DURATION), metrics.total(QUEUE)
    found = {
        model: Tally(
            count,
            failures.get(model, {}),
            _seconds(durations.get(model)),
            _seconds(queues.get(model)),
        )
        for model, count in ok.items()
    }
    versions: dict[str, list[Model]] = {}
    for model in found:
        versions.setdefault(model[0], []).append(model)
    newest = _newest(info for info in models if info.backend == "ensemble")
    for name in newest.keys() & versions.keys():
        merged = _merged([found.pop(model) for model in versions[name]])
        found[name, newest[name].version] = merged
    return found


def frozen(metrics: FamiliesByModel, statistics: Mapping[Model, Tally]) -> bool:
    """Return whether the counters are frozen: requests succeeded that no counter shows.

    The statistics must be read before the metrics; otherwise a first request between the two would
    appear frozen.  Versions are summed because ensembles mix them.
    """
    counted = _by_name(metrics.total(SUCCESS))
    elsewhere = [
        _by_name(metrics.total(SUMMARY, "_count")),
        _by_name({model: tally.ok for model, tally in statistics.items()}),
    ]
    return any(
        total == 0 and any(one.get(name, 0) > 0 for one in elsewhere)
        for name, total in counted.items()
    )


def counted(info: ModelInfo, tally: Tally, origin: Origin, note: str = "") -> Iterator[Measurement]:
    """Yield the measurements that a tally supports; ``note`` is added to each."""
    kind = kind_of(info)
    method = METHODS_OF[origin].get(kind)
    if method:
        samples = {("ok", "success"): tally.ok, **failures(info, tally)}
        yield from request_measurements((info.model, info.version), method, samples, note)
        if tally.duration is not None:
            mean = Distribution((inf,), (tally.ok,), tally.duration)
            yield _measurement(info, "e2e", DURATION_METHOD[origin], {UNLABELLED: mean}, note)
    if tally.queue is not None and kind not in ("ensemble", "unknown"):
        waits = Distribution((inf,), (tally.ok,), tally.queue)
        yield _measurement(info, "queue", QUEUE_METHOD[origin], {UNLABELLED: waits}, note)
    if origin == "counters" and kind != "ensemble" and tally.failures.keys() - {""}:
        failed: dict[Labels, float] = {(("outcome", outcome),): 0.0 for outcome in IN_QUEUE}
        for reason, count in tally.failures.items():
            outcome, _ = counted_outcome("triton", reason)
            if outcome in IN_QUEUE:
                failed[(("outcome", outcome),)] += count
        yield _measurement(
            info, "requests_without_first_token", "triton_queue_failures", failed, note
        )


def finished(
    info: ModelInfo, done: FinishedCount, tally: Tally, origin: Origin, note: str = ""
) -> Iterator[Measurement]:
    """Yield requests of a model whose successes Triton counts too early."""
    method = done.method if origin == "counters" else f"{done.method}_statistics"
    samples = {("ok", done.reason): done.count, **failures(info, tally)}
    yield from request_measurements((info.model, info.version), method, samples, note)


def failures(info: ModelInfo, tally: Tally) -> dict[tuple[str, str], float]:
    """Return a tally's failures by outcome and reason; an ensemble's are halved."""
    share = 0.5 if info.backend == "ensemble" else 1.0
    found: dict[tuple[str, str], float] = {}
    for reason, count in tally.failures.items():
        labels = counted_outcome("triton", reason)
        found[labels] = found.get(labels, 0.0) + count * share
    return found


def first_responses(
    metrics: FamiliesByModel, models: Sequence[ModelInfo]
) -> Iterator[Measurement | Missing]:
    """Yield time to first token; refused where the first response is the only one."""
    distributions = metrics.distributions(FIRST_RESPONSE, per_second=1000.0)
    for info in models:
        if kind_of(info) != "unknown" and not info.decoupled:
            yield Missing(
                "ttft",
                info.model,
                info.version,
                "the model is not decoupled, so its first response is the whole answer",
                "serve it with model_transaction_policy { decoupled: true } and stream",
            )
        elif kind_of(info) != "unknown" and (info.model, info.version) in distributions:
            samples = {UNLABELLED: distributions[info.model, info.version]}
            yield _measurement(info, "ttft", "triton_first_response", samples)


def _measurement(
    info: ModelInfo,
    signal: str,
    method: str,
    samples: Mapping[Labels, Value],
    note: str = "",
) -> Measurement:
    return Measurement(signal, info.model, info.version, method, dict(samples), note)


def _seconds(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6


def _by_name(totals: Mapping[Model, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for (name, _), total in totals.items():
        found[name] = found.get(name, 0.0) + total
    return found


def _newest(models: Iterable[ModelInfo]) -> dict[str, ModelInfo]:
    """Return the newest version by name; ready versions come before others."""
    found: dict[str, ModelInfo] = {}
    for info in sorted(models, key=lambda info: (info.ready, len(info.version), info.version)):
        found[info.model] = info
    return found


def _merged(parts: Sequence[Tally]) -> Tally:
    reasons = {reason for part in parts for reason in part.failures}
    return Tally(
        sum(part.ok for part in parts),
        {reason: sum(part.failures.get(reason, 0.0) for part in parts) for reason in reasons},
        sum(part.duration or 0.0 for part in parts),
        sum(part.queue or 0.0 for part in parts),
    )
