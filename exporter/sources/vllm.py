"""vLLM's families, as Triton's vLLM backend and vLLM itself publish them.

Triton's backend exports a part of them, with labels ``model`` and ``version``, and only with the
parameter REPORT_CUSTOM_METRICS.  vLLM itself has ``model_name`` and, with data parallelism, one
``engine`` beside the other.  Names changed with vLLM's releases; what is there decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from exporter.readings import UNLABELLED, Labels, Model, ModelInfo, Reading, Value
from exporter.sources.by_model import ByModel
from exporter.sources.request_outcomes import request_readings
from exporter.sources.triton_core import Finished

T = TypeVar("T")

DURATION = "vllm:e2e_request_latency_seconds"
FINISH_REASONS = "vllm:request_success_total"
REJECTIONS = "vllm:admission_rejections_total"

# Signal, then the family's names, newest first.  What older releases (and Triton's backend) call
# time per output token is fed with inter-token latencies.
HISTOGRAMS = (
    ("ttft", ("vllm:time_to_first_token_seconds",)),
    ("itl", ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")),
    ("tpot", ("vllm:request_time_per_output_token_seconds",)),
    ("e2e", (DURATION,)),
    ("queue", ("vllm:request_queue_time_seconds",)),
    ("prefill", ("vllm:request_prefill_time_seconds",)),
    ("decode", ("vllm:request_decode_time_seconds",)),
)
COUNTERS = (
    ("input_tokens", "vllm:prompt_tokens_total"),
    ("cached_input_tokens", "vllm:prompt_tokens_cached_total"),
    ("output_tokens", "vllm:generation_tokens_total"),
    ("preemptions", "vllm:num_preemptions_total"),
    ("draft_tokens", "vllm:spec_decode_num_draft_tokens_total"),
    ("accepted_draft_tokens", "vllm:spec_decode_num_accepted_tokens_total"),
)
GAUGES = (
    ("sequences_active", ("vllm:num_requests_running",)),
    ("sequences_waiting", ("vllm:num_requests_waiting",)),
    ("kv_utilization", ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")),
)
OUTCOMES = {
    "stop": "ok",
    "length": "ok",
    "repetition": "ok",
    "abort": "disconnected",
    "error": "error",
}
REJECTED_FOR = ("max_num_queued_reqs", "max_num_queued_tokens")
FAMILIES = frozenset(
    {
        FINISH_REASONS,
        REJECTIONS,
        *(name for _, names in (*HISTOGRAMS, *GAUGES) for name in names),
        *(name for _, name in COUNTERS),
    }
)


def finished(metrics: ByModel) -> dict[Model, Finished]:
    """Return how many requests each engine finished: each one has a duration."""
    return {
        model: Finished("vllm_finished", "finished", count)
        for model, count in metrics.total(DURATION, "_count").items()
    }


def interpret(metrics: ByModel, models: Sequence[ModelInfo]) -> Iterator[Reading]:
    """Tell all that vLLM publishes about these models."""
    keys = [(info.model, info.version) for info in models]
    for signal, names in HISTOGRAMS:
        histograms = _newest([metrics.distributions(name) for name in names])
        yield from _readings(signal, "vllm_histogram", keys, histograms)
    for signal, name in COUNTERS:
        yield from _readings(signal, "vllm_counter", keys, metrics.total(name))
    for signal, names in GAUGES:
        series = _newest([metrics.values(name) for name in names])
        combine = _mean if signal == "kv_utilization" else sum
        gauges = {model: float(combine(values)) for model, values in series.items()}
        yield from _readings(signal, "vllm_gauge", keys, gauges)
    yield from _requests(metrics, keys)


def _newest(tables: Sequence[Mapping[Model, T]]) -> dict[Model, T]:
    """Merge tables by model; the first one that has a model wins."""
    return {model: value for table in reversed(tables) for model, value in table.items()}


def _mean(values: Sequence[float]) -> float:
    """Return the utilization of several engines with equal caches."""
    return sum(values) / len(values)


def _readings(
    signal: str, method: str, keys: Sequence[Model], found: Mapping[Model, Value]
) -> Iterator[Reading]:
    for model, version in keys:
        if (model, version) in found:
            samples = {UNLABELLED: found[model, version]}
            yield Reading(signal, model, version, method, samples)


def _requests(metrics: ByModel, keys: Sequence[Model]) -> Iterator[Reading]:
    """Tell requests that finished and, where vLLM has a limit for its queue, those it refused."""
    finished = metrics.totals(FINISH_REASONS, "finished_reason")
    rejected = metrics.totals(REJECTIONS, "reason")
    for key in keys:
        samples: defaultdict[tuple[str, str], float] = defaultdict(float)
        for word, count in finished.get(key, {}).items():
            reason = word if word in OUTCOMES else "unknown"
            samples[OUTCOMES.get(word, "error"), reason] += count
        for word, count in rejected.get(key, {}).items():
            samples["rejected", word if word in REJECTED_FOR else "unknown"] += count
        if key in finished:
            yield from request_readings(key, "vllm_finish_reason", samples)
        if key in rejected:
            died: dict[Labels, Value] = {(("outcome", "rejected"),): sum(rejected[key].values())}
            yield Reading("requests_without_first_token", *key, "vllm_rejections", died)
