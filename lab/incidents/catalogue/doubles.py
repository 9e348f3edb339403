"""Two incidents at once."""

from __future__ import annotations

import random
from dataclasses import replace

from lab.engine_settings import EngineSettings
from lab.incidents.catalogue.rollouts import shifted
from lab.incidents.faults import break_engine, switch_load
from lab.incidents.incident import (
    HEALTHY_LOAD,
    WITH_TAP,
    ExpectedAlert,
    Incident,
    Script,
    ScriptStep,
    in_columns,
)


def _two_at_once(pick: random.Random) -> Script:
    """Shrink the KV cache of the old version while the new one fails requests."""
    rate, share = round(pick.uniform(3.9, 4.4), 1), round(pick.uniform(0.4, 0.45), 2)
    prompt, output = pick.randint(380, 480), pick.randint(60, 80)
    failing = round(pick.uniform(0.65, 0.8), 2)
    load = replace(
        HEALTHY_LOAD,
        rate=rate,
        prompt_words=(prompt,),
        max_tokens=(output,),
        seed=pick.getrandbits(32),
    )
    engine = EngineSettings(context_token_seconds=0.0001, kv_blocks=300)
    blocks = 2 * -(-(prompt + output) // engine.tokens_per_block) + pick.randint(0, 1)
    return Script(
        {"rate": rate, "kv_blocks": blocks, "new_version_share": share, "failing_share": failing},
        load=shifted(load, 0.0),
        engine=engine,
        versions=(1, 2),
        steps=(
            ScriptStep(0.0, "version 1's KV cache shrinks", break_engine(kv_blocks=blocks)),
            ScriptStep(0.0, "version 2 is bad", break_engine(version=2, fail_share=failing)),
            ScriptStep(0.0, "traffic shifts to version 2", switch_load(shifted(load, share))),
        ),
        fault_seconds=80.0,
    )


INCIDENTS = (
    Incident(
        key="two-at-once",
        title="the KV cache is full, and a new version fails requests",
        script=_two_at_once,
        alerts=(
            ExpectedAlert("AvailabilityErrorBudgetBurn", 45, WITH_TAP),
            ExpectedAlert("BadVersion", 75, WITH_TAP),
            ExpectedAlert("KvCachePressure", 75),
        ),
        symptoms=("no_evict_waiting", "versions"),
        diagnosis=in_columns("kv_pressure", "bad_rollout"),
        confusions={"QueueGrowing": "requests wait for the KV cache"},
    ),
)
