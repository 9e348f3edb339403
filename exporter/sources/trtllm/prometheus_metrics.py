"""Interpret trtllm-serve's ``/prometheus/metrics`` of every release.

Early releases have no prefix, later ones ``trtllm_``; both are read.  Labels are
``model_name`` and ``engine_type``, both "undefined" at first (TensorRT-LLM, metrics/collector.py).
A request is observed when it completes; a value of 0 is mostly omitted.  The gauges are those of
the last iteration that was fetched when a request completed: between completions they do not
change, and when the server becomes idle they show its last batch as still running.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from exporter.outcome_rules import counted_outcome
from exporter.samples import Measurement, Missing, Model
from exporter.sources.exposition import multiprocess_gauges
from exporter.sources.exposition.by_model import FamiliesByModel
from exporter.sources.exposition.multiprocess_gauges import Gauges, Writers
from exporter.sources.exposition.text_parser import ParsedFamily
from exporter.sources.measurements import of_model
from exporter.sources.request_outcomes import request_measurements
from exporter.sources.trtllm.kv_blocks import KV_GAUGES, blocks, contradict
from exporter.sources.unavailable import refuse

T = TypeVar("T")

PREFIXES = ("trtllm_", "")
"""The newest first."""

HISTOGRAMS = {
    "ttft": "time_to_first_token_seconds",
    "tpot": "time_per_output_token_seconds",
    "e2e": "e2e_request_latency_seconds",
    "queue": "request_queue_time_seconds",
    "prefill": "request_prefill_time_seconds",
    "decode": "request_decode_time_seconds",
}
COUNTERS = {
    "input_tokens": ("trtllm_serve_counter", "prompt_tokens_total"),
    "cached_input_tokens": ("trtllm_serve_counter", "prompt_cached_tokens_total"),
    "output_tokens": ("trtllm_serve_counter", "generation_tokens_total"),
    "kv_reused_blocks": ("trtllm_serve_iterations", "kv_cache_reused_blocks_total"),
    "kv_missed_blocks": ("trtllm_serve_iterations", "kv_cache_missed_blocks_total"),
    "draft_tokens": ("trtllm_serve_iterations", "spec_decode_num_draft_tokens_total"),
    "accepted_draft_tokens": ("trtllm_serve_iterations", "spec_decode_num_accepted_tokens_total"),
}
FINISHED = "request_success_total"
NO_REQUESTS = {"stop": 0.0}
GAUGES = {
    f"trtllm_{family}": family
    for family in (
        "num_requests_running",
        "num_requests_waiting",
        "num_scheduled_requests",
        "num_generation_requests",
        "num_paused_requests",
        "max_num_active_requests",
        "kv_cache_utilization",
        "kv_cache_used_blocks",
        "kv_cache_free_blocks",
        "kv_cache_max_blocks",
        "kv_cache_tokens_per_block",
        "gpu_memory_usage_bytes",
        "cpu_memory_usage_bytes",
        "pinned_memory_usage_bytes",
    )
}
STAMPS = {
    f"trtllm_{family}": family
    for family in ("iteration_latency_seconds", "kv_cache_hit_rate", "total_context_tokens")
}
"""Gauges that only show whether their process still writes."""

FAMILIES = frozenset(
    {
        *GAUGES,
        *STAMPS,
        *(
            prefix + family
            for prefix in PREFIXES
            for family in (
                *HISTOGRAMS.values(),
                *(family for _, family in COUNTERS.values()),
                FINISHED,
            )
        ),
    }
)

SEQUENCES = {
    "sequences_active": "num_requests_running",
    "sequences_decoding": "num_generation_requests",
    "sequences_paused": "num_paused_requests",
}
MEMORY = {
    "memory_gpu": "gpu_memory_usage_bytes",
    "memory_cpu": "cpu_memory_usage_bytes",
    "memory_pinned": "pinned_memory_usage_bytes",
}
LOAD_GAUGES = (*SEQUENCES, "sequences_waiting", *KV_GAUGES)
ALL_GAUGES = (*LOAD_GAUGES, "sequences_max", "kv_block_tokens", *MEMORY)

NO_ZEROS = "excludes waits of exactly 0: this release omits them"
ITERATIONS = "set enable_iter_perf_stats: true, so that GET /metrics has iteration statistics"
CLEAR = "empty the folder PROMETHEUS_MULTIPROC_DIR before the server starts"


STALE_REQUESTS = 3
"""Completed requests without a change of any gauge after which the writing process is dead."""


@dataclass(frozen=True, slots=True)
class GaugeState:
    """State between two scrapes: the processes that write gauges, and the fewest used blocks.

    ``idle_blocks`` is the number of used blocks while nothing was running, None before the server
    was idle.  ``finished`` requests were counted at this scrape, ``stale_requests`` of them since a
    gauge changed.
    """

    writers: Writers
    idle_blocks: float | None = None
    finished: float | None = None
    stale_requests: float = 0.0


def metrics_model(families: Mapping[str, ParsedFamily], served: str) -> Model | None:
    """Return the served model's name in the metrics; None if ambiguous.

    A server has one model, whatever its metrics call it.
    """
    found = FamiliesByModel(families).models(*FAMILIES)
    if (served, "") in found or not found:
        return (served, "")
    return next(iter(found)) if len(found) == 1 else None


def finished(metrics: FamiliesByModel, labelled: Model) -> float:
    """Return the server's count of finished requests; 0 before the first one."""
    return _newest({name: metrics.total(name) for name in _names(FINISHED)}, labelled) or 0.0


