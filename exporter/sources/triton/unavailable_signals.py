"""Reasons and fixes for the signals that a Triton server does not publish, by kind of model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from exporter.samples import Missing, ModelInfo
from exporter.sources.http_source import MAX_MODELS
from exporter.sources.model_kind import Kind, kind_of
from exporter.sources.triton.trtllm_backend import GAUGES
from exporter.sources.unavailable import (
    LORA,
    NEEDS_TAP,
    OBSERVE,
    REQUEST_TIMING,
    TAP_SIGNALS,
    Unavailable,
    known_missing,
)
from slos.signals import MAIN_SIGNALS

TRACE = (
    "let Triton send its traces: give the sidecar --otlp-traces 127.0.0.1:4318, and start Triton "
    "with --trace-config mode=opentelemetry --trace-config level=TIMESTAMPS --trace-config rate=1 "
    "--trace-config opentelemetry,url=http://127.0.0.1:4318/v1/traces"
)
OBSERVE_OR_TRACE = f"{OBSERVE}; or {TRACE}"
STEPS = "see the steps of the ensemble"


CUSTOM_METRICS = (
    'add parameters { key: "REPORT_CUSTOM_METRICS" value: { string_value: "true" } } to the '
    "model's config.pbtxt (backend 24.09 or newer) and leave disable_log_stats off"
)


FIRST_RESPONSE = (
    "start Triton (2.52, 24.11 or newer) with --metrics-config histogram_latencies=true"
)
PUBLISH = (
    "serve the model with the C++ tensorrtllm backend, or publish the family from model.py with "
    "pb_utils.MetricFamily"
)

_STREAMS = {
    "itl": Unavailable("Triton has no metric of single tokens", OBSERVE_OR_TRACE, never=True),
    "tpot": Unavailable("Triton has no metric of single tokens", OBSERVE, never=True),
    "prefill": Unavailable(
        "Triton does not observe when the engine starts a request", REQUEST_TIMING, never=True
    ),
    "cached_input_tokens": Unavailable(
        "Triton does not report how much of a prompt was in the prefix cache", OBSERVE, never=True
    ),
    "decode": Unavailable(
        "no metric of Triton has the time of the last token", OBSERVE_OR_TRACE, never=True
    ),
    "max_gap": Unavailable(
        "server metrics do not show single streams", OBSERVE_OR_TRACE, never=True
    ),
    **dict.fromkeys(TAP_SIGNALS, NEEDS_TAP),
}
_FIRST_RESPONSE = Unavailable(
    "Triton publishes no first-response histogram for this model", FIRST_RESPONSE
)
_NO_COUNTERS = Unavailable(
    "Triton publishes no request counters for this model",
    "check whether the model is loaded and Triton runs with --allow-metrics=true",
)
_NO_FAILURE_REASONS = Unavailable(
    "Triton publishes no reasons of failures here",
    "use Triton 24.07 or newer, without counter_latencies=false",
)
_COMMON = {
    **_STREAMS,
    "ttft": _FIRST_RESPONSE,
    "e2e": _NO_COUNTERS,
    "queue": _NO_COUNTERS,
    "requests": _NO_COUNTERS,
    "requests_without_first_token": _NO_FAILURE_REASONS,
    "lora_adapters": LORA,
}
_EARLY = "Triton counts a request of this model when execute() returns, before its first token"
# Compiled backends may do so; a backend that blocks in execute() does not.
_PERHAPS_EARLY = _EARLY.replace("counts", "may count")
_NO_LENGTHS = Unavailable(
    "the model publishes no nv_llm_input_token_len and nv_llm_output_token_len",
    "use the tensorrtllm backend of release 25.02 or newer",
)
COUNTED = ("ttft", "e2e", "queue", "requests")
"""Signals from Triton's counters, whose meaning depends on the kind of model."""

TOKENS = ("input_tokens", "output_tokens")

NOT_BY_TRITON = ("kv_missed_blocks", "preemptions", "draft_tokens", "accepted_draft_tokens")
ENGINE_ONLY = (*GAUGES, "kv_reused_blocks", *NOT_BY_TRITON)
"""Signals that only the engine has."""

_IN_RECORDS = Unavailable(
    "Triton's TensorRT-LLM backends do not publish it",
    "none with Triton; trtllm-serve's iteration records have it",
)
_NO_ENGINE = "the model publishes no nv_trt_llm_* metrics"

