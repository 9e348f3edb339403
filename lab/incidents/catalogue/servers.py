"""Incidents of servers: capacity, speed, death."""

from __future__ import annotations

import random
from dataclasses import replace

from lab.engine_settings import EngineSettings
from lab.incidents.faults import break_engine, stop_server, switch_load
from lab.incidents.incident import (
    COMPLETIONS_LOAD,
    HEALTHY_LOAD,
    WITH_TAP,
    ExpectedAlert,
    Incident,
    Script,
    ScriptStep,
    in_columns,
)
from lab.trtllm_serve.settings import ServeSettings

_SMALL_BATCH = EngineSettings(
    max_batch_size=8, max_num_active_requests=8, step_seconds=0.03, kv_blocks=400
)
"""An engine of about 200 tokens per second, whose KV cache holds every batch.

Its maximum of active requests is that of its batch, as TensorRT-LLM's without pipeline stages.
"""


def _overload(pick: random.Random) -> Script:
    """Raise the rate to about twice the capacity of the engine."""
    rate, factor = round(pick.uniform(1.0, 1.2), 2), round(pick.uniform(3.2, 4.0), 1)
    load = replace(
        HEALTHY_LOAD,
        rate=rate,
        concurrency=400,
        max_tokens=(80, 100, 120),
        seed=pick.getrandbits(32),
    )
    surge = replace(load, rate=rate * factor)
    return Script(
        {"rate": rate, "surge": factor},
        load=load,
        engine=_SMALL_BATCH,
        steps=(ScriptStep(0.0, "traffic exceeds the capacity", switch_load(surge)),),
    )


def _overload_trtllm(pick: random.Random) -> Script:
    """Raise the rate to about twice the capacity of a trtllm-serve."""
    script = _overload(pick)
    surge = replace(script.load, protocol="completions", rate=script.load.rate * 4)
    return replace(
        script,
        parameters={**script.parameters, "surge": 4.0},
        server="trtllm-serve",
        load=replace(script.load, protocol="completions"),
        steps=(ScriptStep(0.0, "traffic exceeds the capacity", switch_load(surge)),),
    )


def _overload_queued(pick: random.Random) -> Script:
    """Overload a trtllm-serve with the C++ executor, which reports its queue."""
    return replace(_overload_trtllm(pick), serve=ServeSettings(schema="tensorrt"))


def _long_prompts(pick: random.Random) -> Script:
    """Make prompts about ten times as long, which fill the time with prefill."""
    rate, longest = round(pick.uniform(2.2, 2.4), 1), pick.randint(1450, 1700)
    load = replace(HEALTHY_LOAD, rate=rate, prompt_words=(100, 150), seed=pick.getrandbits(32))
    long = replace(load, prompt_words=(longest - 200, longest))
    return Script(
        {"rate": rate, "longest_prompt": longest},
        load=load,
        engine=EngineSettings(kv_blocks=1600),
        steps=(ScriptStep(0.0, "prompts become long", switch_load(long)),),
    )


def _slow_engine(pick: random.Random) -> Script:
    """Throttle the GPU: every iteration takes several times as long."""
    rate, factor = round(pick.uniform(2.0, 2.8), 1), round(pick.uniform(3.2, 4.2), 1)
    load = replace(HEALTHY_LOAD, rate=rate, seed=pick.getrandbits(32))
    slow = break_engine(step_factor=factor, prefill_factor=factor)
    return Script(
        {"rate": rate, "slower_by": factor},
        load=load,
        engine=EngineSettings(kv_blocks=400),
        steps=(ScriptStep(0.0, "the engine slows down", slow),),
    )


def _batch_too_large(pick: random.Random) -> Script:
    """Fill a batch that is larger than the objective on the pace of tokens allows."""
    rate, busy = round(pick.uniform(0.7, 0.85), 2), round(pick.uniform(3.0, 3.3), 2)
    load = replace(HEALTHY_LOAD, rate=rate, max_tokens=(50, 60, 70), seed=pick.getrandbits(32))
    engine = EngineSettings(
        max_batch_size=64,
        max_num_active_requests=128,
        step_seconds=0.03,
        sequence_seconds=0.004,
        kv_blocks=800,
    )
    return Script(
        {"rate": rate, "busy_rate": busy},
        load=load,
        engine=engine,
        steps=(ScriptStep(0.0, "the batch grows", switch_load(replace(load, rate=busy))),),
    )


