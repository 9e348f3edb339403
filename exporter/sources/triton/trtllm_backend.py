"""Interpret TensorRT-LLM's families in Triton: ``nv_trt_llm_*`` and ``nv_llm_*``.

Two implementations share the names: the C++ backend (custom_metrics_reporter.cc) and the python
model.  Both take the executor's iteration statistics every 100 ms and keep the last iteration, so
the gauges freeze when the executor stops reporting: when it is idle, which is fine, and when it
hangs, which is not.  Timestamps are microseconds in C++, seconds in python, and local time in
both: only their changes are meaningful.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from exporter.samples import UNLABELLED, Distribution, Measurement, Missing, Model, ModelInfo
from exporter.sources.exposition.by_model import FamiliesByModel
from exporter.sources.measurements import of_models
from exporter.sources.request_outcomes import FinishedCount
from exporter.sources.trtllm import kv_blocks
from exporter.sources.trtllm.kv_blocks import KV_GAUGES
from exporter.sources.unavailable import refuse

REQUESTS = "nv_trt_llm_request_metrics"
MEMORY = "nv_trt_llm_runtime_memory_metrics"
BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
BATCHER = "nv_trt_llm_inflight_batcher_metrics"
STATIC_BATCHER = "nv_trt_llm_v1_metrics"
GENERAL = "nv_trt_llm_general_metrics"
OUTPUT_LENGTH = "nv_llm_output_token_len"
INPUT_LENGTH = "nv_llm_input_token_len"
ENGINE = (REQUESTS, MEMORY, BLOCKS, BATCHER)
FAMILIES = frozenset({*ENGINE, STATIC_BATCHER, GENERAL, OUTPUT_LENGTH, INPUT_LENGTH})

SEQUENCES = (
    "sequences_active",
    "sequences_decoding",
    "sequences_waiting",
    "sequences_paused",
    "sequences_max",
)
CACHE_GAUGES = (*KV_GAUGES, "kv_block_tokens")
MEMORY_GAUGES = ("memory_gpu", "memory_cpu", "memory_pinned")
GAUGES = SEQUENCES + CACHE_GAUGES + MEMORY_GAUGES
AT_REST = ("sequences_active", "kv_utilization")
"""Gauges whose 0 before the first iteration is valid; the 0 of others is not."""

MICROSECONDS = 1e14
"""Timestamps above are microseconds since 1970, the C++ backend's; below, the python model's."""
# A scrape shows the last iteration up to 0.1 s late, and iterations can be long.
CLOCK_TOLERANCE = 0.5
CLOCK_SLIP = 0.1

UPGRADE = "upgrade the tensorrtllm backend: release 25.04 or newer publishes it"


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """The state of one engine between two scrapes.

    ``stamp`` is (timestamp, iteration) and ``changed_at`` the time of its last observed change.
    ``idle_blocks`` is the minimum of used blocks while the engine was idle, None before it was
    idle, for a cache of ``max_blocks``.  ``rate`` is the iteration rate, None if not measurable.
    """

    stamp: tuple[float, float]
    changed_at: float
    idle_blocks: float | None = None
    max_blocks: float = 0.0
    rate: IterationRate | None = None


@dataclass(frozen=True, slots=True)
class IterationRate:
    """Durations of iterations, weighted by their decoding sequences.

    ``gaps`` is the number of token gaps and ``seconds`` their sum.  The other fields are from the
    last scrape: its time ``at``, ``active`` and ``generating`` sequences, and ``done`` requests,
    None if not published.
    """

    at: float
    active: float
    generating: float
    done: float | None
    gaps: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Gauges:
    """The gauges of one model by the server's label values."""

    requests: Mapping[str, float]
    blocks: Mapping[str, float]
    batcher: Mapping[str, float]
    memory: Mapping[str, float]
    general: Mapping[str, float]
    static_batching: bool


def finished(metrics: FamiliesByModel) -> dict[Model, FinishedCount]:
    """Return the number of finished requests by engine: each has an output length."""
    return {
        model: FinishedCount("trtllm_finished", "finished", count)
        for model, count in metrics.total(OUTPUT_LENGTH, "_count").items()
    }


def update_progress(
    metrics: FamiliesByModel,
    models: Sequence[ModelInfo],
    engines: Mapping[Model, EngineProgress],
    now: float,
) -> dict[Model, EngineProgress]:
    """Return the progress of each engine after this scrape."""
    found = {}
    done = metrics.total(OUTPUT_LENGTH, "_count")
    for model, gauges in _by_model(metrics, models).items():
        if gauges.general:
            before = engines.get(model)
            engine = _observed(before, gauges, now)
            found[model] = replace(engine, rate=_rate(before, engine, gauges, done.get(model), now))
    return found


