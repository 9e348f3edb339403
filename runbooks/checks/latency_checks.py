"""Checks of work and latency: lengths, arrivals, shares of the time, pace."""

from __future__ import annotations

from runbooks import service_queries as queries
from runbooks.checks.comparison import THAN_BEFORE
from runbooks.diagnosis_check import compares, service_check

LATENCY_CHECKS = (
    service_check(
        "prompts",
        "Are prompts longer than yesterday?",
        queries.ratio(queries.prompt_length),
        compares("<", "1.5", THAN_BEFORE),
        "prompts are as long as before",
        "long_work",
        "Time to first token grows with prompt length, and a long prefill delays the next token "
        "of every stream in the batch.",
    ),
    service_check(
        "answers",
        "Are responses longer than yesterday?",
        queries.ratio(queries.response_length),
        compares("<", "1.5", THAN_BEFORE),
        "responses are as long as before",
        "long_work",
        "Long responses hold their slot and their KV-cache blocks for longer.",
    ),
    service_check(
        "arrivals",
        "Are there more requests than yesterday?",
        queries.ratio(queries.arrivals),
        compares("<", 2, THAN_BEFORE),
        "there is no surge",
        "timeout_storm",
        "Requests count when they end. A surge that starts when latency crosses a client's "
        "timeout, with the same prompts again, is a retry storm; a surge of new prompts is load.",
    ),
    service_check(
        "reuse",
        "Does the prefix cache still help?",
        queries.ratio(queries.per_request("kv_reused_blocks")),
        compares(">", "0.5", THAN_BEFORE),
        "prompts find their prefixes in the cache as before",
        "long_work",
        "KV-cache blocks reused per request. A drop means cache misses: a changed system prompt, "
        "or traffic spread over more instances. No result: block reuse is off.",
    ),
    service_check(
        "queue_share",
        "Which part of the time to first token is queueing?",
        queries.queue_share,
        compares("<", "0.5"),
        "most of the time to first token is prefill, or outside the queue",
        "overload",
        "The mean queue time over the mean TTFT. Where the queue time is Triton's, it ends when "
        "the backend accepts the request: the wait inside TensorRT-LLM is not included.",
    ),
    service_check(
        "prefill_slow",
        "Does a prompt token take longer than yesterday?",
        queries.ratio(queries.prefill_per_token),
        compares("<", "1.5", THAN_BEFORE),
        "prefill is as fast as before",
        "slow_engine",
        "Mean prefill time per prompt token. Without the signal prefill the query uses TTFT, and "
        "has no result while sequences wait. A colder prefix cache also raises it.",
    ),
    service_check(
        "pace_slow",
        "Does an output token take longer than yesterday?",
        queries.ratio(queries.pace),
        compares("<", "1.5", THAN_BEFORE),
        "decoding is as fast as before",
        "slow_engine",
        "The mean of TPOT, or of ITL where TPOT is unavailable. A larger batch, long prefills and "
        "paused sequences slow it down on a healthy GPU.",
    ),
    service_check(
        "stalls",
        "Do streams stall?",
        queries.quantile("0.99", "max_gap"),
        compares("<", 1, " second"),
        "no stream freezes",
        "long_work",
        "The 99th percentile of the longest gap of each stream that ended. Causes: paused "
        "sequences, long prefills without chunked context, clients that do not read.",
    ),
    service_check(
        "gateway",
        "Does the slowest first token reach a gateway's timeout?",
        queries.quantile("0.99", "ttft"),
        compares("<", 10, " seconds, the shortest timeout in common use"),
        "no gateway cuts streams before they start",
        "gateway_timeout",
        "Common limits are 10, 15, 30, 60 and 300 s.",
    ),
    service_check(
        "stage_slow",
        "Does a stage of the ensemble take longer than yesterday?",
        queries.added_stage_seconds,
        compares("<", "0.1", " seconds per request more than at this time yesterday"),
        "tokenizing and detokenizing are as fast as before",
        "slow_stage",
        "Needs Triton's own metrics in Prometheus, with the same labels as the sidecar's. "
        "Ensembles and decoupled models are excluded, because their time includes generation. "
        "Time in Triton's queue for the stage is included.",
    ),
)