def _engine_death(pick: random.Random) -> Script:
    """Kill the process of the engine; Triton stays up, and every request fails."""
    rate, at = round(pick.uniform(2.5, 3.5), 1), round(pick.uniform(0.0, 3.0), 1)
    load = replace(HEALTHY_LOAD, rate=rate, seed=pick.getrandbits(32))
    return Script(
        {"rate": rate, "died_at": at},
        load=load,
        steps=(ScriptStep(at, "the engine's process dies", break_engine(crash=True)),),
        fault_seconds=60.0,
    )


def _engine_death_trtllm(pick: random.Random) -> Script:
    """Kill the whole trtllm-serve, as the kernel does when memory runs out."""
    rate, at = round(pick.uniform(2.5, 3.5), 1), round(pick.uniform(0.0, 3.0), 1)
    load = replace(COMPLETIONS_LOAD, rate=rate, seed=pick.getrandbits(32))
    return Script(
        {"rate": rate, "died_at": at},
        load=load,
        server="trtllm-serve",
        steps=(ScriptStep(at, "the server is killed", break_engine(crash=True)),),
        fault_seconds=60.0,
    )


def _stuck_decode_trtllm(pick: random.Random) -> Script:
    """Hang the engine of a trtllm-serve: no token comes, and /health returns 200."""
    rate, at = round(pick.uniform(2.5, 3.5), 1), round(pick.uniform(0.0, 3.0), 1)
    load = replace(COMPLETIONS_LOAD, rate=rate, request_seconds=20.0, seed=pick.getrandbits(32))
    return Script(
        {"rate": rate, "stalled_at": at},
        load=load,
        server="trtllm-serve",
        steps=(ScriptStep(at, "the engine stalls", break_engine(stalled=True)),),
    )


