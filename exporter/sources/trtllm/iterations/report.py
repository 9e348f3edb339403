"""Report an engine's state: a measurement or a reason for every signal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from exporter.samples import UNLABELLED, Distribution, Measurement, Missing, Model
from exporter.sources.measurements import of_model
from exporter.sources.trtllm.iterations.engine import GAPS_METHOD, NAMELESS, EngineState, RankState
from exporter.sources.trtllm.iterations.records import KvCache, Record
from exporter.sources.trtllm.kv_blocks import KV_GAUGES, blocks, contradict
from exporter.sources.unavailable import (
    LORA,
    OBSERVE,
    TAP_SIGNALS,
    Unavailable,
    refuse,
    with_missing_signals,
)

SEQUENCES = ("sequences_active", "sequences_decoding", "sequences_waiting", "sequences_paused")
MEMORY = ("memory_gpu", "memory_cpu", "memory_pinned")
GAUGES = (*SEQUENCES, "sequences_max", *KV_GAUGES, *MEMORY)
COUNTED = ("itl", "input_tokens", "output_tokens", "preemptions")
DRAFTS = ("draft_tokens", "accepted_draft_tokens")

# A smaller share may be blocks that are freed late, so it is not taken for a host pool.
HOST_POOL_SHARE = 0.05

ENABLE = (
    "for the PyTorch backend set enable_iter_perf_stats: true in the file given to trtllm-serve "
    "with --config (before 1.2: --extra_llm_api_options), then send a request"
)
PER_REQUEST = (
    "set return_perf_metrics: true in trtllm-serve's configuration file, and read its Prometheus "
    "metrics or per-request metrics too"
)
ALL_RANKS = "start trtllm-serve with TLLM_METRICS_ALL_RANKS=1 (1.3 or newer)"

_NO_REQUESTS = Unavailable("iteration records do not show single requests", PER_REQUEST)
_NO_STREAMS = Unavailable("iteration records do not show streams and their clients", OBSERVE)
_NEVER = {
    **dict.fromkeys(
        ("ttft", "tpot", "e2e", "prefill", "decode", "cached_input_tokens"), _NO_REQUESTS
    ),
    "requests": Unavailable(
        "iteration records count completed requests, cancelled and failed ones among them",
        PER_REQUEST,
    ),
    **dict.fromkeys(("requests_without_first_token", "max_gap", *TAP_SIGNALS), _NO_STREAMS),
    "lora_adapters": LORA,
}
_ABSENT = Unavailable("the iteration records do not hold it", "upgrade TensorRT-LLM")
_NO_RECORD = Unavailable("no iteration record was read yet", ENABLE)


def report(
    engine: EngineState, age: float | None, frozen_after: float, model: str, version: str
) -> tuple[tuple[Measurement, ...], tuple[Missing, ...]]:
    """Return measurements, and a reason for every signal of the catalogue without one.

    ``age`` is the time in seconds since the last record; gauges of an engine with remaining
    sequences and no record for ``frozen_after`` seconds are refused.
    """

    def why(model: Model, signal: str) -> Missing:
        absent = _ABSENT if engine.records else _NO_RECORD
        return _NEVER.get(signal, absent).missing(signal, model)

    found = _found(engine, age, frozen_after)
    named = (replace(item, model=model, version=version) for item in found)
    return with_missing_signals(named, [(model, version)], why)


def _found(
    engine: EngineState, age: float | None, frozen_after: float
) -> Iterator[Measurement | Missing]:
    if not engine.ranks:
        return
    # The rows of other ranks lack their completed requests.
    remaining = (
        None if engine.copied else _total(state.remaining for state in engine.ranks.values())
    )
    if age is not None and age > frozen_after and remaining != 0:
        idle = "may have left none" if remaining is None else f"left {remaining:g}"
        yield from refuse(
            (*SEQUENCES, *KV_GAUGES),
            NAMELESS,
            f"the last iteration record is {age:.0f} s old and {idle} of its sequences active: "
            "decoding is stuck, or trtllm-serve hands records out only when a request ends",
            "check whether streams still progress; from 1.3 on leave return_perf_metrics off to "
            "have records at once",
        )
    else:
        yield from _sequences(engine, remaining)
        yield from _blocks(engine)
    yield from _limits(engine)
    yield from _memory(engine)
    yield from _cache_counters(engine)
    yield from _counted(engine)
    yield from _queue(engine)


def _reporting_ranks(engine: EngineState) -> list[RankState]:
    """Return the states of the ranks that report numbers of their own."""
    if engine.copied:
        return [engine.first] if engine.first else []
    return list(engine.ranks.values())


def _latest(engine: EngineState) -> list[Record]:
    return [state.latest for state in _reporting_ranks(engine) if state.latest]


def _batches(engine: EngineState) -> list[Record]:
    return [record for state in engine.ranks.values() for record in state.scheduled()]


def _sequences(engine: EngineState, remaining: float | None) -> Iterator[Measurement | Missing]:
    latest, batches = _latest(engine), _batches(engine)
    active = _total(record.active for record in latest)
    scheduled = _total(record.scheduled for record in batches)
    generating = _total(record.generating for record in batches)
    paused = _total(record.paused for record in batches)
    queued = _total(record.queued for record in latest)
    if remaining == 0:
        active = scheduled = generating = paused = 0.0
    if generating is not None:
        yield _gauge("sequences_decoding", generating)
    if paused is not None:
        yield _gauge("sequences_paused", paused, "trtllm_just_paused")
    if engine.copied:
        yield from refuse(
            ("sequences_active", "sequences_waiting"),
            NAMELESS,
            "with attention data parallelism the rows of all ranks repeat what rank 0 has active",
            ALL_RANKS,
        )
        return
    if active is None:
        return
    yield _gauge("sequences_active", active)
    if scheduled is None:
        return
    unscheduled = max(0.0, active - scheduled)
    if engine.dialect == "cpp" and queued is not None:
        yield _gauge("sequences_waiting", unscheduled + queued, "trtllm_queued")
    else:
        yield _gauge("sequences_waiting", unscheduled, "trtllm_waiting")


def _limits(engine: EngineState) -> Iterator[Measurement | Missing]:
    if engine.copied:
        yield from refuse(
            ("sequences_max",),
            NAMELESS,
            "with attention data parallelism the rows of all ranks repeat the maximum of rank 0",
            ALL_RANKS,
        )
    elif most := _total(record.max_active for record in _latest(engine)):
        yield _gauge("sequences_max", most)


def _blocks(engine: EngineState) -> Iterator[Measurement | Missing]:
    """Yield the gauges of the KV cache, from its pools where the engine reports them."""
    rank = "of attention-DP rank 0" if engine.copied else ""
    ranks = _reporting_ranks(engine)
    current = all(state.pooled is state.latest for state in ranks)
    if current and all(state.pooled for state in ranks):
        yield from _pools(ranks, "trtllm_iteration", rank)
        return
    found = list(_totals(engine, rank))
    if any(isinstance(one, Measurement) for one in found) or not all(
        state.pooled for state in ranks
    ):
        yield from found
    else:
        yield from _pools(ranks, "trtllm_kv_interval", rank)


def _pools(ranks: list[RankState], method: str, note: str) -> Iterator[Measurement | Missing]:
    """Yield the gauges of pools; those of one engine have blocks of different sizes."""
    pools_by_rank = [state.pooled.kv_pools for state in ranks if state.pooled]
    if any(len(pools) > 1 for pools in pools_by_rank):
        fullest = max(pool.used / pool.most for pools in pools_by_rank for pool in pools)
        text = "; ".join(filter(None, ("of the fullest of several pools", note)))
        yield _gauge("kv_utilization", fullest, method, text)
        yield from refuse(
            ("kv_blocks_used", "kv_blocks_free", "kv_blocks_max"),
            NAMELESS,
            "the KV cache has several pools, with blocks of different sizes",
            "none needed: the utilization is that of the fullest pool",
        )
        return
    most = sum(pools[0].most for pools in pools_by_rank)
    used = sum(pools[0].used for pools in pools_by_rank)
    values = (used / most, used, most - used, most)
    for signal, value in zip(KV_GAUGES, values, strict=True):
        yield _gauge(signal, value, method, note)


def _totals(engine: EngineState, rank: str) -> Iterator[Measurement | Missing]:
    """Yield the gauges of kvCacheStats, which has the host's blocks in it before 1.3."""
    caches = [record.kv_cache for record in _latest(engine) if record.kv_cache]
    if not caches:
        return
    used, free, most = (
        _total(cache.used for cache in caches),
        _total(cache.free for cache in caches),
        _total(cache.most for cache in caches),
    )
    if not most:
        yield from refuse(
            KV_GAUGES,
            NAMELESS,
            "the engine reports a KV cache of 0 blocks: the second KV-cache manager reports its "
            "blocks only in kvCacheIterationStats",
            "set kv_cache_config.iteration_stats_interval: 1 (TensorRT-LLM 1.3 or newer)",
        )
        return
    if used is None or contradict(used, free, most):
        yield from refuse(
            KV_GAUGES,
            NAMELESS,
            "KV-cache values contradict each other: used + free is not max, or used is missing",
            "upgrade TensorRT-LLM",
        )
        return
    pool, method = _host_pool(engine, caches, most)
    cache = blocks(used, free, most, pool=pool, method=method)
    note = "; ".join(filter(None, (cache.note, rank)))
    for signal, value in cache.gauges.items():
        if value is not None:
            yield _gauge(signal, value, method, note)


