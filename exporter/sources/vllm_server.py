"""One vLLM server as a source: its metrics, by the names under which it serves its models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from exporter.exposition_reader import ExpositionReader
from exporter.reader import ExpositionError
from exporter.readings import Missing, Reading, SourceError, Survey
from exporter.sources import vllm
from exporter.sources.by_model import ByModel
from exporter.sources.counter_parts import CounterParts
from exporter.sources.fetch import Limits
from exporter.sources.gaps import OBSERVE, OBSERVED, UNSEEN, Gap
from exporter.sources.http_source import (
    MAX_MODELS,
    HttpSource,
    Parts,
    attempt,
    check_any,
    duplicates,
    served,
    too_many,
)
from slos.signals import MAIN_SIGNALS

BACKEND = "vllm"

STATS = "start vLLM without --disable-log-stats"
_NO_CACHE_CONFIG = Gap(
    "vllm:cache_config_info has no num_gpu_blocks, or the server has several models",
    "upgrade vLLM, or serve one model per server",
)
_NO_MEMORY = Gap("vLLM publishes no memory of its engine", "none with vLLM")
_IN_TOKENS = Gap("vLLM counts the hits of its prefix cache in tokens, not blocks", "none with vLLM")
GAPS: Mapping[str, Gap] = {
    "requests_without_first_token": Gap(
        "this release does not count requests that it refuses, and none tells which requests end "
        "before their first token",
        OBSERVE,
    ),
    "sequences_decoding": Gap(
        "vLLM does not tell prefilling sequences from decoding ones", OBSERVE
    ),
    "sequences_paused": Gap(
        "vLLM's preempted sequences wait with all others", "see preemptions, which it counts"
    ),
    "sequences_max": Gap("vLLM does not publish max_num_seqs", "none with vLLM"),
    **dict.fromkeys(
        ("kv_blocks_used", "kv_blocks_free", "kv_blocks_max", "kv_block_tokens"), _NO_CACHE_CONFIG
    ),
    "kv_reused_blocks": _IN_TOKENS,
    "kv_missed_blocks": _IN_TOKENS,
    "draft_tokens": Gap("the server does not speculate", "set --speculative-config"),
    "accepted_draft_tokens": Gap("the server does not speculate", "set --speculative-config"),
    "memory_gpu": _NO_MEMORY,
    "memory_cpu": _NO_MEMORY,
    "memory_pinned": _NO_MEMORY,
    **dict.fromkeys(("max_gap", *OBSERVED), UNSEEN),
}
"""Signals that vLLM does not have, or not always."""


class VllmSource(HttpSource):
    """Reads one vLLM server at ``url``; the engines of a model are added up."""

    def __init__(self, url: str, *, limits: Limits | None = None, name: str = "vllm") -> None:
        super().__init__(name, url, limits)
        self._version = ""
        self._models: Sequence[str] = ()
        self._reader = ExpositionReader(vllm.FAMILIES)
        self._parts = CounterParts()

    async def survey(self, now: float) -> Survey:
        """Read everything once.  Raises SourceError if nothing at all could be read."""
        parts: Parts = {}
        ready, version, metrics = await asyncio.gather(
            attempt(parts, "health", self.is_healthy()),
            attempt(parts, "version", self.read_version()),
            attempt(parts, "metrics", self._read_metrics()),
        )
        check_any(parts)
        self._version = version or self._version
        found: Sequence[Reading | Missing] = ()
        if metrics:
            names = sorted({name for name, _ in metrics.models(*vllm.FAMILIES)})
            parts["series"] = duplicates(metrics) or too_many(names)
            self._models = names[:MAX_MODELS]
        infos = tuple(served(model, BACKEND, self._version, ready) for model in self._models)
        if metrics:
            found = await asyncio.to_thread(lambda: tuple(vllm.interpret(metrics, infos)))
        readings = tuple(one for one in found if isinstance(one, Reading))
        refused = {(one.model, one.signal): one for one in found if isinstance(one, Missing)}
        return Survey(
            source=self.name,
            readings=readings,
            missing=tuple(self._missing(readings, refused, parts["metrics"])),
            models=infos,
            ready=ready,
            parts=parts,
        )

    async def _read_metrics(self) -> ByModel:
        where = f"{self.where}/metrics"
        body = (await self.get("/metrics")).body
        try:
            families = await asyncio.to_thread(self._reader.read, body)
        except ExpositionError as error:
            raise SourceError("malformed", f"{where} are no Prometheus metrics ({error})") from None
        metrics = ByModel(families, self._parts)
        if not await asyncio.to_thread(metrics.models, *vllm.FAMILIES):
            raise SourceError(
                "malformed", f"{where} are not vLLM's, or its statistics are off: {STATS}"
            )
        return metrics

    def _missing(
        self,
        readings: Sequence[Reading],
        refused: Mapping[tuple[str, str], Missing],
        unread: SourceError | None,
    ) -> Iterator[Missing]:
        given = {(reading.model, reading.signal) for reading in readings}
        for model in self._models:
            for signal in MAIN_SIGNALS:
                if (model, signal) in refused:
                    yield refused[model, signal]
                elif (model, signal) not in given:
                    gap = self._gap(signal, unread)
                    yield Missing(signal, model, "", gap.reason, gap.fix, unread=unread is not None)

    def _gap(self, signal: str, unread: SourceError | None) -> Gap:
        if unread:
            return Gap(f"the metrics could not be read: {unread}", "see the source")
        return GAPS.get(signal) or Gap("this release of vLLM does not publish it", "upgrade vLLM")