def update_gauges(
    before: GaugeState | None,
    families: Mapping[str, ParsedFamily],
    finished: float | None,
    now: float,
) -> GaugeState:
    """Return the state after this scrape, which counts ``finished`` requests."""
    found = multiprocess_gauges.read(families, GAUGES | STAMPS)
    writers = multiprocess_gauges.update_writers(before.writers if before else None, found, now)
    idle = before.idle_blocks if before else None
    pid = multiprocess_gauges.current(writers)
    if pid is not None:
        writer = writers[pid]
        used = writer.gauges.get("kv_cache_used_blocks")
        at_rest = writer.changed < now and writer.gauges.get("num_requests_running") == 0
        if at_rest and used is not None:
            idle = used if idle is None else min(idle, used)
    return GaugeState(writers, idle, finished, _stale_requests(before, writers, finished, now))


def interpret(
    metrics: FamiliesByModel,
    labelled: Model,
    state: GaugeState,
    model: str,
    now: float,
    frozen_after: float,
) -> Iterator[Measurement | Missing]:
    """Yield the measurements of ``model``, which the server's labels call ``labelled``.

    ``state`` must include this exposition (:func:`update_gauges`).  Gauges that show work but have
    not changed for ``frozen_after`` seconds are refused.
    """
    for signal, family in HISTOGRAMS.items():
        tables = {name: metrics.distributions(name) for name in _names(family)}
        first_names = labelled not in tables[PREFIXES[0] + family]
        note = NO_ZEROS if signal == "queue" and first_names else ""
        yield from of_model(
            signal, (model, ""), "trtllm_serve_histogram", _newest(tables, labelled), note
        )
    for signal, (method, family) in COUNTERS.items():
        tables_of = {name: metrics.total(name) for name in _names(family)}
        yield from of_model(signal, (model, ""), method, _newest(tables_of, labelled))
    yield from _requests(metrics, labelled, model)
    yield from _gauges(state, model, now, frozen_after)


def _stale_requests(
    before: GaugeState | None, writers: Writers, finished: float | None, now: float
) -> float:
    has_changed = any(writer.changed == now for writer in writers.values())
    if has_changed or before is None or before.finished is None or finished is None:
        return 0.0
    return before.stale_requests + max(0.0, finished - before.finished)


def _names(family: str) -> list[str]:
    return [prefix + family for prefix in PREFIXES]


def _newest(tables: Mapping[str, Mapping[Model, T]], labelled: Model) -> T | None:
    return next((table[labelled] for table in tables.values() if labelled in table), None)


def _requests(metrics: FamiliesByModel, labelled: Model, model: str) -> Iterator[Measurement]:
    """Yield requests by outcome; before the first request there is no series."""
    tables = {name: metrics.totals(name, "finished_reason") for name in _names(FINISHED)}
    samples: defaultdict[tuple[str, str], float] = defaultdict(float)
    for finish_reason, count in (_newest(tables, labelled) or NO_REQUESTS).items():
        samples[counted_outcome("trtllm", finish_reason)] += count
    yield from request_measurements((model, ""), "trtllm_serve_finish_reason", samples)


