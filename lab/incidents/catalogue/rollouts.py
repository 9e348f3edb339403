"""Incidents of rollouts: versions, starts, loads, responses, and stages of an ensemble."""

from __future__ import annotations

import random
from dataclasses import replace

from lab.engine_settings import EngineSettings
from lab.incidents.faults import (
    break_engine,
    load_model,
    repair_engine,
    switch_load,
    unload_model,
)
from lab.incidents.incident import (
    ENSEMBLE,
    HEALTHY_LOAD,
    MODEL,
    WITH_TAP,
    ExpectedAlert,
    Incident,
    Script,
    ScriptStep,
    in_columns,
)
from lab.load import LoadSettings, LoadTarget

_VERSIONS = (1, 2)


def shifted(load: LoadSettings, share: float) -> LoadSettings:
    """Return the load with a share of its requests to version 2, and the rest to version 1."""
    old, new = LoadTarget(1 - share, MODEL, "1"), LoadTarget(share, MODEL, "2")
    return replace(load, other_targets=(old, new))


def _bad_rollout(pick: random.Random) -> Script:
    """Shift traffic to a version of which many requests fail.

    BadVersion needs 10 failures in each window; at one failure per second chance does not decide.
    """
    rate, share = round(pick.uniform(3.2, 4.0), 1), round(pick.uniform(0.6, 0.8), 2)
    failing = round(pick.uniform(0.5, 0.7), 2)
    load = replace(HEALTHY_LOAD, rate=rate, seed=pick.getrandbits(32))
    return Script(
        {"rate": rate, "new_version_share": share, "failing_share": failing},
        load=shifted(load, 0.0),
        versions=_VERSIONS,
        steps=(
            ScriptStep(0.0, "version 2 is bad", break_engine(version=2, fail_share=failing)),
            ScriptStep(0.0, "traffic shifts to version 2", switch_load(shifted(load, share))),
        ),
    )


def _slow_rollout(pick: random.Random) -> Script:
    """Shift most of the traffic to a version that decodes several times slower."""
    rate, share = round(pick.uniform(2.0, 2.6), 1), round(pick.uniform(0.7, 0.85), 2)
    factor = round(pick.uniform(3.2, 4.5), 1)
    load = replace(HEALTHY_LOAD, rate=rate, seed=pick.getrandbits(32))
    slow = break_engine(version=2, step_factor=factor, prefill_factor=factor)
    return Script(
        {"rate": rate, "new_version_share": share, "slower_by": factor},
        load=shifted(load, 0.0),
        versions=_VERSIONS,
        steps=(
            ScriptStep(0.0, "version 2 is slow", slow),
            ScriptStep(0.0, "traffic shifts to version 2", switch_load(shifted(load, share))),
        ),
    )


def _canary_mix(pick: random.Random) -> Script:
    """Promote a version whose prefill is slow, which the canary's short prompts did not show.

    The rollout moves the clients with long prompts first.
    """
    rate, share = round(pick.uniform(1.1, 1.3), 2), round(pick.uniform(0.65, 0.75), 2)
    factor, short = round(pick.uniform(6.0, 7.5), 1), (30, 40, 60)
    long = (pick.randint(500, 600), pick.randint(600, 700))
    load = replace(HEALTHY_LOAD, rate=rate, prompt_words=(*short, *long), seed=pick.getrandbits(32))
    canary = (LoadTarget(0.9, MODEL, "1"), LoadTarget(0.1, MODEL, "2", short))
    promoted = (LoadTarget(1 - share, MODEL, "1", short), LoadTarget(share, MODEL, "2", long))
    return Script(
        {"rate": rate, "new_version_share": share, "slower_by": factor, "prompt_words": max(long)},
        load=replace(load, other_targets=canary),
        engine=EngineSettings(kv_blocks=400),
        versions=_VERSIONS,
        steps=(
            ScriptStep(
                0.0, "version 2 has a slow prefill", break_engine(version=2, prefill_factor=factor)
            ),
            ScriptStep(
                0.0,
                "long prompts move to version 2",
                switch_load(replace(load, other_targets=promoted)),
            ),
        ),
    )


def _cold_start(pick: random.Random) -> Script:
    """Restart a drained model and return its traffic while prefill and decode are still cold."""
    rate, load_seconds = round(pick.uniform(0.75, 0.9), 2), round(pick.uniform(1.0, 3.0), 1)
    factor, cold_seconds = round(pick.uniform(12.0, 14.0), 1), round(pick.uniform(35.0, 45.0), 1)
    load = replace(HEALTHY_LOAD, rate=rate, prompt_words=(220, 280), seed=pick.getrandbits(32))
    ready = 2.0 + load_seconds
    cold = break_engine(load_seconds=load_seconds, prefill_factor=factor, step_factor=3.0)
    return Script(
        {"rate": rate, "load_seconds": load_seconds, "cold_prefill_factor": factor},
        load=load,
        # No iteration is as long as --stuck-after.
        engine=EngineSettings(kv_blocks=600, max_num_tokens=900),
        steps=(
            ScriptStep(0.0, "traffic is drained", switch_load(replace(load, rate=0.0))),
            ScriptStep(0.5, "the model is unloaded", unload_model()),
            ScriptStep(1.0, "the engine is cold", cold),
            ScriptStep(1.5, "the model is loaded", load_model()),
            ScriptStep(ready + 1.0, "traffic returns", switch_load(load)),
            ScriptStep(ready + cold_seconds, "the engine is warm", repair_engine()),
        ),
    )


