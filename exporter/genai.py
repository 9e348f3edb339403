"""OpenTelemetry's semantic conventions for generative AI, as versioned output profiles.

The conventions are in development and will rename metrics.  So they are a mapping in the exporter's
output, selected by version; no other module depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.samples import Distribution, ModelInfo

NONE = "none"
"""The setting that disables the profile."""


@dataclass(frozen=True, slots=True)
class GenAiMetric:
    """A histogram of the conventions, in seconds, with their recommended bucket boundaries."""

    name: str
    description: str
    bounds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GenAiProfile:
    """One version of the conventions for model servers; ``metrics`` are by signal."""

    schema_url: str
    metrics: Mapping[str, GenAiMetric]


_DOUBLING = tuple(round(0.01 * 2**power, 2) for power in range(14))

PROFILES: Mapping[str, GenAiProfile] = {
    # The last published schema with these metrics; their new repository has published none.
    "1.41": GenAiProfile(
        "https://opentelemetry.io/schemas/1.41.0",
        {
            "ttft": GenAiMetric(
                "gen_ai.server.time_to_first_token",
                "Time to the first token of successful streams.",
                (
                    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08),
                    *(0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
                ),
            ),
            "tpot": GenAiMetric(
                "gen_ai.server.time_per_output_token",
                "Time per output token after the first of successful streams.",
                (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
            ),
            "e2e": GenAiMetric(
                "gen_ai.server.request.duration",
                "Time from the arrival of a request to its last byte.",
                _DOUBLING,
            ),
        },
    ),
}
CURRENT = "1.41"

CHAT, TEXT_COMPLETION = "chat", "text_completion"
OPERATIONS: Mapping[str, str] = {
    **dict.fromkeys(("chat", "responses", "messages"), CHAT),
    **dict.fromkeys(
        (
            *("completions", "sglang_generate", "generate", "generate_stream"),
            *("model_infer", "model_stream_infer"),
        ),
        TEXT_COMPLETION,
    ),
}
"""``gen_ai.operation.name`` by the endpoint of a request."""

TRITON, TRTLLM, VLLM, SGLANG = "nvidia.triton", "nvidia.tensorrt_llm", "vllm", "sglang"
OTHER = "_OTHER"
"""The provider if neither a source nor the endpoint identifies the server."""
_BY_BACKEND = {"trtllm-serve": TRTLLM, "vllm": VLLM, "sglang": SGLANG}
_BY_ENDPOINT: Mapping[str, str] = {
    "sglang_generate": SGLANG,
    **dict.fromkeys(("generate", "generate_stream", "model_infer", "model_stream_infer"), TRITON),
}


@dataclass(frozen=True, slots=True)
class GenAiSeries:
    """One histogram of a signal; ``endpoint`` is empty unless a tap observed the requests.

    ``error`` is the outcome of failed requests, which only ``e2e`` includes.
    """

    signal: str
    model: str
    version: str
    value: Distribution
    endpoint: str = ""
    error: str = ""


def provider(info: ModelInfo | None, endpoint: str = "") -> str:
    """Return ``gen_ai.provider.name``: the server, or OTHER if it cannot be identified.

    The conventions define no value for these servers.  Only Triton has model versions.
    """
    if info and info.version:
        return TRITON
    known = _BY_BACKEND.get(info.backend.partition(" ")[0], "") if info else ""
    return known or _BY_ENDPOINT.get(endpoint, OTHER)