def _gauges(
    state: GaugeState, model: str, now: float, frozen_after: float
) -> Iterator[Measurement | Missing]:
    if not state.writers:
        return
    pid = multiprocess_gauges.current(state.writers)
    if pid is None:
        reason = (
            f"{len(state.writers)} processes have gauges and none of them has changed yet: they "
            "may be those of dead processes"
        )
        yield from refuse(ALL_GAUGES, (model, ""), reason, f"send a request, or {CLEAR}")
        return
    writer = state.writers[pid]
    gauges, age = writer.gauges, now - writer.changed
    if state.stale_requests >= STALE_REQUESTS and "iteration_latency_seconds" in gauges:
        reason = (
            f"{state.stale_requests:.0f} requests completed and the gauges did not change: their "
            "process is dead, and the one that serves writes none"
        )
        yield from refuse(ALL_GAUGES, (model, ""), reason, f"{CLEAR}, and {ITERATIONS}")
        return
    yield from _constants(gauges, model)
    if age > frozen_after and _shows_work(gauges):
        reason = (
            f"the gauges show work but have not moved for {age:.0f} s: they are written when a "
            "request completes, so the server is idle or none has completed since"
        )
        yield from refuse(LOAD_GAUGES, (model, ""), reason, ITERATIONS)
        return
    for signal, name in SEQUENCES.items():
        yield from of_model(signal, (model, ""), "trtllm_serve_gauge", gauges.get(name))
    yield from _waiting(gauges, model)
    yield from _blocks(gauges, state.idle_blocks, model)


def _shows_work(gauges: Gauges) -> bool:
    return gauges.get("num_requests_running", gauges.get("kv_cache_utilization", 0.0)) > 0


def _constants(gauges: Gauges, model: str) -> Iterator[Measurement | Missing]:
    """Yield the gauges that are constant while the server runs."""
    most = gauges.get("max_num_active_requests") or None
    yield from of_model("sequences_max", (model, ""), "trtllm_serve_gauge", most)
    tokens = gauges.get("kv_cache_tokens_per_block") or None
    yield from of_model("kv_block_tokens", (model, ""), "trtllm_serve_gauge", tokens)
    for signal, name in MEMORY.items():
        if gauges.get(name) == 0:
            reason = "trtllm-serve reports 0 bytes: its PyTorch backend does not measure it"
            yield from refuse([signal], (model, ""), reason, "none known with this backend")
        else:
            yield from of_model(signal, (model, ""), "trtllm_serve_gauge", gauges.get(name))


def _waiting(gauges: Gauges, model: str) -> Iterator[Measurement]:
    """Yield waiting sequences: active but not scheduled, and queued."""
    running, scheduled = gauges.get("num_requests_running"), gauges.get("num_scheduled_requests")
    if running is not None and scheduled is not None:
        waiting = max(0.0, running - scheduled) + gauges.get("num_requests_waiting", 0.0)
        yield from of_model("sequences_waiting", (model, ""), "trtllm_serve_waiting", waiting)


def _blocks(gauges: Gauges, idle: float | None, model: str) -> Iterator[Measurement | Missing]:
    used, most = gauges.get("kv_cache_used_blocks"), gauges.get("kv_cache_max_blocks")
    if used is None or most is None:
        utilization = gauges.get("kv_cache_utilization")
        if utilization is not None and utilization <= 1:
            note = "blocks are not published, so a host-offload pool among them would not show"
            yield from of_model(
                "kv_utilization", (model, ""), "trtllm_serve_gauge", utilization, note
            )
        return
    free = gauges.get("kv_cache_free_blocks", most - used)
    if not most:
        reason = "the server reports a KV cache of 0 blocks: its cache manager does not report them"
        yield from refuse(KV_GAUGES, (model, ""), reason, "none known with this cache manager")
        return
    if contradict(used, free, most):
        reason = "KV-cache values contradict each other: used + free is not max"
        yield from refuse(KV_GAUGES, (model, ""), reason, ITERATIONS)
        return
    cache = blocks(used, free, most, pool=idle, method="trtllm_serve_gauge")
    for signal, value in cache.gauges.items():
        yield from of_model(signal, (model, ""), cache.method, value, cache.note)
