"""How each signal can be obtained, and how far each way can be trusted.

A method is more than a source: the same counter is good evidence from one backend and none from
another, and then the two are two methods.  Quality belongs to the method, never to a single value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.readings import Quality

# Where several methods give a signal the lowest rank is taken: bytes on the wire (10), then what
# the engine says per request (20), its own metrics (30), and what is derived from elsewhere (40).
ENGINE = 30
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

METHODS: Mapping[str, Method] = {
    "vllm_histogram": Method(
        ENGINE,
        "exact",
        "vLLM's own histogram",
        "measured in the engine: Triton's queue and the network are not in it",
    ),
    "vllm_counter": Method(
        ENGINE,
        "exact",
        "vLLM's own token counter",
        "counted as the engine processes them",
    ),
    "vllm_gauge": Method(
        ENGINE,
        "exact",
        "vLLM's own gauge",
        "as of the engine's last step",
    ),
    "vllm_finish_reason": Method(
        ENGINE,
        "estimate",
        "requests that vLLM finished, by its finish reason",
        f"what fails before it reaches vLLM is not in it, and {UNCOUNTED}",
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
    "trtllm_waiting": Method(
        DERIVED,
        "estimate",
        "active sequences that TensorRT-LLM's last iteration did not schedule",
        "a lower bound: the executor's queue beyond its maximum of active is not exported",
    ),
    "trtllm_without_host_pool": Method(
        DERIVED,
        "estimate",
        "TensorRT-LLM's KV-cache blocks less those it reports as used when idle",
        "this engine reports its host-offload pool as used blocks: what stays used with no active "
        "sequence is taken off used and maximum",
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
}
