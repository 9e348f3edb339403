"""The base class of sources that scrape an engine's ``/metrics``."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence

from exporter.samples import Measurement, Missing, ModelInfo, Snapshot, SourceError
from exporter.sources.exposition.by_model import FamiliesByModel
from exporter.sources.exposition.counter_parts import CounterParts
from exporter.sources.exposition.incremental_reader import ExpositionReader
from exporter.sources.exposition.text_parser import ExpositionError
from exporter.sources.http_source import (
    MAX_MODELS,
    HttpSource,
    Parts,
    attempt,
    duplicate_error,
    model_info,
    model_limit_error,
    raise_if_all_failed,
)
from exporter.sources.unavailable import Unavailable, with_missing_signals
from promql.http_client import FetchLimits


class ExpositionSource(HttpSource):
    """Scrapes one server; the engines of a model are added up.

    ``backend`` and ``engine`` are the engine's name as a label and in messages, ``families`` the
    families to read, ``unavailable`` the reasons for signals that the engine may lack, and
    ``enable`` the option that enables its metrics.
    """

    backend = ""
    engine = ""
    enable = ""
    unavailable: Mapping[str, Unavailable] = {}

    def __init__(self, url: str, families: Collection[str], limits: FetchLimits | None, name: str):
        super().__init__(name, url, limits)
        self._families = frozenset(families)
        self._version = ""
        self._models: Sequence[str] = ()
        self._reader = ExpositionReader(families)
        self._parts = CounterParts()

    @abstractmethod
    def interpret(
        self, metrics: FamiliesByModel, infos: Sequence[ModelInfo]
    ) -> Iterable[Measurement | Missing]:
        """Yield the measurements of these models, and the reason for every refused value."""

    async def read_state(self, parts: Parts) -> bool | None:
        """Read state that the metrics lack; return whether the server is ready, None if unknown."""
        return None

    async def snapshot(self, now: float) -> Snapshot:
        """Read the server once.  Raises SourceError if no part of it could be read."""
        parts: Parts = {}
        ready, metrics = await asyncio.gather(
            self.read_state(parts), attempt(parts, "metrics", self._read_metrics())
        )
        raise_if_all_failed(parts)
        return await asyncio.to_thread(self._interpreted, metrics, ready, parts)

    def _interpreted(
        self, metrics: FamiliesByModel | None, ready: bool | None, parts: Parts
    ) -> Snapshot:
        found: Sequence[Measurement | Missing] = ()
        if metrics:
            names = sorted({name for name, _ in metrics.models(*self._families)})
            parts["series"] = duplicate_error(metrics) or model_limit_error(names)
            self._models = names[:MAX_MODELS]
        infos = tuple(
            model_info(model, self.backend, self._version, ready) for model in self._models
        )
        if metrics:
            found = tuple(self.interpret(metrics, infos))
        measurements, missing = with_missing_signals(
            found,
            ((model, "") for model in self._models),
            lambda model, signal: self._why(signal, parts["metrics"]).missing(signal, model),
        )
        return Snapshot(
            source=self.name,
            measurements=measurements,
            missing=missing,
            models=infos,
            ready=ready,
            parts=parts,
        )

    async def _read_metrics(self) -> FamiliesByModel:
        where = f"{self.where}/metrics"
        body = (await self.get("/metrics")).body
        try:
            families = await asyncio.to_thread(self._reader.read, body)
        except ExpositionError as error:
            raise SourceError("malformed", f"{where} are no Prometheus metrics ({error})") from None
        metrics = FamiliesByModel(families, self._parts)
        if not await asyncio.to_thread(metrics.models, *self._families):
            raise SourceError(
                "malformed",
                f"{where} are not {self.engine}'s, or its statistics are off: {self.enable}",
            )
        return metrics

    def _why(self, signal: str, unread: SourceError | None) -> Unavailable:
        if unread:
            return Unavailable(
                f"the metrics could not be read: {unread}", "see the source", unread=True
            )
        reason = f"this release of {self.engine} does not publish it"
        return self.unavailable.get(signal) or Unavailable(reason, f"upgrade {self.engine}")