def _host_pool(engine: EngineState, caches: list[KvCache], most: float) -> tuple[float, str]:
    """Return the number of host blocks to subtract, and the resulting method.

    The number comes from the pools, or from the blocks that are used while the engine is idle; it
    is unknown before the engine was idle.
    """
    pools = [
        pool for state in _reporting_ranks(engine) if state.pooled for pool in state.pooled.kv_pools
    ]
    if pools:
        own, host = sum(pool.most for pool in pools), sum(pool.host for pool in pools)
        if most == own:
            return 0.0, "trtllm_iteration"
        if host and most == own + host:
            return host, "trtllm_iteration"
    pool = engine.host_pool
    if len(caches) > 1 or not pool.most:
        return 0.0, "trtllm_kv_unverified"
    blocks = pool.surplus if pool.idle is None else pool.idle
    if blocks >= HOST_POOL_SHARE * pool.most:
        return blocks, "trtllm_without_host_pool"
    return 0.0, "trtllm_kv_unverified" if pool.idle is None else "trtllm_iteration"


def _memory(engine: EngineState) -> Iterator[Measurement | Missing]:
    latest = _latest(engine)
    gpu = _total(record.gpu_memory for record in latest)
    if gpu is not None:
        yield _gauge(
            "memory_gpu",
            gpu,
            note="all that is in use on the device, by any process"
            if engine.dialect == "pytorch"
            else "what TensorRT-LLM itself allocated",
        )
    if engine.dialect == "pytorch":
        yield from refuse(
            ("memory_cpu", "memory_pinned"),
            NAMELESS,
            "the PyTorch backend never sets it",
            "none with the PyTorch backend",
        )
    elif engine.dialect == "cpp":
        for signal, value in (
            ("memory_cpu", _total(record.cpu_memory for record in latest)),
            ("memory_pinned", _total(record.pinned_memory for record in latest)),
        ):
            if value is not None:
                yield _gauge(signal, value)