def _kv_pausing(pick: random.Random) -> Script:
    """Shrink the KV cache of an engine that starts sequences optimistically and pauses them."""
    rate, prompt = round(pick.uniform(1.5, 1.8), 1), pick.randint(90, 130)
    output = pick.randint(150, 180)
    settings = EngineSettings(policy="max_utilization", kv_blocks=400)
    # Blocks of the sequences that run at once in the healthy phase, of which few remain.
    running = rate * output * (settings.step_seconds + 10 * settings.sequence_seconds)
    size = -(-(prompt + output) // settings.tokens_per_block)
    blocks = max(2 * size, int(running * size * pick.uniform(0.4, 0.5)))
    load = replace(
        COMPLETIONS_LOAD,
        rate=rate,
        prompt_words=(prompt,),
        max_tokens=(output,),
        seed=pick.getrandbits(32),
    )
    return Script(
        {"rate": rate, "kv_blocks": blocks, "prompt_words": prompt, "max_tokens": output},
        load=load,
        engine=settings,
        server="trtllm-serve",
        steps=(ScriptStep(0.0, "the KV cache shrinks", break_engine(kv_blocks=blocks)),),
    )


def _server_death(pick: random.Random) -> Script:
    """Stop the whole Triton, as an eviction of its pod does."""
    rate, at = round(pick.uniform(2.5, 3.5), 1), round(pick.uniform(0.0, 3.0), 1)
    load = replace(HEALTHY_LOAD, rate=rate, seed=pick.getrandbits(32))
    return Script(
        {"rate": rate, "died_at": at},
        load=load,
        steps=(ScriptStep(at, "the server stops", stop_server()),),
        fault_seconds=60.0,
    )


_LATENCY = (
    ExpectedAlert("FirstTokenErrorBudgetBurn", 45),
    ExpectedAlert("GoodputErrorBudgetBurn", 45, WITH_TAP),
)
_DEAD_SERVER = (
    ExpectedAlert("AvailabilityErrorBudgetBurn", 45, ("proxy",)),
    ExpectedAlert("ExporterSourceDown", 40),
)

INCIDENTS = (
    Incident(
        key="overload",
        title="requests arrive faster than the engine serves them",
        script=_overload,
        alerts=(*_LATENCY, ExpectedAlert("SequenceHeadroomErrorBudgetBurn", 65)),
        symptoms=("batch",),
        diagnosis=in_columns("overload"),
        confusions={"QueueGrowing": "it is the incident, where the engine exports its queue"},
    ),
    Incident(
        key="overload-queued",
        title="requests queue in an executor that reports its queue",
        script=_overload_queued,
        alerts=(*_LATENCY, ExpectedAlert("QueueGrowing", 70)),
        symptoms=("waiting", "batch"),
        diagnosis=in_columns("overload"),
    ),
    Incident(
        key="overload-trtllm",
        title="requests arrive faster than a trtllm-serve serves them",
        script=_overload_trtllm,
        # PyTorch's executor reports no queue, so QueueGrowing cannot fire.
        alerts=(*_LATENCY, ExpectedAlert("SequenceHeadroomErrorBudgetBurn", 65)),
        symptoms=("batch", "queue_share"),
        diagnosis=in_columns("overload"),
    ),
    Incident(
        key="long-prompts",
        title="prompts are ten times as long as before",
        script=_long_prompts,
        alerts=(
            ExpectedAlert("FirstTokenErrorBudgetBurn", 60),
            ExpectedAlert("GoodputErrorBudgetBurn", 60, WITH_TAP),
        ),
        symptoms=("prompts",),
        diagnosis=in_columns("long_work"),
        confusions={"QueueGrowing": "long prefills exceed the capacity of the engine"},
    ),
    Incident(
        key="slow-engine",
        title="every iteration takes several times as long",
        script=_slow_engine,
        alerts=(ExpectedAlert("GoodputErrorBudgetBurn", 50, WITH_TAP),),
        symptoms=("pace_slow",),
        diagnosis=in_columns("slow_engine", columns=WITH_TAP) | {"scrape": ()},
    ),
    Incident(
        key="batch-too-large",
        title="throughput is good, and streams are slow",
        script=_batch_too_large,
        alerts=(ExpectedAlert("GoodputErrorBudgetBurn", 60, WITH_TAP),),
        symptoms=("pace_slow", "throughput"),
        diagnosis=in_columns("batch_too_large", columns=WITH_TAP) | {"scrape": ()},
    ),
    Incident(
        key="engine-death",
        title="the engine's process dies, and Triton stays up",
        script=_engine_death,
        alerts=(ExpectedAlert("AvailabilityErrorBudgetBurn", 45),),
        symptoms=("errors",),
        diagnosis=in_columns("engine_death"),
        confusions={"DecodeStuck": "the gauges of the dead engine stay, with active sequences"},
    ),
    Incident(
        key="server-death",
        title="the whole server stops",
        script=_server_death,
        alerts=_DEAD_SERVER,
        symptoms=("sources",),
        diagnosis=in_columns("engine_death"),
    ),
    Incident(
        key="engine-death-trtllm",
        title="a trtllm-serve is killed",
        script=_engine_death_trtllm,
        alerts=_DEAD_SERVER,
        symptoms=("sources",),
        diagnosis=in_columns("engine_death"),
    ),
    Incident(
        key="stuck-decode-trtllm",
        title="decoding of a trtllm-serve is stuck while /health returns 200",
        script=_stuck_decode_trtllm,
        # Its iteration records come when a request completes: without a tap only the last of them
        # may show it.
        alerts=(ExpectedAlert("DecodeStuck", 30, WITH_TAP),),
        symptoms=("stuck",),
        diagnosis=in_columns("stuck_decode", columns=WITH_TAP) | {"scrape": ()},
    ),
    Incident(
        key="kv-pausing",
        title="sequences are paused to make room in the KV cache",
        script=_kv_pausing,
        alerts=(
            ExpectedAlert("GoodputErrorBudgetBurn", 60, WITH_TAP),
            ExpectedAlert("SequencesPaused", 70),
        ),
        symptoms=("paused",),
        diagnosis=in_columns("kv_pressure"),
        confusions={"QueueGrowing": "requests wait for the KV cache"},
    ),
)