def interpret(
    metrics: FamiliesByModel,
    models: Sequence[ModelInfo],
    engines: Mapping[Model, EngineProgress],
    now: float,
    frozen_after: float,
) -> Iterator[Measurement | Missing]:
    """Yield engine gauges and tokens of every model that publishes them.

    ``engines`` must include this exposition (:func:`update_progress`).  All gauges of an engine
    that has active sequences but published no iteration for ``frozen_after`` seconds are refused.
    """
    by_model = _by_model(metrics, models)
    for info in models:
        model = (info.model, info.version)
        if model in by_model:
            yield from _gauges(info, by_model[model], engines.get(model), now, frozen_after)
    keys = [(info.model, info.version) for info in models]
    for direction, name in (("input", INPUT_LENGTH), ("output", OUTPUT_LENGTH)):
        method = f"trtllm_{direction}_length"
        yield from of_models(f"{direction}_tokens", method, keys, metrics.total(name, "_sum"))
        yield from of_models(f"{direction}_length", method, keys, metrics.distributions(name))


def _by_model(metrics: FamiliesByModel, models: Sequence[ModelInfo]) -> dict[Model, _Gauges]:
    requests = metrics.totals(REQUESTS, "request_type")
    blocks = metrics.totals(BLOCKS, "kv_cache_block_type")
    batcher = metrics.totals(BATCHER, "inflight_batcher_specific_metric")
    memory = metrics.totals(MEMORY, "memory_type")
    general = metrics.totals(GENERAL, "general_type")
    static = metrics.models(STATIC_BATCHER)
    return {
        model: _Gauges(
            requests.get(model, {}),
            blocks.get(model, {}),
            batcher.get(model, {}),
            memory.get(model, {}),
            general.get(model, {}),
            model in static,
        )
        for model in ((info.model, info.version) for info in models)
        if any(model in group for group in (requests, blocks, batcher, memory))
    }


def _observed(before: EngineProgress | None, gauges: _Gauges, now: float) -> EngineProgress:
    stamp = (gauges.general.get("timestamp", 0.0), gauges.general.get("iteration_counter", 0.0))
    used, maximum = gauges.blocks.get("used"), gauges.blocks.get("max", 0.0)
    engine = EngineProgress(stamp, now)
    if before:
        changed_at = now if stamp != before.stamp else before.changed_at
        same_cache = before.max_blocks == maximum
        engine = replace(
            engine, changed_at=changed_at, idle_blocks=before.idle_blocks if same_cache else None
        )
    # Only at rest: while an iteration is being written, active and used may be of two of them.
    at_rest = before is not None and stamp == before.stamp and gauges.requests.get("active") == 0
    if at_rest and used is not None and maximum:
        idle = used if engine.idle_blocks is None else min(used, engine.idle_blocks)
        engine = replace(engine, idle_blocks=idle)
    return replace(engine, max_blocks=maximum)


def _rate(
    before: EngineProgress | None,
    engine: EngineProgress,
    gauges: _Gauges,
    done: float | None,
    now: float,
) -> IterationRate | None:
    """Add the durations of the iterations since the last scrape, if they were contiguous.

    They were if a sequence was decoding all the time: not all that were active then have ended.  In
    a pipeline, iterations of several micro-batches overlap and do not time one sequence.
    """
    if engine.stamp[0] < MICROSECONDS or gauges.batcher.get("micro_batch_id"):
        return None
    rate = IterationRate(
        now,
        gauges.requests.get("active", 0.0),
        gauges.batcher.get("generation_requests", 0.0),
        done,
    )
    last = before.rate if before else None
    if before is None or last is None:
        return rate
    rate = replace(rate, gaps=last.gaps, seconds=last.seconds)
    iterations = engine.stamp[1] - before.stamp[1]
    took = (engine.stamp[0] - before.stamp[0]) / 1e6
    elapsed = now - last.at
    if (
        iterations < 1
        or not last.generating
        or not rate.generating
        or rate.done is None
        or last.done is None
        or not 0 <= rate.done - last.done < last.active
        or took <= 0
        or abs(took - elapsed) > CLOCK_TOLERANCE + CLOCK_SLIP * elapsed
    ):
        return rate
    gaps = iterations * (last.generating + rate.generating) / 2
    return replace(rate, gaps=rate.gaps + gaps, seconds=rate.seconds + gaps * took / iterations)


def _iteration_rate(
    info: ModelInfo, engine: EngineProgress | None
) -> Iterator[Measurement | Missing]:
    rate = engine.rate if engine else None
    if rate is None:
        return
    if rate.done is None:
        yield Missing(
            "itl",
            info.model,
            info.version,
            f"without {OUTPUT_LENGTH} nothing shows whether iterations followed each other",
            "use the tensorrtllm backend of release 25.02 or newer",
        )
        return
    samples = {UNLABELLED: Distribution((inf,), (rate.gaps,), rate.seconds)}
    yield Measurement("itl", info.model, info.version, "trtllm_iteration_rate", samples)


