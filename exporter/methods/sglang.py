"""Methods that read SGLang's metrics."""

from __future__ import annotations

from collections.abc import Mapping

from exporter.methods.method import DERIVED, ENGINE, Method

METHODS: Mapping[str, Method] = {
    "sglang_histogram": Method(
        ENGINE,
        "exact",
        "SGLang's own histogram",
        "measured in the server: excludes the network",
    ),
    "sglang_input_lengths": Method(
        ENGINE,
        "exact",
        "SGLang's own histogram of prompt lengths",
        "counted when a request completes; older releases need --collect-tokens-histogram",
    ),
    "sglang_output_lengths": Method(
        ENGINE,
        "estimate",
        "SGLang's own histogram of response lengths",
        "includes partial responses of aborted requests; older releases need "
        "--collect-tokens-histogram",
    ),
    "sglang_shared_intervals": Method(
        DERIVED,
        "estimate",
        "SGLang's histogram of intervals between tokens",
        "an interval with several tokens counts once per token, with an equal share of the time",
    ),
    "sglang_counter": Method(
        ENGINE,
        "exact",
        "SGLang's own counter",
        "counted when a request completes",
    ),
    "sglang_gauge": Method(
        ENGINE,
        "exact",
        "SGLang's own gauge",
        "as the scheduler logged it last",
    ),
    "sglang_pages": Method(
        DERIVED,
        "estimate",
        "SGLang's used tokens / tokens per page of its KV cache",
        "partly used pages count in part",
    ),
    "sglang_requests": Method(
        ENGINE,
        "estimate",
        "SGLang's counters of processed and of aborted requests",
        "an abort counts as a client disconnect, and is subtracted from the processed requests "
        "even if it was still queued; refused requests are not counted",
    ),
}