def _cache_counters(engine: EngineState) -> Iterator[Measurement]:
    caches = [record.kv_cache for record in _latest(engine) if record.kv_cache]
    note = "of attention-DP rank 0" if engine.copied else ""
    # Managers that fill in no blocks fill in none of their counters either.
    if any(cache.most for cache in caches):
        for signal, method, value in (
            ("kv_reused_blocks", "trtllm_reused", _total(cache.reused for cache in caches)),
            ("kv_missed_blocks", "trtllm_missed", _total(cache.missed for cache in caches)),
        ):
            yield from of_model(signal, NAMELESS, method, value, note)


def _counted(engine: EngineState) -> Iterator[Measurement | Missing]:
    """Yield sums over iterations, refused if some are not recorded."""
    if engine.interval > 1:
        yield from refuse(
            (*COUNTED, *DRAFTS),
            NAMELESS,
            f"only every {engine.interval}th iteration is recorded, and the counts of the others "
            "are unknown",
            "set iter_perf_stats_interval: 1, and check that nothing else reads GET /metrics",
        )
        return
    notes = {"itl": _gaps_note(engine)}
    for measurement in engine.recorder.measurements():
        if measurement.signal != "itl" or _has_gaps(engine, measurement):
            yield replace(
                measurement,
                note="; ".join(filter(None, (notes.get(measurement.signal), _lost_note(engine)))),
            )
    if engine.dialect is None:
        yield from refuse(
            ("itl",),
            NAMELESS,
            "nothing in the records shows whether the C++ or the PyTorch executor wrote them, and "
            "their latencies mean different things",
            "read the records as the server writes them, with all of their keys",
        )
    elif not any(_has_gaps(engine, measurement) for measurement in engine.recorder.measurements()):
        yield _no_gaps(engine)
    latest = _latest(engine)
    if latest and not any(record.drafts for record in latest):
        yield from refuse(
            DRAFTS,
            NAMELESS,
            "the engine does not decode speculatively, or does not report it",
            "none needed; with speculative decoding on, upgrade TensorRT-LLM to 1.0 or newer",
        )


