"""Interpret the families of Triton's vLLM backend and of vLLM itself.

Triton's backend exports a part of them, with labels ``model`` and ``version``, and only with the
parameter REPORT_CUSTOM_METRICS.  vLLM itself has ``model_name`` and, with data parallelism, a
label ``engine``.  Names changed with vLLM's releases; all of them are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import TypeVar

from exporter.outcome_rules import counted_outcome
from exporter.samples import (
    Distribution,
    Labels,
    Measurement,
    Missing,
    Model,
    ModelInfo,
    Value,
)
from exporter.sources.exposition.by_model import FamiliesByModel
from exporter.sources.measurements import of_models
from exporter.sources.request_outcomes import FinishedCount, request_measurements
from slos.signals import LORA_LABELS

T = TypeVar("T")
first = itemgetter(0)

DURATION = "vllm:e2e_request_latency_seconds"
FINISH_REASONS = "vllm:request_success_total"
REJECTIONS = "vllm:admission_rejections_total"
TPOT = "vllm:request_time_per_output_token_seconds"
INPUT_TOKENS = "vllm:request_prompt_tokens"
OUTPUT_TOKENS = "vllm:request_generation_tokens"
CACHE_CONFIG = "vllm:cache_config_info"
LORA = "vllm:lora_requests_info"

# Signal and method, then the family's names, newest first.  What older releases (and Triton's
# backend) call time per output token is fed with inter-token latencies.
_TIMES = "vllm_histogram"
HISTOGRAMS = (
    ("ttft", _TIMES, ("vllm:time_to_first_token_seconds",)),
    ("itl", _TIMES, ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")),
    ("e2e", _TIMES, (DURATION,)),
    ("queue", _TIMES, ("vllm:request_queue_time_seconds",)),
    ("prefill", _TIMES, ("vllm:request_prefill_time_seconds",)),
    ("decode", _TIMES, ("vllm:request_decode_time_seconds",)),
    ("input_length", "vllm_input_lengths", (INPUT_TOKENS,)),
    ("output_length", "vllm_output_lengths", (OUTPUT_TOKENS,)),
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
MAX_DIGITS = 12
MAX_ADAPTERS = 64
"""Names in one list of LoRA adapters: both lists are labels."""
MAX_ADAPTER_NAME = 128
SUMMED_TIMES = 3e9
"""No single Unix time of today, but any sum of two."""
FAMILIES = frozenset(
    {
        FINISH_REASONS,
        REJECTIONS,
        TPOT,
        CACHE_CONFIG,
        LORA,
        *(name for *_, names in (*HISTOGRAMS, *GAUGES) for name in names),
        *(name for _, name in COUNTERS),
    }
)


def finished(metrics: FamiliesByModel) -> dict[Model, FinishedCount]:
    """Return the number of finished requests by engine: each has a duration."""
    return {
        model: FinishedCount("vllm_finished", "finished", count)
        for model, count in metrics.total(DURATION, "_count").items()
    }


def interpret(
    metrics: FamiliesByModel, models: Sequence[ModelInfo]
) -> Iterator[Measurement | Missing]:
    """Yield the measurements of these models, and the reason for every refused value."""
    keys = [(info.model, info.version) for info in models]
    for signal, method, names in HISTOGRAMS:
        histograms = _newest([metrics.distributions(name) for name in names])
        yield from of_models(signal, method, keys, histograms)
    yield from _tpot(metrics, keys)
    for signal, name in COUNTERS:
        yield from of_models(signal, "vllm_counter", keys, metrics.total(name))
    for signal, names in GAUGES:
        series = _newest([metrics.values(name) for name in names])
        if signal == "kv_utilization":
            yield from _cache(metrics, keys, series)
        else:
            gauges = {model: float(sum(values)) for model, values in series.items()}
            yield from of_models(signal, "vllm_gauge", keys, gauges)
    yield from _requests(metrics, keys)
    yield from _lora(metrics, keys)


def _tpot(metrics: FamiliesByModel, keys: Sequence[Model]) -> Iterator[Measurement]:
    """Yield TPOT without requests of one output token: vLLM observes 0 s for each.

    vLLM observes both histograms once per finished request (vllm/v1/metrics/loggers.py), so the
    number of these requests is the bucket of at most one output token.
    """
    lengths = metrics.distributions(OUTPUT_TOKENS)
    for key, tpot in metrics.distributions(TPOT).items():
        short = _at_most_one(lengths.get(key))
        if short is None:
            yield from of_models("tpot", "vllm_tpot_with_zeros", keys, {key: tpot})
            continue
        counts = tuple(max(0.0, count - short) for count in tpot.counts)
        counts = metrics.parts.derived(("tpot", key, tpot.boundaries), counts, tpot.counts)
        corrected = Distribution(tpot.boundaries, counts, tpot.sum)
        yield from of_models("tpot", "vllm_tpot", keys, {key: corrected})


def _at_most_one(lengths: Distribution | None) -> float | None:
    """Return how many requests had at most one output token, None if no bucket shows it."""
    for boundary, count in zip(lengths.boundaries, lengths.counts, strict=True) if lengths else ():
        if 1 <= boundary < 2:
            return count
    return None


def _cache(
    metrics: FamiliesByModel, keys: Sequence[Model], utilizations: Mapping[Model, Sequence[float]]
) -> Iterator[Measurement | Missing]:
    """Yield the utilization of the KV cache, and its blocks where vLLM publishes their number.

    ``cache_config_info`` names no model, so it is used only if the server has a single one.
    """
    sizes = _cache_sizes(metrics) if len(keys) == 1 else None
    for key in keys:
        if sizes:
            most, tokens = sizes
            yield from of_models("kv_blocks_max", "vllm_cache_config", keys, {key: most})
            if tokens:
                yield from of_models("kv_block_tokens", "vllm_cache_config", keys, {key: tokens})
        values = utilizations.get(key)
        if not values:
            continue
        if max(values) > 1:
            reason = f"vLLM reports a KV-cache utilization of {max(values):g}, more than 1"
            yield Missing("kv_utilization", *key, reason, "report it to vLLM")
            continue
        mean = sum(values) / len(values)
        yield from of_models("kv_utilization", "vllm_gauge", keys, {key: mean})
        if sizes:
            used = round(mean * sizes[0])
            for signal, blocks in (("kv_blocks_used", used), ("kv_blocks_free", sizes[0] - used)):
                yield from of_models(signal, "vllm_cache_blocks", keys, {key: float(blocks)})


def _cache_sizes(metrics: FamiliesByModel) -> tuple[float, float] | None:
    """Return the blocks of all engines and the tokens per block, 0 if engines differ in it."""
    blocks, tokens = 0.0, set()
    for labels in metrics.labels(CACHE_CONFIG):
        number, size = (labels.get(name, "") for name in ("num_gpu_blocks", "block_size"))
        if not (number.isdecimal() and len(number) < MAX_DIGITS):
            return None
        blocks += float(number)
        if size.isdecimal() and len(size) < MAX_DIGITS:
            tokens.add(float(size))
    if not blocks:
        return None
    return blocks, tokens.pop() if len(tokens) == 1 else 0.0


def _lora(metrics: FamiliesByModel, keys: Sequence[Model]) -> Iterator[Measurement | Missing]:
    """Yield the LoRA adapters of the latest series.

    vLLM adds a series for every combination of adapters and never removes one; the value is the
    time of its last update.  A series that names no model belongs to the server's only one.
    """
    only = keys[0] if len(keys) == 1 else None
    latest: dict[Model, tuple[float, Mapping[str, str]]] = {}
    for model, labels, updated in metrics.samples(LORA):
        key = model or only
        if key in keys and key and 0 <= updated < inf:
            latest[key] = max(latest.get(key, (updated, labels)), (updated, labels), key=first)
    for key, (updated, labels) in latest.items():
        if updated >= SUMMED_TIMES:
            reason = "the API servers of this vLLM add up their times of update"
            yield Missing("lora_adapters", *key, reason, "set --api-server-count 1")
            continue
        most = labels.get("max_lora", "")
        lists = [labels.get(name, "").split(",") for name in LORA_LABELS[1:]]
        shown, left_out = zip(*map(_adapters, lists), strict=True)
        values = (most if most.isdecimal() and len(most) < MAX_DIGITS else "", *shown)
        note = (
            f"left out: {sum(left_out)} adapters, beyond {MAX_ADAPTERS} in a list or with a name "
            f"of more than {MAX_ADAPTER_NAME} characters"
        )
        samples: dict[Labels, Value] = {tuple(zip(LORA_LABELS, values, strict=True)): updated}
        yield Measurement(
            "lora_adapters", *key, "vllm_lora", samples, note if any(left_out) else ""
        )


def _adapters(names: Sequence[str]) -> tuple[str, int]:
    """Return the names that a label holds, sorted, and the number of the others."""
    every = {name.strip() for name in names} - {""}
    fit = sorted(name for name in every if len(name) <= MAX_ADAPTER_NAME)[:MAX_ADAPTERS]
    return ",".join(fit), len(every) - len(fit)


def _newest(tables: Sequence[Mapping[Model, T]]) -> dict[Model, T]:
    """Merge tables by model; the first one that has a model wins."""
    return {model: value for table in reversed(tables) for model, value in table.items()}


def _requests(metrics: FamiliesByModel, keys: Sequence[Model]) -> Iterator[Measurement]:
    """Yield finished requests and, if vLLM limits its queue, shed ones."""
    finished = metrics.totals(FINISH_REASONS, "finished_reason")
    shed = metrics.totals(REJECTIONS, "reason")
    for key in keys:
        samples: defaultdict[tuple[str, str], float] = defaultdict(float)
        for label, count in finished.get(key, {}).items():
            samples[counted_outcome("vllm", label)] += count
        if key in shed:
            samples[counted_outcome("vllm_admission")] += sum(shed[key].values())
        if key in finished:
            yield from request_measurements(key, "vllm_finish_reason", samples)
        if key in shed:
            failed: dict[Labels, Value] = {(("outcome", "shed"),): sum(shed[key].values())}
            yield Measurement("requests_without_first_token", *key, "vllm_rejections", failed)
