"""Methods that read vLLM's metrics."""

from __future__ import annotations

from collections.abc import Mapping

from exporter.methods.method import DERIVED, ENGINE, FINISHED, NO_REASONS, Method

METHODS: Mapping[str, Method] = {
    "vllm_histogram": Method(
        ENGINE,
        "exact",
        "vLLM's own histogram",
        "measured in the engine: excludes Triton's queue and the network",
    ),
    "vllm_input_lengths": Method(
        ENGINE,
        "exact",
        "vLLM's own histogram of prompt lengths",
        "counted when a request finishes, aborted ones too; a request of several choices counts "
        "once for each",
    ),
    "vllm_output_lengths": Method(
        ENGINE,
        "estimate",
        "vLLM's own histogram of response lengths",
        "includes partial responses of aborted requests; a request of several choices counts once "
        "for each",
    ),
    "vllm_tpot": Method(
        ENGINE,
        "exact",
        "vLLM's own histogram, without requests of one output token",
        "vLLM observes 0 s for a request of one output token, which has no time per output token; "
        "its histogram of output lengths counts these requests",
    ),
    "vllm_tpot_with_zeros": Method(
        ENGINE,
        "estimate",
        "vLLM's own histogram, with requests of one output token as 0 s",
        "too low: this server does not publish vllm:request_generation_tokens with a bucket of one "
        "token, so these requests cannot be subtracted",
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
        "updated at each engine step",
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
        "names are sorted; adapters without requests are not listed; of several engines, the one "
        "that stepped last",
    ),
    "vllm_finish_reason": Method(
        ENGINE,
        "estimate",
        "requests that vLLM finished, by its finish reason",
        "an abort is a client disconnect, which some releases do not count; excludes requests that "
        "fail before they reach the engine",
    ),
    "vllm_rejections": Method(
        DERIVED,
        "estimate",
        "requests that vLLM refused because its queue was full",
        "a lower bound: excludes requests that end in the engine before their first token",
    ),
    "vllm_finished": Method(
        DERIVED,
        "estimate",
        "requests that vLLM finished, and failures that Triton counted",
        FINISHED,
    ),
    "vllm_finished_statistics": Method(
        DERIVED + 1,
        "estimate",
        "requests that vLLM finished, and failures in Triton's statistics API",
        f"{FINISHED}; {NO_REASONS}",
    ),
}