def _gauges(
    info: ModelInfo, gauges: _Gauges, engine: EngineProgress | None, now: float, frozen_after: float
) -> Iterator[Measurement | Missing]:
    active = gauges.requests.get("active", 0.0)
    if not gauges.requests.get("max") and not gauges.general.get("timestamp"):
        for signal in AT_REST:
            yield Measurement(signal, info.model, info.version, "trtllm_at_rest", {UNLABELLED: 0.0})
        yield from refuse(
            [signal for signal in GAUGES if signal not in AT_REST],
            (info.model, info.version),
            "the engine has run no iteration yet, so all of its gauges are 0",
            "send a first request",
        )
    elif engine and active > 0 and now - engine.changed_at > frozen_after:
        yield from refuse(
            GAUGES,
            (info.model, info.version),
            f"engine statistics stopped {now - engine.changed_at:.0f} s ago with {active:g} "
            "active: decoding is stuck or the executor does not report idle",
            "check whether streams still progress; if they do not, restart the model",
        )
    else:
        yield from _sequences(info, gauges)
        yield from _blocks(info, gauges, engine)
        for kind in ("gpu", "cpu", "pinned"):
            yield _gauge(info, f"memory_{kind}", gauges.memory.get(kind), MEMORY, kind)
    yield from _iteration_rate(info, engine)
    if "reused" in gauges.blocks:
        samples = {UNLABELLED: gauges.blocks["reused"]}
        yield Measurement("kv_reused_blocks", info.model, info.version, "trtllm_reused", samples)
    elif gauges.blocks:
        yield Missing(
            "kv_reused_blocks",
            info.model,
            info.version,
            "TensorRT-LLM's python model and backends before 24.10 do not publish reused blocks",
            "serve the model with the C++ tensorrtllm backend",
        )


def _sequences(info: ModelInfo, gauges: _Gauges) -> Iterator[Measurement | Missing]:
    requests = gauges.requests
    yield _gauge(info, "sequences_active", requests.get("active"), REQUESTS, "active")
    yield _gauge(info, "sequences_max", requests.get("max") or None, REQUESTS, "max")
    waiting = requests.get("waiting")
    if waiting is None and "active" in requests and "scheduled" in requests:
        waiting = max(0.0, requests["active"] - requests["scheduled"])
    yield _gauge(info, "sequences_waiting", waiting, REQUESTS, "waiting", method="trtllm_waiting")
    for signal, label, method in (
        ("sequences_decoding", "generation_requests", "trtllm_iteration"),
        ("sequences_paused", "paused_requests", "trtllm_just_paused"),
    ):
        if gauges.static_batching and label not in gauges.batcher:
            yield from refuse(
                [signal],
                (info.model, info.version),
                "the engine batches statically (V1) and reports nothing of the kind",
                "use inflight batching (gpt_model_type: inflight_fused_batching)",
            )
        else:
            yield _gauge(info, signal, gauges.batcher.get(label), BATCHER, label, method=method)


def _blocks(
    info: ModelInfo, gauges: _Gauges, engine: EngineProgress | None
) -> Iterator[Measurement | Missing]:
    blocks = gauges.blocks
    used, free, maximum = blocks.get("used"), blocks.get("free"), blocks.get("max")
    if used is None or maximum is None:
        yield from refuse(
            CACHE_GAUGES,
            (info.model, info.version),
            f"{BLOCKS} has no used or no max series",
            UPGRADE,
        )
        return
    if not maximum:
        yield from refuse(
            CACHE_GAUGES,
            (info.model, info.version),
            "the engine reports a KV cache of 0 blocks: it publishes no KV-cache statistics",
            "none known: this engine's KV-cache manager does not report its blocks",
        )
        return
    if _shifted(blocks, used, free, maximum):
        yield from refuse(
            CACHE_GAUGES,
            (info.model, info.version),
            "KV-cache values contradict each other (used + free is not max, or a part is more "
            "than the whole): the backend wrote them under the wrong labels",
            "upgrade TensorRT-LLM and its backend to the same release",
        )
        return
    pool = engine.idle_blocks if engine else None
    cache = kv_blocks.blocks(used, free, maximum, pool=pool, method="trtllm_iteration")
    for signal, value in cache.gauges.items():
        yield _gauge(info, signal, value, BLOCKS, "free", method=cache.method, note=cache.note)
    yield _gauge(info, "kv_block_tokens", blocks.get("tokens_per") or None, BLOCKS, "tokens_per")


def _shifted(blocks: Mapping[str, float], used: float, free: float | None, maximum: float) -> bool:
    """Return whether the values are under wrong labels.

    The reporter fills labels by position and skips keys that the engine omits.  ``fraction``
    is not compared with used / max: it may be of the iteration before.
    """
    return kv_blocks.contradict(used, free, maximum) or blocks.get("fraction", 0.0) > 1


def _gauge(
    info: ModelInfo,
    signal: str,
    value: float | None,
    family: str,
    label: str,
    *,
    method: str = "trtllm_iteration",
    note: str = "",
) -> Measurement | Missing:
    if value is None:
        reason = f'{family} has no usable "{label}" series'
        return Missing(signal, info.model, info.version, reason, UPGRADE)
    return Measurement(signal, info.model, info.version, method, {UNLABELLED: value}, note)
