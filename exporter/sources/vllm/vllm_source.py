"""Read one vLLM server: its metrics, by served model name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from exporter.samples import Measurement, Missing, ModelInfo
from exporter.sources.exposition.by_model import FamiliesByModel
from exporter.sources.exposition.exposition_source import ExpositionSource
from exporter.sources.http_source import Parts, attempt
from exporter.sources.unavailable import NEEDS_TAP, OBSERVE, TAP_SIGNALS, Unavailable
from exporter.sources.vllm import vllm_metrics
from promql.http_client import FetchLimits

BACKEND = "vllm"

STATS = "start vLLM without --disable-log-stats"
_NO_CACHE_CONFIG = Unavailable(
    "vllm:cache_config_info has no num_gpu_blocks, or the server has several models",
    "upgrade vLLM, or serve one model per server",
)
_NO_MEMORY = Unavailable("vLLM publishes no memory of its engine", "none with vLLM")
_IN_TOKENS = Unavailable(
    "vLLM counts the hits of its prefix cache in tokens, not blocks", "none with vLLM"
)
UNAVAILABLE: Mapping[str, Unavailable] = {
    "requests_without_first_token": Unavailable(
        "this release does not count requests that it refuses, and none shows which requests end "
        "before their first token",
        OBSERVE,
    ),
    "sequences_decoding": Unavailable(
        "vLLM does not distinguish prefilling from decoding sequences", OBSERVE
    ),
    "sequences_paused": Unavailable(
        "vLLM's preempted sequences wait with all others", "see preemptions, which it counts"
    ),
    "sequences_max": Unavailable("vLLM does not publish max_num_seqs", "none with vLLM"),
    **dict.fromkeys(
        ("kv_blocks_used", "kv_blocks_free", "kv_blocks_max", "kv_block_tokens"), _NO_CACHE_CONFIG
    ),
    "kv_reused_blocks": _IN_TOKENS,
    "kv_missed_blocks": _IN_TOKENS,
    "lora_adapters": Unavailable(
        "the server has no vllm:lora_requests_info, or several models, which it does not name",
        "start vLLM with --enable-lora, and serve one model per server",
    ),
    "draft_tokens": Unavailable("the server does not speculate", "set --speculative-config"),
    "accepted_draft_tokens": Unavailable(
        "the server does not speculate", "set --speculative-config"
    ),
    "memory_gpu": _NO_MEMORY,
    "memory_cpu": _NO_MEMORY,
    "memory_pinned": _NO_MEMORY,
    **dict.fromkeys(("max_gap", *TAP_SIGNALS), NEEDS_TAP),
}
"""Reasons and fixes for signals that vLLM lacks, always or sometimes."""


class VllmSource(ExpositionSource):
    """Reads one vLLM server at ``url``."""

    backend = BACKEND
    engine = "vLLM"
    enable = STATS
    unavailable = UNAVAILABLE

    def __init__(self, url: str, *, limits: FetchLimits | None = None, name: str = "vllm") -> None:
        super().__init__(url, vllm_metrics.FAMILIES, limits, name)

    async def read_state(self, parts: Parts) -> bool | None:
        """Read health and version."""
        ready, version = await asyncio.gather(
            attempt(parts, "health", self.is_healthy()),
            attempt(parts, "version", self.read_version()),
        )
        self._version = version or self._version
        return ready

    def interpret(
        self, metrics: FamiliesByModel, infos: Sequence[ModelInfo]
    ) -> Iterable[Measurement | Missing]:
        """Yield the measurements of these models."""
        return vllm_metrics.interpret(metrics, infos)