def _has_gaps(engine: EngineState, measurement: Measurement) -> bool:
    """Return whether this is the current histogram of gaps, with gaps or to come."""
    if measurement.signal != "itl" or not engine.dialect:
        return False
    value = measurement.samples[UNLABELLED]
    current = measurement.method == GAPS_METHOD[engine.dialect]
    return current and isinstance(value, Distribution) and (value.count > 0 or not engine.untimed)


def _no_gaps(engine: EngineState) -> Missing:
    return Missing(
        "itl",
        "",
        "",
        "the records have no timestamps, and the latency of the overlap scheduler covers two "
        "iterations",
        "upgrade TensorRT-LLM to 1.0 or newer",
    )


def _gaps_note(engine: EngineState) -> str:
    if engine.tokens_per_sequence > 1:
        return (
            f"speculative decoding: a gap brings {engine.tokens_per_sequence:.2f} tokens on average"
        )
    return ""


def _lost_note(engine: EngineState) -> str:
    return f"{engine.lost} records are lost, and what they held" if engine.lost else ""


def _queue(engine: EngineState) -> Iterator[Measurement | Missing]:
    if engine.queue.refused:
        yield from refuse(
            ("queue",),
            NAMELESS,
            "newActiveRequestsQueueLatencyMS falls: it is not the running sum that the PyTorch "
            "backend is known for",
            PER_REQUEST,
        )
    elif engine.dialect:
        spread = Distribution((inf,), (engine.queue.count,), engine.queue.seconds)
        yield from of_model("queue", NAMELESS, "trtllm_queue_latency", spread, _lost_note(engine))


def _gauge(
    signal: str, value: float, method: str = "trtllm_iteration", note: str = ""
) -> Measurement:
    return Measurement(signal, *NAMELESS, method, {UNLABELLED: value}, note)


def _total(values: Iterator[float | None]) -> float | None:
    """Return the sum; None if there are no values or one is unknown."""
    parts = list(values)
    known = [part for part in parts if part is not None]
    return sum(known) if parts and len(known) == len(parts) else None
