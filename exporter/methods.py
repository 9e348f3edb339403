"""How each signal can be obtained, and how far each way can be trusted.

A method is more than a source: the same counter is good evidence from one backend and none from
another, and then the two are two methods.  Quality belongs to the method, never to a single value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.samples import Quality

# Where several methods give a signal the lowest rank is taken: bytes on the wire (10), then what
# the engine or server says per request (20), the engine's own metrics (30), a sample of requests
# (35), and what is derived from elsewhere (40).
WIRE = 10
PER_REQUEST = 20
ENGINE = 30
SAMPLE = 35
DERIVED = 40


@dataclass(frozen=True, slots=True)
class Method:
    """One way to obtain a signal; ``note`` is what to keep in mind when reading the numbers."""

    rank: int
    quality: Quality
    description: str
    note: str = ""


UNCOUNTED = "requests refused by max_queue_size are counted nowhere"
FINISHED = (
    "finished requests are ok, cancelled ones among them; failures are a lower bound: errors that "
    f"the model sends as a response and {UNCOUNTED}"
)
NO_REASONS = (
    "failures come without their reason: rejected and cancelled requests are among the errors"
)
MEAN_ONLY = "count and sum only, so there is a mean but no percentiles"
WHOLE_STREAM = f"successful requests, cancelled streams among them; {MEAN_ONLY}"
SCHEDULER_QUEUE = (
    "the wait in Triton's scheduler only: the engine's own queue is not in it; "
    f"successful requests; {MEAN_ONLY}"
)
COMPLETED = "counted when a request completes; streams whose client left are not in it"
AT_COMPLETION = "as of the last iteration before a request completed"

RESPONSES = (
    "one gap lies between two responses, each of which may hold several tokens; an error is a "
    "response, a stream whose client left counts as one that ended there, and a gRPC client that "
    "requests an empty final response adds a gap"
)

METHODS: Mapping[str, Method] = {
    "wire": Method(
        WIRE,
        "exact",
        "the bytes between clients and server",
        "as seen beside the server: the network to the client is not in it",
    ),
    "wire_unused": Method(
        DERIVED + 9,
        "exact",
        "zero: no request that a tap saw has shown this signal yet",
    ),
    "selected": Method(
        DERIVED + 9,
        "exact",
        "zero: an SLO file selects the model and no source has seen it",
    ),
    # Token counts of the engine are preferred.
    "wire_chunks": Method(
        ENGINE + 1,
        "estimate",
        "the token counts in responses, else one token per token-bearing chunk",
        "a chunk may hold several tokens, also the first one, which only continuous usage "
        "counts; times per token leave out requests for several answers (n, lists of prompts); "
        "responses in one chunk without a count are excluded",
    ),
    "wire_told": Method(
        ENGINE + 1,
        "estimate",
        "the token counts in responses",
        "a lower bound: some responses have no count; OpenAI's streams have one with "
        "stream_options.include_usage",
    ),
    "wire_stages": Method(
        WIRE,
        "exact",
        "the engine's own timing of each request, carried in its answer",
    ),
    "wire_stages_sampled": Method(
        SAMPLE,
        "estimate",
        "the engine's own timing of some requests, carried in their answers",
        "shares and percentiles are those of the requests that ask for it",
    ),
    "wire_released": Method(
        WIRE,
        "estimate",
        "the bytes that the server still sent after a client had left",
        "a lower bound: what a server does after the connection was reset cannot be seen",
    ),
    "wire_retries": Method(
        WIRE,
        "estimate",
        "requests with the same prompt within 30 s of one that failed or was left",
        "another client may send the same prompt; a retry with another prompt is not recognized",
    ),
    "vllm_histogram": Method(
        ENGINE,
        "exact",
        "vLLM's own histogram",
        "measured in the engine: Triton's queue and the network are not in it",
    ),
    "vllm_tpot": Method(
        ENGINE,
        "exact",
        "vLLM's own histogram, without requests of one output token",
        "vLLM observes 0 s for a request of one output token, which has no time per output token; "
        "their number is known from its histogram of output lengths",
    ),
    "vllm_tpot_with_zeros": Method(
        ENGINE,
        "estimate",
        "vLLM's own histogram, with requests of one output token as 0 s",
        "reads too low: this server does not publish vllm:request_generation_tokens with a bucket "
        "of one token, so these requests cannot be left out",
    ),
    "vllm_cache_config": Method(
        ENGINE,
        "exact",
        "vLLM's own configuration of its KV cache",
        "the blocks of all engines of the server",
    ),
    "vllm_cache_blocks": Method(
        DERIVED,
        "estimate",
        "vLLM's KV-cache utilization times its number of blocks",
        "rounded to whole blocks",
    ),
    "vllm_counter": Method(
        ENGINE,
        "exact",
        "vLLM's own counter",
        "counted as the engine works",
    ),
    "vllm_gauge": Method(
        ENGINE,
        "exact",
        "vLLM's own gauge",
        "as of the engine's last step",
    ),
    "vllm_lora": Method(
        ENGINE,
        "exact",
        "vLLM's own gauge of LoRA adapters, its latest series",
        "names are sorted; an adapter without requests is in no list; of several engines the one "
        "that stepped last",
    ),
    "sglang_histogram": Method(
        ENGINE,
        "exact",
        "SGLang's own histogram",
        "measured in the server, so the network is not in it",
    ),
    "sglang_shared_intervals": Method(
        DERIVED,
        "estimate",
        "SGLang's histogram of intervals between tokens",
        "an interval that brings several tokens counts once per token, with its share of the time",
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
        "pages that are used in part count in part",
    ),
    "sglang_requests": Method(
        ENGINE,
        "estimate",
        "SGLang's counters of processed and of aborted requests",
        "an abort counts as a disconnected client, and is taken off the processed requests even if "
        "it was still queued; refused requests are not counted",
    ),
    "vllm_finish_reason": Method(
        ENGINE,
        "estimate",
        "requests that vLLM finished, by its finish reason",
        "an abort is a client that left, and some releases do not count it; what fails before it "
        "reaches the engine is not in it",
    ),
    "vllm_rejections": Method(
        DERIVED,
        "estimate",
        "requests that vLLM refused because its queue was full",
        "a lower bound: requests that end in the engine before their first token are not in it",
    ),
    "vllm_finished": Method(
        DERIVED,
        "estimate",
        "requests that vLLM finished, and failures that Triton counted",
        FINISHED,
    ),
    "trtllm_iteration": Method(
        ENGINE,
        "exact",
        "TensorRT-LLM's statistics of its last iteration",
        "as of the last iteration before the reading: shorter bursts are not seen",
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
        "a lower bound: the executor's queue beyond its maximum of active is not exported",
    ),
    "trtllm_just_paused": Method(
        DERIVED,
        "estimate",
        "sequences that TensorRT-LLM's last iteration paused",
        "a lower bound: those that earlier iterations paused and that still wait are not in it; "
        "above 0 the KV cache is short",
    ),
    "trtllm_without_host_pool": Method(
        DERIVED,
        "estimate",
        "TensorRT-LLM's KV-cache blocks less those it reports as used when idle",
        "this engine reports its host-offload pool as used blocks: what stays used with no active "
        "sequence is taken off used and maximum",
    ),
    "trtllm_kv_unverified": Method(
        DERIVED,
        "estimate",
        "TensorRT-LLM's KV-cache blocks of its last iteration",
        "releases before 1.3 count a host-offload pool as used; whether there is one shows when "
        "the engine was idle once, or with kv_cache_config.iteration_stats_interval",
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
        "counted when a request finishes; tokens served from the prefix cache are in it",
    ),
    "trtllm_output_length": Method(
        ENGINE,
        "estimate",
        "TensorRT-LLM's output lengths of finished requests",
        "counted when a request finishes; a request that does not stream counts its prompt as "
        "output too, unless it sets exclude_input_in_output",
    ),
    "trtllm_finished": Method(
        DERIVED,
        "estimate",
        "requests that TensorRT-LLM finished, and failures that Triton counted",
        FINISHED,
    ),
    "trtllm_request_timing": Method(
        PER_REQUEST,
        "exact",
        "TensorRT-LLM's timing of each request",
        "from its arrival at the engine, so HTTP and tokenizing before that are not in it; "
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
        "one gap lies between two steps, each of which brings several tokens with speculative "
        f"decoding; what HTTP and the client add is not in it; {COMPLETED}",
    ),
    "trtllm_serve_histogram": Method(
        ENGINE,
        "exact",
        "trtllm-serve's own histogram",
        "from the arrival at the engine, so HTTP and tokenizing before that are not in it; "
        f"{COMPLETED}",
    ),
    "trtllm_serve_counter": Method(
        ENGINE,
        "estimate",
        "trtllm-serve's own token counter",
        f"a lower bound: requests with n > 1 are not in it; {COMPLETED}",
    ),
    "trtllm_serve_iterations": Method(
        ENGINE + 5,
        "estimate",
        "what trtllm-serve adds up of its iterations",
        "added when a request completes; what was lost of the iterations is missing here too",
    ),
    "trtllm_serve_finish_reason": Method(
        ENGINE,
        "estimate",
        "requests that trtllm-serve ended, by its finish reason",
        f"failures are a lower bound: requests that are refused or fail are not in it; {COMPLETED}",
    ),
    "trtllm_serve_gauge": Method(
        ENGINE + 5,
        "estimate",
        "trtllm-serve's own gauge",
        f"{AT_COMPLETION}, with the requests that ended in it",
    ),
    "trtllm_serve_waiting": Method(
        DERIVED,
        "estimate",
        "active sequences that trtllm-serve's last iteration did not schedule, and its queue",
        f"a lower bound: the PyTorch executor's queue reads 0; {AT_COMPLETION}",
    ),
    "trtllm_queued": Method(
        ENGINE,
        "exact",
        "sequences that TensorRT-LLM's last iteration did not schedule, and its executor's queue",
        "as of the last iteration before the reading",
    ),
    "trtllm_missed": Method(
        ENGINE,
        "exact",
        "TensorRT-LLM's count of KV-cache blocks that its prefix cache did not have",
    ),
    "trtllm_iteration_latency": Method(
        DERIVED,
        "estimate",
        "TensorRT-LLM's iteration latencies, each as often as sequences decoded in it",
        "a sequence that is paused or left out for an iteration waits longer than its iterations "
        "show; an engine's last iteration before it runs empty has no latency",
    ),
    "trtllm_iteration_ends": Method(
        DERIVED,
        "estimate",
        "the time between the ends of TensorRT-LLM's iterations, as often as sequences decoded",
        "a sequence that is paused or left out for an iteration waits longer than its iterations "
        "show; the first gap after a rest is left out; records before 1.3 do not "
        "distinguish pipeline stages, so there gaps are too short",
    ),
    "trtllm_iteration_rate": Method(
        DERIVED + 5,
        "estimate",
        "time / iterations of TensorRT-LLM between two readings, as often as sequences decoded",
        f"{MEAN_ONLY}; only of the time between two readings in which some "
        "sequence decoded throughout; cancelled requests can hide that none did",
    ),
    "trtllm_context_tokens": Method(
        DERIVED,
        "estimate",
        "prompt tokens that TensorRT-LLM's iterations computed",
        "tokens served from the prefix cache are not in it; a paused sequence computes its own "
        "again",
    ),
    "trtllm_iteration_tokens": Method(
        DERIVED,
        "estimate",
        "sequences in TensorRT-LLM's iterations, each of which gets a token, and accepted drafts",
        "every chunk of a chunked prefill counts as a first token; beams count as one sequence",
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
        f"activated is not yet scheduled; {MEAN_ONLY}",
    ),
    "vllm_finished_statistics": Method(
        DERIVED + 1,
        "estimate",
        "requests that vLLM finished, and failures in Triton's statistics API",
        f"{FINISHED}; {NO_REASONS}",
    ),
    "trtllm_finished_statistics": Method(
        DERIVED + 1,
        "estimate",
        "requests that TensorRT-LLM finished, and failures in Triton's statistics API",
        f"{FINISHED}; {NO_REASONS}",
    ),
    "triton_first_response": Method(
        DERIVED,
        "estimate",
        "Triton's first-response histogram",
        "whole milliseconds, rounded down; from arrival at the model to its first response, which "
        "may be an error or hold several tokens, and is the whole answer of a request that does "
        "not stream",
    ),
    "triton_counters": Method(
        DERIVED,
        "estimate",
        "Triton's request counters, which TensorRT-LLM moves at the end of a stream",
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
        "requests that Triton rejected or saw cancelled while they were queued",
        f"a lower bound: requests that fail in the model before their first token and {UNCOUNTED}",
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
        f"shares and percentiles are those of a sample, and counts are not totals; {RESPONSES}",
    ),
}
