"""Signals: names, types, units, labels and buckets of all serving metrics.

A *signal* is one quantity ("time to first token", "paused sequences").  A *metric* is the
Prometheus metric that serves it; several signals may share one metric and differ by a fixed label
(``llm_sequences{state="paused"}``).  Every serving metric also has the labels ``model`` and
``version``.  Units are Prometheus base units: seconds, bytes, ratios from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Literal

from slos.outcomes import REFUSALS

Kind = Literal["counter", "gauge", "histogram"]

# Upper bucket bounds in seconds.  The vLLM and OpenTelemetry GenAI grids, so that operators can
# compare servers bucket by bucket; they reach past the usual gateway timeouts (10 s to 300 s).
FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
# Fast GPUs decode a token in 5 to 15 ms, below the first boundary of those grids, and large models
# in 15 to 50 ms, where those grids have a single boundary.
TOKEN_GAP_BUCKETS = (
    0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
STAGE_BUCKETS = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip

# Each usual timeout of gateways and clients has a narrow bucket of its own, because what a timeout
# cuts off ends just after it: a spike there names the timeout.
AGE_BUCKETS = (
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 5.25, 10.0, 10.5, 15.0, 15.5, 20.0, 20.5, 30.0, 31.0, 60.0, 62.0,
    90.0, 92.0, 120.0, 123.0, 180.0, 184.0, 300.0, 306.0, 600.0, 610.0, 3600.0,
)  # fmt: skip

# Token counts.  Powers of two, as context lengths and most prompt classes are.
LENGTH_BUCKETS = (
    16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0,
    65536.0, 131072.0,
)  # fmt: skip

MODEL_LABELS = ("model", "version")
LORA_LABELS = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
"""Labels of the model-server protocol: how many adapters fit in a batch, and two lists of names."""
TENANT = "tenant"
PROMPT_CLASS = "prompt_class"
"""The label of requests by the length of their prompt (:mod:`slos.prompt_classes`)."""
REQUEST_LABELS = frozenset({TENANT, PROMPT_CLASS})
"""Labels of requests, which the metrics about signals and sources lack."""
CLASS_BASES = ("count", "estimate")
"""Values of ``basis``: a prompt class from a number of tokens, or from an estimate of it."""
PHASES = ("before_first_token", "mid_stream", "complete")
"""Last phase of a stream."""
DISCONNECT_PHASES = PHASES[:2]
RESULTS = ("good", "bad")
"""Results of an event; requests that end before their first token also have :data:`REFUSALS`."""
OUTCOME_CLAUSE = "outcome"
"""The clause that a failed request breaks."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One quantity of LLM serving.

    ``metric`` is the name as Prometheus stores it: counters end in ``_total``, histograms lack
    ``_bucket``.  ``labels`` are those of a sample besides ``model``, ``version`` and the ``fixed``
    ones.  ``buckets`` are default upper bounds, in seconds or tokens (histograms only).
    ``by_prompt_class``: with prompt classes, samples also have the label ``prompt_class``.
    """

    key: str
    title: str
    metric: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()
    unit: str = ""
    by_prompt_class: bool = False

    @property
    def possible_labels(self) -> tuple[str, ...]:
        """The labels, and ``prompt_class`` where an SLO file can add it."""
        return (*self.labels, PROMPT_CLASS) if self.by_prompt_class else self.labels


def _catalogue(*signals: Signal) -> dict[str, Signal]:
    return {signal.key: signal for signal in signals}


# Families whose signals differ by one label: metric, kind, help, label, unit.
_FAMILIES: Mapping[str, tuple[str, Kind, str, str, str]] = {
    "sequences": ("llm_sequences", "gauge", "Sequences in the engine, by state.", "state", ""),
    "kv_blocks": ("llm_kv_cache_blocks", "gauge", "KV-cache blocks, by state.", "state", ""),
    "memory": ("llm_memory_bytes", "gauge", "Memory held by the engine, by kind.", "kind", "B"),
    "tokens": (
        "llm_tokens_total",
        "counter",
        "Tokens processed, by direction; cached_input is the part of input found in the "
        "prefix cache.",
        "direction",
        "",
    ),
    "tenant_tokens": (
        "llm_tenant_tokens_total",
        "counter",
        "Tokens of one tenant, by direction.",
        "direction",
        "",
    ),
    "slo_events": (
        "llm_slo_events_total",
        "counter",
        "Good and bad events of a latency signal, for each threshold of the SLO file. A request "
        "in flight is bad from the moment it crosses the threshold. Streams that are shed or "
        "exceed a quota before their first token have results of their own.",
        "signal",
        "",
    ),
}
_FAMILY_LABELS: Mapping[str, tuple[str, ...]] = {
    "tenant_tokens": (TENANT,),
    "slo_events": ("threshold", "result"),
}


_KV_HELP = (
    "Estimate of tokens in the KV cache x seconds, of streams that ended: input tokens, and output "
    "tokens so far, from the first token to the end; earlier if the engine reports the queue time. "
    "Shared blocks count for each stream."
)


def _member(family: str, value: str, key: str, title: str) -> Signal:
    metric, kind, text, label, unit = _FAMILIES[family]
    labels = _FAMILY_LABELS.get(family, ())
    return Signal(key, title, metric, kind, text, labels, {label: value}, unit=unit)


def slo_events(key: str) -> str:
    """Return the key of the good and bad events of a latency signal."""
    return f"{key}_slo_events"


def _slo_events(*latencies: Signal) -> tuple[Signal, ...]:
    """Return latency signals, each with the good and bad events of its thresholds."""
    return (*latencies, *map(_events_of, latencies))


def _events_of(latency: Signal) -> Signal:
    key = latency.key
    events = _member("slo_events", key, slo_events(key), f"SLO events: {latency.title}")
    return replace(events, by_prompt_class=latency.by_prompt_class)


SIGNALS: Mapping[str, Signal] = _catalogue(
    *_slo_events(
    Signal("ttft", "Time to first token", "llm_time_to_first_token_seconds", "histogram",
           "Time from the arrival of a request to its first token.",
           buckets=FIRST_TOKEN_BUCKETS, unit="s", by_prompt_class=True),
    Signal("itl", "Inter-token latency", "llm_inter_token_latency_seconds", "histogram",
           "Gap between consecutive token-bearing chunks of a stream.",
           buckets=TOKEN_GAP_BUCKETS, unit="s"),
    Signal("itl_normalized", "Inter-token latency per token",
           "llm_inter_token_latency_normalized_seconds", "histogram",
           "Gap between consecutive token-bearing chunks / tokens of the later chunk, one "
           "observation per token; only where the server reports token counts.",
           buckets=TOKEN_GAP_BUCKETS, unit="s"),
    Signal("tpot", "Time per output token", "llm_time_per_output_token_seconds", "histogram",
           "Per request: (last token - first token) / (output tokens - 1).",
           buckets=TOKEN_GAP_BUCKETS, unit="s"),
    Signal("e2e", "Request duration", "llm_request_duration_seconds", "histogram",
           "Time from the arrival of a request to the end of its response.",
           buckets=REQUEST_BUCKETS, unit="s"),
    Signal("queue", "Queue time", "llm_request_queue_seconds", "histogram",
           "Time a request waits before its first scheduling.",
           buckets=STAGE_BUCKETS, unit="s", by_prompt_class=True),
    Signal("prefill", "Prefill time", "llm_request_prefill_seconds", "histogram",
           "Time from first scheduling to first token.",
           buckets=STAGE_BUCKETS, unit="s", by_prompt_class=True),
    Signal("decode", "Decode time", "llm_request_decode_seconds", "histogram",
           "Time from first to last token.",
           buckets=REQUEST_BUCKETS, unit="s"),
    Signal("max_gap", "Longest gap of a stream", "llm_stream_max_gap_seconds", "histogram",
           "Per stream: the longest gap between token-bearing chunks.",
           buckets=TOKEN_GAP_BUCKETS, unit="s"),
    ),
    Signal("requests", "Requests by outcome", "llm_requests_total", "counter",
           "Requests that ended, by outcome.",
           labels=("outcome",), by_prompt_class=True),
    Signal("request_failures", "Failed requests by reason", "llm_request_failures_total",
           "counter", "Requests that ended with another outcome than ok, by reason: why they were "
           "shed or timed out, else the server's status or finish reason.",
           labels=("outcome", "reason")),
    Signal("tenant_requests", "Requests of tenants", "llm_tenant_requests_total", "counter",
           "Requests of one tenant that ended, by outcome.", labels=("outcome", TENANT)),
    Signal("requests_without_first_token", "Requests without a first token",
           "llm_requests_without_first_token_total", "counter",
           "Requests that ended before their first token, by outcome; ok are empty responses. No "
           "latency histogram counts them, so TTFT objectives count them as bad.",
           labels=("outcome",)),
    _member("tokens", "input", "input_tokens", "Input tokens"),
    _member("tokens", "cached_input", "cached_input_tokens", "Cached input tokens"),
    _member("tokens", "output", "output_tokens", "Output tokens"),
    _member("tenant_tokens", "input", "tenant_input_tokens", "Input tokens of tenants"),
    _member("tenant_tokens", "cached_input", "tenant_cached_input_tokens",
            "Cached input tokens of tenants"),
    _member("tenant_tokens", "output", "tenant_output_tokens", "Output tokens of tenants"),
    _member("sequences", "active", "sequences_active", "Active sequences"),
    _member("sequences", "decoding", "sequences_decoding", "Decoding sequences"),
    _member("sequences", "waiting", "sequences_waiting", "Waiting sequences"),
    _member("sequences", "paused", "sequences_paused", "Paused sequences"),
    Signal("sequences_max", "Maximum sequences", "llm_sequences_max", "gauge",
           "Sequences the engine admits at once."),
    Signal("kv_utilization", "KV-cache utilization", "llm_kv_cache_utilization_ratio", "gauge",
           "Blocks held by live sequences / all blocks of the KV cache.", unit="ratio"),
    _member("kv_blocks", "used", "kv_blocks_used", "KV-cache blocks used"),
    _member("kv_blocks", "free", "kv_blocks_free", "KV-cache blocks free"),
    _member("kv_blocks", "max", "kv_blocks_max", "KV-cache blocks"),
    Signal("kv_block_tokens", "Tokens per KV-cache block", "llm_kv_cache_block_tokens", "gauge",
           "Tokens that a KV-cache block holds."),
    Signal("lora_adapters", "LoRA adapters with requests", "llm_lora_adapters_timestamp_seconds",
           "gauge",
           "Unix time at which the engine last updated its LoRA adapters; labels list those with "
           "running and with waiting requests.",
           labels=LORA_LABELS, unit="s"),
    Signal("kv_reused_blocks", "KV-cache blocks reused", "llm_kv_cache_reused_blocks_total",
           "counter", "KV-cache blocks served from the prefix cache instead of being computed."),
    Signal("kv_missed_blocks", "KV-cache blocks missed", "llm_kv_cache_missed_blocks_total",
           "counter", "KV-cache blocks computed because the prefix cache did not have them."),
    Signal("kv_token_seconds", "KV-cache token-seconds", "llm_kv_cache_token_seconds_total",
           "counter", _KV_HELP),
    Signal("tenant_kv_token_seconds", "KV-cache token-seconds of tenants",
           "llm_tenant_kv_cache_token_seconds_total", "counter",
           f"Of one tenant: {_KV_HELP[0].lower()}{_KV_HELP[1:]}",
           labels=(TENANT,)),
    Signal("preemptions", "Preemptions", "llm_preemptions_total", "counter",
           "Sequences paused or suspended to make room in the KV cache."),
    Signal("draft_tokens", "Draft tokens", "llm_draft_tokens_total", "counter",
           "Tokens proposed by speculative decoding."),
    Signal("accepted_draft_tokens", "Accepted draft tokens", "llm_accepted_draft_tokens_total",
           "counter", "Proposed tokens that the model accepted."),
    _member("memory", "gpu", "memory_gpu", "GPU memory"),
    _member("memory", "cpu", "memory_cpu", "CPU memory"),
    _member("memory", "pinned", "memory_pinned", "Pinned memory"),
    Signal("streams", "Streams by outcome", "llm_streams_total", "counter",
           "Streaming requests that ended, by outcome and phase.",
           labels=("outcome", "phase")),
    Signal("tenant_streams", "Streams of tenants", "llm_tenant_streams_total", "counter",
           "Streaming requests of one tenant that ended, by outcome and phase.",
           labels=("outcome", "phase", TENANT)),
    Signal("live_streams", "Live streams", "llm_live_streams", "gauge",
           "Requests under way between clients and server."),
    Signal("disconnects", "Streaming disconnects", "llm_streaming_disconnects_total", "counter",
           "Streams whose client disconnected, by phase.", labels=("phase",)),
    Signal("tenant_disconnects", "Streaming disconnects of tenants",
           "llm_tenant_streaming_disconnects_total", "counter",
           "Streams of one tenant whose client disconnected, by phase.",
           labels=("phase", TENANT)),
    Signal("disconnect_age", "Age at disconnect", "llm_disconnect_age_seconds", "histogram",
           "Time from the arrival of a streaming request to the disconnect of its client.",
           buckets=AGE_BUCKETS, unit="s"),
    Signal("disconnect_release", "Release after a disconnect", "llm_disconnect_release_seconds",
           "histogram",
           "Time from a client disconnect to the last observed work of the server for it.",
           buckets=STAGE_BUCKETS, unit="s"),
    Signal("wasted_tokens", "Wasted tokens", "llm_wasted_tokens_total", "counter",
           "Tokens sent after their client had disconnected."),
    Signal("tenant_wasted_tokens", "Wasted tokens of tenants", "llm_tenant_wasted_tokens_total",
           "counter", "Tokens of one tenant sent after their client had disconnected.",
           labels=(TENANT,)),
    Signal("partial_tokens", "Tokens of partial responses", "llm_partial_response_tokens_total",
           "counter", "Tokens sent to clients that disconnected before the end."),
    Signal("suspected_retries", "Suspected retries", "llm_suspected_retries_total", "counter",
           "Requests with the prompt of one that failed, or whose client disconnected, shortly "
           "before."),
    Signal("client_backpressure", "Client back-pressure", "llm_client_backpressure_seconds_total",
           "counter", "Time in which clients did not read the data sent to them.", unit="s"),
    Signal("goodput", "Goodput", "llm_goodput_requests_total", "counter",
           "Requests by whether they met every clause of an objective; shed and quota are "
           "refused ones.",
           labels=("objective", "result", "clause"), by_prompt_class=True),
    Signal("tenant_goodput", "Goodput of tenants", "llm_tenant_goodput_requests_total", "counter",
           "Requests of one tenant by whether they met every clause of an objective.",
           labels=("objective", "result", "clause", TENANT)),
    Signal("prompt_class", "Requests by prompt class", "llm_classified_requests_total", "counter",
           "Requests by prompt class, and by whether the class comes from a number of tokens or "
           "from an estimate.",
           labels=("basis",), by_prompt_class=True),
    Signal("input_length", "Input length", "llm_request_input_tokens", "histogram",
           "Input tokens of each request.", buckets=LENGTH_BUCKETS, unit="tokens"),
    Signal("output_length", "Output length", "llm_request_output_tokens", "histogram",
           "Output tokens of each request with the outcome ok; engines count others too.",
           buckets=LENGTH_BUCKETS, unit="tokens"),
    Signal("slo_slices", "Time slices", "llm_slo_slices_total", "counter",
           "Time slices of an objective that have ended, by whether they were good.",
           labels=("objective", "result")),
)  # fmt: skip

LATENCIES = tuple(key for key in SIGNALS if slo_events(key) in SIGNALS)
"""Signals that a latency threshold may be set on."""
TENANT_SIGNALS: Mapping[str, str] = {
    key: f"{TENANT}_{key}" for key in SIGNALS if f"{TENANT}_{key}" in SIGNALS
}
"""Signals by tenant, by the signal without tenant."""
_TENANT_METRICS: Mapping[str, str] = {
    SIGNALS[key].metric: SIGNALS[twin].metric for key, twin in TENANT_SIGNALS.items()
}


PROMPT_CLASS_SIGNALS = ("prompt_class", "input_length", "output_length")
"""Signals that a tap records only with prompt classes; engines may publish the lengths."""
COMPANIONS = frozenset(
    {
        *("request_failures", "slo_slices"),
        *TENANT_SIGNALS.values(),
        *map(slo_events, LATENCIES),
        *PROMPT_CLASS_SIGNALS,
    }
)
"""Signals that exist only with tenants, thresholds, failures, prompt classes or some engines."""
MAIN_SIGNALS = tuple(key for key in SIGNALS if key not in COMPANIONS)
"""Signals that every source reports, with a value or the reason why it is unavailable."""


def metric_with(metric: str, labels: Iterable[str]) -> str:
    """Return the metric of the same events that has ``labels``: tenants have separate metrics."""
    return _TENANT_METRICS.get(metric, metric) if TENANT in labels else metric


def event_results(key: str) -> tuple[str, ...]:
    """Return the results of a latency signal's SLO events.

    A stream that is refused before its first token is an event of its own kind, as SLO files
    decide whether it is bad.
    """
    return (*RESULTS, *REFUSALS) if key == "ttft" else RESULTS


def threshold_label(seconds: float | Decimal) -> str:
    """Write a threshold in seconds as the label ``threshold``: ``0.8``, ``1``, ``0.06``."""
    text = f"{Decimal(repr(seconds)) if isinstance(seconds, float) else seconds:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def bucket_boundaries(signal: Signal, thresholds: Iterable[float] = ()) -> tuple[float, ...]:
    """Return the signal's default boundaries, and every threshold as a boundary.

    A classic histogram answers "how many were within t" exactly only at a boundary.
    """
    return tuple(sorted({*signal.buckets, *thresholds}))
