"""Methods that read TensorRT-LLM's iteration statistics, request timing and metrics."""

from __future__ import annotations

from collections.abc import Mapping

from exporter.methods.method import (
    DERIVED,
    ENGINE,
    FINISHED,
    MEAN_ONLY,
    NO_REASONS,
    PER_REQUEST,
    Method,
)

COMPLETED = "counted when a request completes; excludes streams whose client disconnected"
AT_COMPLETION = "as of the last iteration before a request completed"

METHODS: Mapping[str, Method] = {
    "trtllm_iteration": Method(
        ENGINE,
        "exact",
        "TensorRT-LLM's statistics of its last iteration",
        "as of the last iteration before the scrape: misses shorter bursts",
    ),
    "trtllm_at_rest": Method(
        DERIVED,
        "estimate",
        "zero: TensorRT-LLM has run no iteration since it was loaded",
    ),
    "trtllm_waiting": Method(
        DERIVED,
        "estimate",
        "active sequences that TensorRT-LLM's last iteration did not schedule",
        "a lower bound: the executor does not export its queue beyond the maximum of active "
        "sequences",
    ),
    "trtllm_just_paused": Method(
        DERIVED,
        "estimate",
        "sequences that TensorRT-LLM's last iteration paused",
        "a lower bound: excludes sequences that earlier iterations paused and that still wait; "
        "above 0 the KV cache is full",
    ),
    "trtllm_without_host_pool": Method(
        DERIVED,
        "estimate",
        "TensorRT-LLM's KV-cache blocks less those it reports as used when idle",
        "this engine reports its host-offload pool as used blocks: blocks still used with no "
        "active sequence are subtracted from used and maximum",
    ),
    "trtllm_kv_unverified": Method(
        DERIVED,
        "estimate",
        "TensorRT-LLM's KV-cache blocks of its last iteration",
        "releases before 1.3 count a host-offload pool as used; whether there is one is visible "
        "once the engine was idle, or with kv_cache_config.iteration_stats_interval",
    ),
    "trtllm_kv_interval": Method(
        DERIVED,
        "estimate",
        "the pools of TensorRT-LLM's KV cache at an earlier iteration",
        "as of the last iteration that reported them: kv_cache_config.iteration_stats_interval is "
        "more than 1",
    ),
    "trtllm_reused": Method(
        ENGINE,
        "exact",
        "TensorRT-LLM's count of reused KV-cache blocks",
    ),
    "trtllm_input_length": Method(
        ENGINE,
        "exact",
        "TensorRT-LLM's input lengths of finished requests",
        "counted when a request finishes; includes tokens from the prefix cache",
    ),
    "trtllm_output_length": Method(
        ENGINE,
        "estimate",
        "TensorRT-LLM's output lengths of finished requests",
        "counted when a request finishes; a request without streaming counts its prompt as output "
        "too, unless it sets exclude_input_in_output",
    ),
    "trtllm_finished": Method(
        DERIVED,
        "estimate",
        "requests that TensorRT-LLM finished, and failures that Triton counted",
        FINISHED,
    ),
    "trtllm_finished_statistics": Method(
        DERIVED + 1,
        "estimate",
        "requests that TensorRT-LLM finished, and failures in Triton's statistics API",
        f"{FINISHED}; {NO_REASONS}",
    ),
    "trtllm_request_timing": Method(
        PER_REQUEST,
        "exact",
        "TensorRT-LLM's timing of each request",
        "from its arrival at the engine: excludes HTTP handling and tokenization before it; "
        f"{COMPLETED}",
    ),
    "trtllm_request_iterations": Method(
        DERIVED,
        "estimate",
        "TensorRT-LLM's timing of each request, and its number of iterations",
        "one token per iteration after the first, and accepted draft tokens: too low where a "
        f"prefill took several iterations, too high where the request was paused; {COMPLETED}",
    ),
    "trtllm_request_steps": Method(
        PER_REQUEST,
        "exact",
        "TensorRT-LLM's times of the steps of each request",
        "a gap is the time between two steps, each of which has several tokens with speculative "
        f"decoding; excludes the time in HTTP and the client; {COMPLETED}",
    ),
    "trtllm_serve_histogram": Method(
        ENGINE,
        "exact",
        "trtllm-serve's own histogram",
        "from the arrival at the engine: excludes HTTP handling and tokenization before it; "
        f"{COMPLETED}",
    ),
    "trtllm_serve_counter": Method(
        ENGINE,
        "estimate",
        "trtllm-serve's own token counter",
        f"a lower bound: excludes requests with n > 1; {COMPLETED}",
    ),
    "trtllm_serve_iterations": Method(
        ENGINE + 5,
        "estimate",
        "trtllm-serve's sums over its iterations",
        "added when a request completes; excludes iterations whose records were dropped",
    ),
    "trtllm_serve_finish_reason": Method(
        ENGINE,
        "estimate",
        "requests that trtllm-serve ended, by its finish reason",
        f"failures are a lower bound: excludes requests that are refused or fail; {COMPLETED}",
    ),
    "trtllm_serve_gauge": Method(
        ENGINE + 5,
        "estimate",
        "trtllm-serve's own gauge",
        f"{AT_COMPLETION}; includes the requests that ended in it",
    ),
    "trtllm_serve_waiting": Method(
        DERIVED,
        "estimate",
        "active sequences that trtllm-serve's last iteration did not schedule, and its queue",
        f"a lower bound: the PyTorch executor reports 0 for its queue; {AT_COMPLETION}",
    ),
    "trtllm_queued": Method(
        ENGINE,
        "exact",
        "sequences that TensorRT-LLM's last iteration did not schedule, and its executor's queue",
        "as of the last iteration before the scrape",
    ),
    "trtllm_missed": Method(
        ENGINE,
        "exact",
        "TensorRT-LLM's count of KV-cache blocks missing from its prefix cache",
    ),
    "trtllm_iteration_latency": Method(
        DERIVED,
        "estimate",
        "TensorRT-LLM's iteration latencies, each counted once per decoding sequence",
        "too low for sequences that are paused or not scheduled for an iteration; an engine's last "
        "iteration before it becomes idle has no latency",
    ),
    "trtllm_iteration_ends": Method(
        DERIVED,
        "estimate",
        "the time between the ends of TensorRT-LLM's iterations, once per decoding sequence",
        "too low for sequences that are paused or not scheduled for an iteration; excludes the "
        "first gap after the engine was idle; records before 1.3 do not distinguish pipeline "
        "stages, so their gaps are too short",
    ),
    "trtllm_iteration_rate": Method(
        DERIVED + 5,
        "estimate",
        "time / iterations of TensorRT-LLM between two scrapes, once per decoding sequence",
        f"{MEAN_ONLY}; covers only intervals between scrapes in which a sequence decoded "
        "throughout; cancelled requests can hide an interval in which none did",
    ),
    "trtllm_context_tokens": Method(
        DERIVED,
        "estimate",
        "prompt tokens that TensorRT-LLM's iterations computed",
        "excludes tokens from the prefix cache; a paused sequence computes its tokens again",
    ),
    "trtllm_iteration_tokens": Method(
        DERIVED,
        "estimate",
        "sequences in TensorRT-LLM's iterations, one token each, and accepted draft tokens",
        "each chunk of a chunked prefill counts as a first token; beams count as one sequence",
    ),
    "trtllm_paused": Method(
        ENGINE,
        "exact",
        "sequences that TensorRT-LLM's iterations paused or suspended",
    ),
    "trtllm_drafts": Method(
        ENGINE,
        "exact",
        "draft tokens of TensorRT-LLM's iterations",
    ),
    "trtllm_queue_latency": Method(
        DERIVED,
        "estimate",
        "the time that requests waited before TensorRT-LLM activated them",
        f"excludes the time from activation to scheduling; {MEAN_ONLY}",
    ),
}
