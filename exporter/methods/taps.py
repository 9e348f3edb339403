"""Methods of the taps, which read the bytes between clients and servers."""

from __future__ import annotations

from collections.abc import Mapping

from exporter.methods.method import DERIVED, ENGINE, SAMPLE, WIRE, Method

_KV_ERRORS = (
    "from the first token, so without prefill, unless the engine reports the queue time; too high "
    "where sequences share blocks or are paused; excludes partly used blocks, responses in one "
    "piece and what engines keep for reuse; counted when a stream ends"
)

METHODS: Mapping[str, Method] = {
    "wire": Method(
        WIRE,
        "exact",
        "the bytes between clients and server",
        "measured next to the server: excludes the network to the client",
    ),
    "wire_unused": Method(
        DERIVED + 9,
        "exact",
        "zero: no request at a tap has had this signal yet",
    ),
    "selected": Method(
        DERIVED + 9,
        "exact",
        "zero: an SLO file selects the model and no source has seen it",
    ),
    # An engine's own token counters are more accurate.
    "wire_chunks": Method(
        ENGINE + 1,
        "estimate",
        "the token usage in responses; without it, one token per token-bearing chunk",
        "a chunk may hold several tokens, also the first one, whose tokens only continuous usage "
        "counts; times per token exclude requests for several choices (n, lists of prompts); "
        "excludes responses without streaming and without usage",
    ),
    "wire_usage": Method(
        ENGINE + 1,
        "estimate",
        "the token usage in responses",
        "a lower bound: some responses have no usage; OpenAI's streams have it with "
        "stream_options.include_usage",
    ),
    "wire_prompt_tokens": Method(
        WIRE,
        "exact",
        "the number of input tokens: of a tokenised prompt, or from the server before the class is "
        "needed",
    ),
    "wire_prompt_bytes": Method(
        ENGINE + 1,
        "estimate",
        "the bytes of the prompt's text / bytes per token, where no number of tokens is known",
        "bytes per token are those of the model's earlier requests with a number of tokens, 4 "
        "before the first one; images and audio count as no tokens; the class of a prompt close to "
        "a bound may be the neighbouring one",
    ),
    "wire_stages": Method(
        WIRE,
        "exact",
        "the engine's own timing of each request, carried in its response",
    ),
    "wire_stages_sampled": Method(
        SAMPLE,
        "estimate",
        "the engine's own timing of some requests, carried in their responses",
        "ratios and percentiles cover only the requests with this timing",
    ),
    "wire_released": Method(
        WIRE,
        "estimate",
        "the bytes that the server still sent after a client disconnected",
        "a lower bound: the work of a server after a connection reset is invisible",
    ),
    "wire_kv_tokens": Method(
        WIRE,
        "estimate",
        "input tokens x time, and output tokens x half of the time from the first to the last one",
        _KV_ERRORS,
    ),
    "wire_kv_partial": Method(
        WIRE,
        "estimate",
        "as wire_kv_tokens; without a number of tokens, the bytes of the prompt / bytes per token "
        "and one token per chunk",
        f"excludes streams whose prompt has an unknown length; {_KV_ERRORS}",
    ),
    "wire_retries": Method(
        WIRE,
        "estimate",
        "requests with the same prompt within 30 s of a failed or cancelled one",
        "counts identical prompts of different clients; misses retries with another prompt",
    ),
}