def _load_failure(pick: random.Random) -> Script:
    """Reload the model with an engine that does not load."""
    rate, load_seconds = round(pick.uniform(2.5, 3.5), 1), round(pick.uniform(0.0, 3.0), 1)
    load = replace(HEALTHY_LOAD, rate=rate, seed=pick.getrandbits(32))
    broken = break_engine(
        load_seconds=load_seconds, load_error="the engine plan file was built for another GPU"
    )
    return Script(
        {"rate": rate, "load_seconds": load_seconds},
        load=load,
        steps=(
            ScriptStep(0.0, "the engine file is replaced", broken),
            ScriptStep(0.0, "the model is unloaded", unload_model()),
            ScriptStep(1.0, "the model is loaded", load_model()),
        ),
        fault_seconds=60.0,
    )


def _bad_inference(pick: random.Random) -> Script:
    """Return responses without text; every status is 200 and the model is ready."""
    rate, at = round(pick.uniform(2.5, 3.5), 1), round(pick.uniform(0.0, 3.0), 1)
    load = replace(HEALTHY_LOAD, rate=rate, seed=pick.getrandbits(32))
    return Script(
        {"rate": rate, "empty_at": at},
        load=load,
        steps=(ScriptStep(at, "responses are empty", break_engine(answers="empty")),),
    )


def _slow_stage(pick: random.Random) -> Script:
    """Slow down the tokenizer of an ensemble; the engine is idle while requests wait for it."""
    rate, seconds = round(pick.uniform(1.3, 1.6), 1), round(pick.uniform(0.9, 1.3), 2)
    load = replace(HEALTHY_LOAD, rate=rate, model=ENSEMBLE, seed=pick.getrandbits(32))
    return Script(
        {"rate": rate, "stage_seconds": seconds},
        load=load,
        ensemble=True,
        steps=(
            ScriptStep(
                0.0, "preprocessing is slow", break_engine("preprocessing", stage_seconds=seconds)
            ),
        ),
    )


INCIDENTS = (
    Incident(
        key="bad-rollout",
        title="a new version fails requests",
        script=_bad_rollout,
        alerts=(
            ExpectedAlert("AvailabilityErrorBudgetBurn", 45, WITH_TAP),
            ExpectedAlert("BadVersion", 70, WITH_TAP),
        ),
        symptoms=("versions", "errors"),
        # Triton does not count errors that a decoupled model of the Python backend sends.
        diagnosis=in_columns("bad_rollout", columns=WITH_TAP) | {"scrape": ()},
    ),
    Incident(
        key="slow-rollout",
        title="a new version is slow, and no request fails",
        script=_slow_rollout,
        alerts=(
            ExpectedAlert("GoodputErrorBudgetBurn", 50, WITH_TAP),
            ExpectedAlert("SlowVersion", 60, WITH_TAP),
        ),
        symptoms=("versions",),
        diagnosis=in_columns("bad_rollout", columns=WITH_TAP) | {"scrape": ()},
    ),
    Incident(
        key="canary-mix",
        title="a canary passed with short prompts, and production's long prompts are slow",
        script=_canary_mix,
        alerts=(
            ExpectedAlert("FirstTokenErrorBudgetBurn", 50),
            ExpectedAlert("GoodputErrorBudgetBurn", 50, WITH_TAP),
        ),
        symptoms=("mix_by_version",),
        diagnosis=in_columns("canary_mix"),
        confusions={
            "SlowVersion": "the version is slower; that its prompts differ is for the diagnosis"
        },
    ),
    Incident(
        key="cold-start",
        title="the first requests after a restart are slow",
        script=_cold_start,
        alerts=(ExpectedAlert("FirstTokenErrorBudgetBurn", 55),),
        symptoms=("recent_start",),
        diagnosis=in_columns("cold_start"),
        confusions={"QueueGrowing": "requests wait while prefill is cold"},
    ),
    Incident(
        key="load-failure",
        title="a model does not load, and its server stays up",
        script=_load_failure,
        alerts=(
            ExpectedAlert("AvailabilityErrorBudgetBurn", 40, WITH_TAP),
            ExpectedAlert("ModelNotReady", 40),
        ),
        symptoms=("not_ready",),
        diagnosis=in_columns("load_failure"),
    ),
    Incident(
        key="bad-inference",
        title="a ready model returns empty responses",
        script=_bad_inference,
        alerts=(ExpectedAlert("FirstTokenErrorBudgetBurn", 45, WITH_TAP),),
        symptoms=("short_answers",),
        diagnosis=in_columns("bad_inference"),
    ),
    Incident(
        key="slow-stage",
        title="one stage of an ensemble is slow",
        script=_slow_stage,
        alerts=(
            ExpectedAlert("FirstTokenErrorBudgetBurn", 50, WITH_TAP),
            ExpectedAlert("GoodputErrorBudgetBurn", 50, WITH_TAP),
        ),
        symptoms=("stage_slow",),
        diagnosis=in_columns("slow_stage"),
    ),
)
