"""Read one SGLang server: its metrics, by served model name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from exporter.samples import Measurement, Missing, ModelInfo
from exporter.sources.exposition.by_model import FamiliesByModel
from exporter.sources.exposition.exposition_source import ExpositionSource
from exporter.sources.sglang import sglang_metrics
from exporter.sources.unavailable import LORA, NEEDS_TAP, OBSERVE, TAP_SIGNALS, Unavailable
from promql.http_client import FetchLimits

ENABLE = "start SGLang with --enable-metrics"
_NO_MEMORY = Unavailable(
    "SGLang publishes no memory in use, only what it allocated", "none with SGLang"
)
_IN_TOKENS = Unavailable("SGLang counts the hits of its prefix cache in tokens", "none with SGLang")
_DRAFTS = Unavailable(
    "SGLang publishes the mean acceptance length, not the number of drafts", "none"
)
UNAVAILABLE: Mapping[str, Unavailable] = {
    "ttft": Unavailable("no streaming request has completed yet", "send a streaming request"),
    "tpot": Unavailable("SGLang publishes no time per output token of single requests", OBSERVE),
    "prefill": Unavailable("SGLang publishes no prefill time of single requests", OBSERVE),
    "decode": Unavailable("SGLang publishes no decode time of single requests", OBSERVE),
    "requests_without_first_token": Unavailable(
        "SGLang does not publish which requests end before their first token", OBSERVE
    ),
    "sequences_decoding": Unavailable(
        "SGLang does not publish prefilling and decoding sequences separately", OBSERVE
    ),
    "sequences_paused": Unavailable("retracted sequences wait in the queue", "see preemptions"),
    "sequences_max": Unavailable(
        "SGLang does not publish max_running_requests", "none with SGLang"
    ),
    **dict.fromkeys(
        ("kv_blocks_used", "kv_blocks_free", "kv_blocks_max", "kv_block_tokens"),
        Unavailable("this release of SGLang does not publish its pages", "upgrade SGLang"),
    ),
    "kv_reused_blocks": _IN_TOKENS,
    "kv_missed_blocks": _IN_TOKENS,
    "draft_tokens": _DRAFTS,
    "accepted_draft_tokens": _DRAFTS,
    "lora_adapters": LORA,
    "memory_gpu": _NO_MEMORY,
    "memory_cpu": _NO_MEMORY,
    "memory_pinned": _NO_MEMORY,
    **dict.fromkeys(("max_gap", *TAP_SIGNALS), NEEDS_TAP),
    **dict.fromkeys(
        ("itl", "itl_normalized", "e2e", "queue", "requests", "input_tokens", "output_tokens"),
        Unavailable("no request has completed yet", "send a request"),
    ),
    "cached_input_tokens": Unavailable("the prefix cache had no hit yet", "none needed"),
    "preemptions": Unavailable("no request has been retracted yet", "none needed"),
}
"""Reasons and fixes for signals that SGLang lacks, always or sometimes."""


class SglangSource(ExpositionSource):
    """Reads one SGLang server at ``url``.

    Its ``/health`` generates a token by default, so it is not requested: a server whose metrics
    respond is up.
    """

    backend = "sglang"
    engine = "SGLang"
    enable = ENABLE
    unavailable = UNAVAILABLE

    def __init__(
        self, url: str, *, limits: FetchLimits | None = None, name: str = "sglang"
    ) -> None:
        super().__init__(url, sglang_metrics.FAMILIES, limits, name)

    def interpret(
        self, metrics: FamiliesByModel, infos: Sequence[ModelInfo]
    ) -> Iterable[Measurement | Missing]:
        """Yield the measurements of these models."""
        return sglang_metrics.interpret(
            FamiliesByModel(sglang_metrics.selected(metrics.families), self._parts), infos
        )
