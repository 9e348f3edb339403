"""Methods that read Triton's metrics, statistics API and traces."""

from __future__ import annotations

from collections.abc import Mapping

from exporter.methods.method import (
    DERIVED,
    MEAN_ONLY,
    NO_REASONS,
    PER_REQUEST,
    SAMPLE,
    UNCOUNTED,
    Method,
)

WHOLE_STREAM = f"successful requests, including cancelled streams; {MEAN_ONLY}"
SCHEDULER_QUEUE = (
    "the wait in Triton's scheduler only: excludes the engine's own queue; "
    f"successful requests; {MEAN_ONLY}"
)
RESPONSES = (
    "a gap is the time between two responses, each of which may hold several tokens; an error is a "
    "response; a stream whose client disconnected counts as ended at that point; a gRPC client "
    "that requests an empty final response adds a gap"
)

METHODS: Mapping[str, Method] = {
    "triton_first_response": Method(
        DERIVED,
        "estimate",
        "Triton's first-response histogram",
        "whole milliseconds, rounded down; from arrival at the model to its first response, which "
        "may be an error or hold several tokens, and is the whole response of a request without "
        "streaming",
    ),
    "triton_counters": Method(
        DERIVED,
        "estimate",
        "Triton's request counters, which TensorRT-LLM increments at the end of a stream",
        f"a cancelled stream counts as ok; {UNCOUNTED}",
    ),
    "triton_ensemble_counters": Method(
        DERIVED,
        "estimate",
        "Triton's request counters of an ensemble",
        "Triton counts a failed request of an ensemble twice, so failures are halved; its steps "
        f"count the same requests again; a cancelled stream counts as ok; {UNCOUNTED}",
    ),
    "triton_unary_counters": Method(
        DERIVED,
        "estimate",
        "Triton's request counters",
        f"a response that carries an error counts as ok; {UNCOUNTED}",
    ),
    "triton_queue_failures": Method(
        DERIVED,
        "estimate",
        "requests that Triton rejected, or that were cancelled in its queue",
        "a lower bound: excludes requests that fail in the model before their first token, and "
        f"{UNCOUNTED}",
    ),
    "triton_duration": Method(
        DERIVED,
        "estimate",
        "Triton's request duration counter",
        WHOLE_STREAM,
    ),
    "triton_queue": Method(
        DERIVED,
        "estimate",
        "Triton's queue duration counter",
        SCHEDULER_QUEUE,
    ),
    "statistics_requests": Method(
        DERIVED + 1,
        "estimate",
        "Triton's statistics API",
        f"{NO_REASONS}; cancelled streams and responses that carry an error count as ok; "
        f"{UNCOUNTED}",
    ),
    "statistics_duration": Method(
        DERIVED + 1,
        "estimate",
        "durations in Triton's statistics API",
        WHOLE_STREAM,
    ),
    "statistics_queue": Method(
        DERIVED + 1,
        "estimate",
        "queue times in Triton's statistics API",
        SCHEDULER_QUEUE,
    ),
    "triton_trace": Method(
        PER_REQUEST,
        "estimate",
        "Triton's traces, of every request, from its arrival to each of its responses",
        RESPONSES,
    ),
    "triton_trace_sampled": Method(
        SAMPLE,
        "estimate",
        "Triton's traces, of some requests, from their arrival to each of their responses",
        f"ratios and percentiles are those of a sample, and counts are not totals; {RESPONSES}",
    ),
}
