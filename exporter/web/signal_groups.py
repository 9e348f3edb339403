"""Groups of signals, in the order in which the status page shows them."""

from __future__ import annotations

from collections.abc import Mapping

from slos.signals import LATENCIES, TENANT_SIGNALS, slo_events

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Latency": LATENCIES,
    "Requests and goodput": (
        "requests",
        "request_failures",
        "requests_without_first_token",
        "goodput",
        "suspected_retries",
        "prompt_class",
    ),
    "Tokens": (
        "input_tokens",
        "cached_input_tokens",
        "output_tokens",
        "input_length",
        "output_length",
        "draft_tokens",
        "accepted_draft_tokens",
    ),
    "Sequences": (
        "sequences_active",
        "sequences_decoding",
        "sequences_waiting",
        "sequences_paused",
        "sequences_max",
        "preemptions",
        "lora_adapters",
    ),
    "KV cache and memory": (
        "kv_utilization",
        "kv_blocks_used",
        "kv_blocks_free",
        "kv_blocks_max",
        "kv_block_tokens",
        "kv_reused_blocks",
        "kv_missed_blocks",
        "kv_token_seconds",
        "memory_gpu",
        "memory_cpu",
        "memory_pinned",
    ),
    "Streams and clients": (
        "streams",
        "live_streams",
        "disconnects",
        "disconnect_age",
        "disconnect_release",
        "wasted_tokens",
        "partial_tokens",
        "client_backpressure",
    ),
}
"""Signals by title of their group."""

HIDDEN = frozenset({"slo_slices", *map(slo_events, LATENCIES), *TENANT_SIGNALS.values()})
"""Signals that the page omits: objectives show the events, and tenants may be many."""
