"""Incidents of the engine and its KV cache."""

from __future__ import annotations

import random
from dataclasses import replace

from lab.engine_settings import EngineSettings
from lab.incidents.faults import break_engine
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
    """Shrink the KV cache until it serves fewer requests than arrive; the batch has free slots."""
    rate, share = round(pick.uniform(3.0, 4.0), 1), round(pick.uniform(0.7, 0.8), 2)
    prompt, output = pick.randint(380, 480), pick.randint(60, 80)
    load = replace(
        HEALTHY_LOAD,
        rate=rate,
        prompt_words=(prompt,),
        max_tokens=(output,),
        seed=pick.getrandbits(32),
    )
    settings = EngineSettings(context_token_seconds=0.0001, kv_blocks=300)
    seconds = output * (settings.step_seconds + 5 * settings.sequence_seconds)
    fitting = max(2, int(rate * share * seconds))
    # The policy guaranteed_no_evict reserves blocks up to the last token.
    size = -(-(prompt + output) // settings.tokens_per_block)
    blocks = fitting * size + pick.randint(0, 1)
    return Script(
        {"rate": rate, "kv_blocks": blocks, "prompt_words": prompt, "max_tokens": output},
        load=load,
        engine=settings,
        steps=(ScriptStep(0.0, "the KV cache shrinks", break_engine(kv_blocks=blocks)),),
    )


def _stuck_decode(pick: random.Random) -> Script:
    """Hang the engine's thread: no token comes, and every health endpoint returns 200.

    The engine has sequences then.  If it hung while it was idle, its gauges would stay at 0
    sequences, and only a tap would see the requests that wait.
    """
    rate = round(pick.uniform(3.0, 4.0), 1)
    load = replace(
        HEALTHY_LOAD,
        rate=rate,
        max_tokens=(60, 100),
        request_seconds=20.0,
        seed=pick.getrandbits(32),
    )
    at = round(pick.uniform(0.0, 3.0), 1)
    return Script(
        {"rate": rate, "stalled_at": at},
        load=load,
        steps=(ScriptStep(at, "the engine stalls", break_engine(stalled=True)),),
    )


_TIMEOUTS = {
    "ClientDisconnectsAtTimeout": "clients give up on streams that have stalled",
}

INCIDENTS = (
    Incident(
        key="kv-pressure",
        title="the KV cache is full, and requests are queued",
        script=_kv_pressure,
        alerts=(
            ExpectedAlert("FirstTokenErrorBudgetBurn", 50),
            ExpectedAlert("GoodputErrorBudgetBurn", 50, WITH_TAP),
            ExpectedAlert("KvCachePressure", 70),
        ),
        symptoms=("waiting", "no_evict_waiting"),
        diagnosis=in_columns("kv_pressure"),
        confusions={"QueueGrowing": "requests are queued faster than the KV cache serves them"},
    ),
    Incident(
        key="stuck-decode",
        title="decoding is stuck while health endpoints return 200",
        script=_stuck_decode,
        alerts=(
            ExpectedAlert("DecodeStuck", 30),
            ExpectedAlert("FirstTokenErrorBudgetBurn", 45, WITH_TAP),
            ExpectedAlert("GoodputErrorBudgetBurn", 45, WITH_TAP),
        ),
        symptoms=("stuck",),
        diagnosis=in_columns("stuck_decode"),
        confusions=_TIMEOUTS,
    ),
)
