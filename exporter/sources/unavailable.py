"""Why a signal that nobody gave is missing, and what would bring it, by kind of model.

Interpreters say themselves why they refuse what they see; this is about what is not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from exporter.samples import Missing, ModelInfo
from exporter.sources.model_kind import Kind, kind_of
from exporter.sources.triton.trtllm_backend import GAUGES

OBSERVE = (
    "observe the streams: give the sidecar --tap proxy=:9000=127.0.0.1:8000 and send clients to "
    "port 9000, or --tap capture=eth0:8000 where it may have CAP_NET_RAW"
)
TRACE = (
    "let Triton send its traces: give the sidecar --otlp-traces 127.0.0.1:4318, and start Triton "
    "with --trace-config mode=opentelemetry --trace-config level=TIMESTAMPS --trace-config rate=1 "
    "--trace-config opentelemetry,url=http://127.0.0.1:4318/v1/traces"
)
OBSERVE_OR_TRACE = f"{OBSERVE}; or {TRACE}"
ASK_THE_ENGINE = (
    "with TensorRT-LLM's backends let a tap ask the engine for it: --tap "
    "proxy=:9000=127.0.0.1:8000 --tap-inject perf-metrics, and send clients to port 9000"
)
_WITH_A_TAP = {
    OBSERVE: "send the requests of this model through the sidecar's tap",
    ASK_THE_ENGINE: "with TensorRT-LLM's backends let the tap ask the engine for it: give the "
    "sidecar --tap-inject perf-metrics",
}
STEPS = "look at the steps of the ensemble"


@dataclass(frozen=True, slots=True)
class Gap:
    """Why there is nothing; ``never`` where no reading of this kind of model can have it."""

    reason: str
    fix: str
    never: bool = False


CUSTOM_METRICS = (
    'add parameters { key: "REPORT_CUSTOM_METRICS" value: { string_value: "true" } } to the '
    "model's config.pbtxt (backend 24.09 or newer) and leave disable_log_stats off"
)


def with_a_tap(fix: str) -> str:
    """Return a fix as it reads where the sidecar has a tap."""
    for without, with_ in _WITH_A_TAP.items():
        fix = fix.replace(without, with_)
    return fix


FIRST_RESPONSE = (
    "start Triton (2.52, 24.11 or newer) with --metrics-config histogram_latencies=true"
)
PUBLISH = (
    "serve the model with the C++ tensorrtllm backend, or publish the family from model.py with "
    "pb_utils.MetricFamily"
)

OBSERVED = (
    "itl_normalized",
    "streams",
    "live_streams",
    "disconnects",
    "disconnect_age",
    "disconnect_release",
    "wasted_tokens",
    "partial_tokens",
    "suspected_retries",
    "client_backpressure",
    "goodput",
)
"""Signals that nobody has who does not see the streams."""
UNSEEN = Gap("no server metric knows single streams and their clients", OBSERVE, never=True)

LORA = Gap(
    "only vLLM publishes which LoRA adapters have requests", "none with this server", never=True
)
_STREAMS = {
    "itl": Gap("Triton has no metric of single tokens", OBSERVE_OR_TRACE, never=True),
    "tpot": Gap("Triton has no metric of single tokens", OBSERVE, never=True),
    "prefill": Gap(
        "Triton does not know when the engine starts a request", ASK_THE_ENGINE, never=True
    ),
    "cached_input_tokens": Gap(
        "Triton does not tell how much of a prompt the prefix cache had", OBSERVE, never=True
    ),
    "decode": Gap(
        "no metric of Triton says when the last token was made", OBSERVE_OR_TRACE, never=True
    ),
    "max_gap": Gap("no server metric knows single streams", OBSERVE_OR_TRACE, never=True),
    **dict.fromkeys(OBSERVED, UNSEEN),
}
_FIRST_RESPONSE = Gap("Triton publishes no first-response histogram for this model", FIRST_RESPONSE)
_NO_COUNTERS = Gap(
    "Triton publishes no request counters for this model",
    "see whether the model is loaded and Triton runs with --allow-metrics=true",
)
_DEATHS = Gap(
    "Triton tells no reasons of failures here",
    "use Triton 24.07 or newer, without counter_latencies=false",
)
_COMMON = {
    **_STREAMS,
    "ttft": _FIRST_RESPONSE,
    "e2e": _NO_COUNTERS,
    "queue": _NO_COUNTERS,
    "requests": _NO_COUNTERS,
    "requests_without_first_token": _DEATHS,
    "lora_adapters": LORA,
}
_EARLY = "Triton counts a request of this model when execute() returns, before its first token"
# A compiled backend is not known to, and one that blocks in execute() does not.
_PERHAPS_EARLY = _EARLY.replace("counts", "may count")
_NO_LENGTHS = Gap(
    "the model publishes no nv_llm_input_token_len and nv_llm_output_token_len",
    "use the tensorrtllm backend of release 25.02 or newer",
)
COUNTED = ("ttft", "e2e", "queue", "requests")
"""Signals from what Triton counts, which the kind of model gives its meaning."""

TOKENS = ("input_tokens", "output_tokens")

NOT_BY_TRITON = ("kv_missed_blocks", "preemptions", "draft_tokens", "accepted_draft_tokens")
ENGINE_ONLY = (*GAUGES, "kv_reused_blocks", *NOT_BY_TRITON)
"""Signals that only the engine knows."""

_IN_RECORDS = Gap(
    "Triton's TensorRT-LLM backends do not publish it",
    "none with Triton; trtllm-serve's iteration records have it",
)
_NO_ENGINE = "the model publishes no nv_trt_llm_* metrics"

# A signal is looked up under the kind of model, which has an entry for every signal.
GAPS: Mapping[Kind, Mapping[str, Gap]] = {
    "tensorrtllm": {
        **_COMMON,
        "input_tokens": _NO_LENGTHS,
        "output_tokens": _NO_LENGTHS,
        **dict.fromkeys(
            (*GAUGES, "kv_reused_blocks"),
            Gap(_NO_ENGINE, "use the tensorrtllm backend of release 24.10 or newer"),
        ),
        **dict.fromkeys(NOT_BY_TRITON, _IN_RECORDS),
    },
    "vllm": {
        **_COMMON,
        "ttft": Gap(
            "neither vLLM's metrics nor Triton's first-response histogram are on",
            f"{CUSTOM_METRICS}; or {FIRST_RESPONSE}",
        ),
        "itl": Gap("the vLLM backend does not publish its metrics", CUSTOM_METRICS),
        "e2e": Gap(f"{_EARLY}, and vLLM's metrics are off", CUSTOM_METRICS),
        "requests": Gap(
            f"{_EARLY}; failures alone would read as 100 % bad, so they are left out too",
            f"{CUSTOM_METRICS}; or {OBSERVE}",
        ),
        "input_tokens": Gap("the vLLM backend does not publish its metrics", CUSTOM_METRICS),
        "output_tokens": Gap("the vLLM backend does not publish its metrics", CUSTOM_METRICS),
        "lora_adapters": Gap(
            "Triton's vLLM backend does not publish vllm:lora_requests_info",
            "none with Triton's vLLM backend; vLLM's own server has it",
        ),
        **dict.fromkeys(
            ENGINE_ONLY,
            Gap(
                "Triton's vLLM backend publishes no gauges of sequences, KV cache or memory",
                "none with Triton's vLLM backend",
            ),
        ),
    },
    "decoupled": {
        **_COMMON,
        "e2e": Gap(
            f"{_PERHAPS_EARLY}, and its durations end there too",
            "call it through an ensemble, which Triton measures to the end of the stream; or "
            f"{TRACE}",
        ),
        "requests": Gap(
            f"{_PERHAPS_EARLY}; failures alone would read as 100 % bad, so they are left out too",
            "call it through an ensemble, which Triton counts at the end of the stream, or publish "
            f"nv_llm_output_token_len from model.py; or {OBSERVE}",
        ),
        **dict.fromkeys(
            TOKENS,
            Gap(
                "the model publishes no nv_llm_input_token_len and nv_llm_output_token_len", PUBLISH
            ),
        ),
        **dict.fromkeys(
            ENGINE_ONLY,
            Gap(f"{_NO_ENGINE} (TensorRT-LLM's llmapi model has none)", PUBLISH),
        ),
        **dict.fromkeys(NOT_BY_TRITON, _IN_RECORDS),
    },
    "unary": {
        **_COMMON,
        **dict.fromkeys(
            (*TOKENS, *ENGINE_ONLY),
            Gap("the model publishes no engine metrics", PUBLISH),
        ),
    },
    "ensemble": {
        **_COMMON,
        "queue": Gap(
            "an ensemble has no queue of its own: its requests wait in its steps",
            STEPS,
        ),
        "requests_without_first_token": Gap(
            "Triton counts every failure of an ensemble as OTHER, whenever it happens",
            STEPS,
        ),
        **dict.fromkeys(
            (*TOKENS, *ENGINE_ONLY),
            Gap("an ensemble has no engine of its own", STEPS),
        ),
    },
    "unknown": {
        **_COMMON,
        **dict.fromkeys(
            COUNTED,
            Gap(
                "what Triton counts means something else for every backend, and this model's "
                "backend is not known",
                "give the sidecar --triton URL, the address of Triton's HTTP API",
            ),
        ),
        **dict.fromkeys(
            (*TOKENS, *ENGINE_ONLY),
            Gap("the model publishes no engine metrics", PUBLISH),
        ),
    },
}


def missing(
    signal: str, info: ModelInfo, steps: Sequence[str] = (), unread: Gap | None = None
) -> Missing:
    """Say why nobody gave a signal of a model.

    ``steps`` are the models behind an ensemble that are reported on, and ``unread`` is why what
    could have had the signal was not read this time.
    """
    gap = GAPS[kind_of(info)][signal]
    if unread and not gap.never:
        return Missing(signal, info.model, info.version, unread.reason, unread.fix, unread=True)
    fix = f"{STEPS}: {', '.join(steps)}" if gap.fix == STEPS and steps else gap.fix
    return _missing(signal, info.model, info.version, gap.reason, fix)


@lru_cache(maxsize=65_536)
def _missing(signal: str, model: str, version: str, reason: str, fix: str) -> Missing:
    """Return the same object for the same arguments: they hardly change between scrapes."""
    return Missing(signal, model, version, reason, fix)
