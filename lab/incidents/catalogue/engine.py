"""Incidents of the engine and its KV cache."""

from __future__ import annotations

import random
from dataclasses import replace

from lab.engine_settings import EngineSettings
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


def _kv_pressure(pick: random.Random) -> Script:
    """Lengthen requests until the KV cache holds fewer of them than the batch."""
    rate, fitting = round(pick.uniform(3.0, 4.0), 1), pick.randint(4, 5)
    prompt, output = pick.randint(380, 480), pick.randint(60, 80)
    settings = EngineSettings(context_token_seconds=0.0001)
    # The policy guaranteed_no_evict reserves blocks up to the last token.
    size = -(-(prompt + output) // settings.tokens_per_block)
    blocks = fitting * size + pick.randint(0, 2)
    load = replace(HEALTHY_LOAD, rate=rate, seed=pick.getrandbits(32))
    longer = replace(load, prompt_words=(prompt,), max_tokens=(output,))
    return Script(
        {"rate": rate, "kv_blocks": blocks, "prompt_words": prompt, "max_tokens": output},
        load=load,
        engine=replace(settings, kv_blocks=blocks),
        steps=(ScriptStep(0.0, "prompts and responses become longer", switch_load(longer)),),
    )


def _stuck_decode(pick: random.Random) -> Script:
    """Hang the engine's thread: no token comes, and every health endpoint returns 200."""
    rate = round(pick.uniform(3.0, 4.0), 1)
    load = replace(HEALTHY_LOAD, rate=rate, request_seconds=20.0, seed=pick.getrandbits(32))
    at = round(pick.uniform(0.0, 3.0), 1)
    return Script(
        {"rate": rate, "stalled_at": at},
        load=load,
        steps=(ScriptStep(at, "the engine stalls", break_engine(stalled=True)),),
    )


INCIDENTS = (
    Incident(
        key="kv-pressure",
        title="the KV cache is full, and requests are queued",
        script=_kv_pressure,
        alerts=(
            ExpectedAlert("FirstTokenErrorBudgetBurn", 45),
            ExpectedAlert("GoodputErrorBudgetBurn", 45, WITH_TAP),
            ExpectedAlert("KvCachePressure", 70),
        ),
        diagnosis=in_columns("kv_pressure"),
    ),
    Incident(
        key="stuck-decode",
        title="decoding is stuck while health endpoints return 200",
        script=_stuck_decode,
        alerts=(ExpectedAlert("DecodeStuck", 30),),
        diagnosis=in_columns("stuck_decode"),
    ),
)