# Every kind of model has an entry for every signal.
UNAVAILABLE: Mapping[Kind, Mapping[str, Unavailable]] = {
    "tensorrtllm": {
        **_COMMON,
        "input_tokens": _NO_LENGTHS,
        "output_tokens": _NO_LENGTHS,
        **dict.fromkeys(
            (*GAUGES, "kv_reused_blocks"),
            Unavailable(_NO_ENGINE, "use the tensorrtllm backend of release 24.10 or newer"),
        ),
        **dict.fromkeys(NOT_BY_TRITON, _IN_RECORDS),
    },
    "vllm": {
        **_COMMON,
        "ttft": Unavailable(
            "neither vLLM's metrics nor Triton's first-response histogram are on",
            f"{CUSTOM_METRICS}; or {FIRST_RESPONSE}",
        ),
        "itl": Unavailable("the vLLM backend does not publish its metrics", CUSTOM_METRICS),
        "e2e": Unavailable(f"{_EARLY}, and vLLM's metrics are off", CUSTOM_METRICS),
        "requests": Unavailable(
            f"{_EARLY}; failures alone would read as 100 % bad, so they are omitted too",
            f"{CUSTOM_METRICS}; or {OBSERVE}",
        ),
        "input_tokens": Unavailable(
            "the vLLM backend does not publish its metrics", CUSTOM_METRICS
        ),
        "output_tokens": Unavailable(
            "the vLLM backend does not publish its metrics", CUSTOM_METRICS
        ),
        "lora_adapters": Unavailable(
            "Triton's vLLM backend does not publish vllm:lora_requests_info",
            "none with Triton's vLLM backend; vLLM's own server has it",
        ),
        **dict.fromkeys(
            ENGINE_ONLY,
            Unavailable(
                "Triton's vLLM backend publishes no gauges of sequences, KV cache or memory",
                "none with Triton's vLLM backend",
            ),
        ),
    },
    "decoupled": {
        **_COMMON,
        "e2e": Unavailable(
            f"{_PERHAPS_EARLY}, and its durations end there too",
            "call it through an ensemble, which Triton measures to the end of the stream; or "
            f"{TRACE}",
        ),
        "requests": Unavailable(
            f"{_PERHAPS_EARLY}; failures alone would read as 100 % bad, so they are omitted too",
            "call it through an ensemble, which Triton counts at the end of the stream, or publish "
            f"nv_llm_output_token_len from model.py; or {OBSERVE}",
        ),
        **dict.fromkeys(
            TOKENS,
            Unavailable(
                "the model publishes no nv_llm_input_token_len and nv_llm_output_token_len", PUBLISH
            ),
        ),
        **dict.fromkeys(
            ENGINE_ONLY,
            Unavailable(f"{_NO_ENGINE} (TensorRT-LLM's llmapi model has none)", PUBLISH),
        ),
        **dict.fromkeys(NOT_BY_TRITON, _IN_RECORDS),
    },
    "unary": {
        **_COMMON,
        **dict.fromkeys(
            (*TOKENS, *ENGINE_ONLY),
            Unavailable("the model publishes no engine metrics", PUBLISH),
        ),
    },
    "ensemble": {
        **_COMMON,
        "queue": Unavailable(
            "an ensemble has no queue of its own: its requests wait in its steps",
            STEPS,
        ),
        "requests_without_first_token": Unavailable(
            "Triton counts every failure of an ensemble as OTHER, whenever it happens",
            STEPS,
        ),
        **dict.fromkeys(
            (*TOKENS, *ENGINE_ONLY),
            Unavailable("an ensemble has no engine of its own", STEPS),
        ),
    },
    "unknown": {
        **_COMMON,
        **dict.fromkeys(
            COUNTED,
            Unavailable(
                "the meaning of Triton's counters depends on the backend, and this model's "
                "backend is not known",
                "give the sidecar --triton URL, the address of Triton's HTTP API",
            ),
        ),
        **dict.fromkeys(
            (*TOKENS, *ENGINE_ONLY),
            Unavailable("the model publishes no engine metrics", PUBLISH),
        ),
    },
}


def missing(
    signal: str, info: ModelInfo, steps: Sequence[str] = (), unread: Unavailable | None = None
) -> Missing:
    """Return the reason and fix for an unavailable signal of a model.

    ``steps`` are the reported models behind an ensemble.  ``unread`` is the reason if a part of the
    server that may have the signal could not be read this time.
    """
    entry = UNAVAILABLE[kind_of(info)][signal]
    if unread and not entry.never:
        return unread.missing(signal, (info.model, info.version))
    fix = f"{STEPS}: {', '.join(steps)}" if entry.fix == STEPS and steps else entry.fix
    return known_missing(signal, info.model, info.version, entry.reason, fix)


@lru_cache(maxsize=2 * MAX_MODELS)
def all_missing(
    info: ModelInfo, steps: tuple[str, ...], measured: frozenset[str]
) -> tuple[Missing, ...]:
    """Return the entries of all signals but the measured ones, if every part could be read."""
    return tuple(missing(signal, info, steps) for signal in MAIN_SIGNALS if signal not in measured)
