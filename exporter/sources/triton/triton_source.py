"""Read one Triton server: its metrics, and its HTTP API for their interpretation.

Every part is read on its own.  Without the metrics the statistics API still counts requests;
without the statistics frozen counters may remain undetected; without the HTTP API backends are
unknown and Triton's counters are not used.  Errors are reported by part and affect only the signals
that depend on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, urlsplit, urlunsplit

from exporter.samples import Model, Snapshot, SourceError
from exporter.sources.exposition.by_model import MODEL_LIST_FAMILY, FamiliesByModel
from exporter.sources.exposition.counter_parts import CounterParts
from exporter.sources.exposition.incremental_reader import ExpositionReader
from exporter.sources.exposition.text_parser import ExpositionError
from exporter.sources.fetch import fetch, parse_json
from exporter.sources.http_source import (
    HttpSource,
    Parts,
    attempt,
    duplicate_error,
    model_limit_error,
    raise_if_all_failed,
)
from exporter.sources.triton import (
    model_repository,
    request_metrics,
    statistics_api,
    trtllm_backend,
)
from exporter.sources.triton.interpretation import TritonScrape, interpret
from exporter.sources.triton.model_repository import ModelConfig, RepositoryEntry
from exporter.sources.triton.model_selection import MAX_SHOWN, ModelSelection
from exporter.sources.triton.request_metrics import Tally
from exporter.sources.vllm import vllm_metrics
from promql.http_client import FetchLimits, HttpResponse, public

ENGINE_FAMILIES = trtllm_backend.FAMILIES | vllm_metrics.FAMILIES
FAMILIES = request_metrics.FAMILIES | ENGINE_FAMILIES
LOADED_MODEL_FAMILIES = ENGINE_FAMILIES | {MODEL_LIST_FAMILY}
"""Families whose series end when their model is unloaded; those of failures remain."""

METRICS_PORT = 8002
CONFIG_AGE = 60.0
CONFIGS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class _CachedConfig:
    """A configuration: its versions, when it was read, and the maximum of successes since."""

    config: ModelConfig
    versions: frozenset[str]
    at: float
    ok: float


class TritonSource(HttpSource):
    """Reads one Triton server.

    ``url`` is that of its HTTP API and ``metrics_url`` that of its metrics; one of the two is
    enough.  With only ``url`` the metrics are read from Triton's default, port 8002 of the same
    host.  ``models`` are glob patterns of models to report although they neither stream nor publish
    engine metrics.  Gauges of an engine with active sequences that publishes no iteration for
    ``frozen_after`` seconds are refused.
    """

    def __init__(
        self,
        url: str | None = None,
        metrics_url: str | None = None,
        *,
        models: Sequence[str] = (),
        frozen_after: float = 5.0,
        limits: FetchLimits | None = None,
        name: str = "triton",
    ) -> None:
        if not url and not metrics_url:
            raise ValueError("Triton needs the address of its HTTP API, of its metrics, or both")
        super().__init__(name, url or "", limits)
        self.metrics_url = metrics_url or default_metrics_url(self.url)
        self._metrics_hint = "" if metrics_url else " (the default address of Triton's metrics)"
        self._globs = tuple(models)
        self._frozen_after = frozen_after
        self._configs: dict[str, _CachedConfig] = {}
        self._config_errors: dict[str, str] = {}
        self._index: Sequence[RepositoryEntry] | None = () if self.url else None
        self._names: Mapping[str, str] = {}
        self._engines: dict[Model, trtllm_backend.EngineProgress] = {}
        self._reported: frozenset[Model] = frozenset()
        self._reader = ExpositionReader(FAMILIES)
        self._counter_parts = CounterParts()

    @property
    def where(self) -> str:
        """The addresses that are read, without credentials."""
        return " and ".join(public(url) for url in (self.url, self.metrics_url) if url)

    async def snapshot(self, now: float) -> Snapshot:
        """Read the server once; ``now`` is monotonic, in seconds.

        Raises SourceError if no part could be read.
        """
        parts: Parts = {}
        ready, statistics = await self._read_api(parts, now)
        # Last, so that requests which the statistics have are in the counters too.
        metrics = await attempt(parts, "metrics", self._read_metrics())
        raise_if_all_failed(parts)
        if metrics:
            self._names = metrics.names
        scrape = TritonScrape(
            metrics,
            parts["metrics"],
            statistics_api.tallies(statistics, self._names),
            parts.get("statistics"),
        )
        return await asyncio.to_thread(self._interpreted, scrape, now, ready, parts)

    def _interpreted(
        self, scrape: TritonScrape, now: float, ready: bool | None, parts: Parts
    ) -> Snapshot:
        metrics = scrape.metrics
        selection = ModelSelection(
            names=self._names,
            silent=metrics is None,
            index=self._index,
            configs={name: cached.config for name, cached in self._configs.items()},
            unread=self._config_errors,
            globs=self._globs,
            publishing=metrics.models(*ENGINE_FAMILIES) if metrics else set(),
            counted=(metrics.models(*LOADED_MODEL_FAMILIES) if metrics else set())
            | scrape.statistics.keys(),
            reported_before=self._reported,
        )
        infos = selection.models()
        if metrics:
            parts["series"] = duplicate_error(metrics) or model_limit_error(
                selection.keys(), MAX_SHOWN
            )
        models = [info for info in infos if not info.excluded]
        if metrics:
            self._engines = trtllm_backend.update_progress(metrics, models, self._engines, now)
        measurements, missing = interpret(
            scrape, selection, models, self._engines, now, self._frozen_after
        )
        self._reported = frozenset((info.model, info.version) for info in models)
        return Snapshot(
            source=self.name,
            measurements=measurements,
            missing=missing,
            models=tuple(infos),
            engine_stats_age=(
                {
                    model: now - engine.changed_at
                    for model, engine in self._engines.items()
                    if any(engine.stamp)  # otherwise it has not run an iteration yet
                }
                if metrics
                else {}
            ),
            ready=ready,
            parts=parts,
        )

    async def _read_api(
        self, parts: Parts, now: float
    ) -> tuple[bool | None, Sequence[tuple[Model, Tally]]]:
        if not self.url:
            return None, ()
        ready, index, document = await asyncio.gather(
            attempt(parts, "health", self._read_ready()),
            attempt(parts, "repository", self._read_index()),
            attempt(parts, "statistics", self.get_json("/v2/models/stats")),
        )
        statistics = statistics_api.parse(document)
        if index is not None:
            self._index = index
            await attempt(parts, "configurations", self._read_configs(index, statistics, now))
        return ready, statistics

    async def _read_ready(self) -> bool:
        answer = await self._fetch("GET", self.url + "/v2/health/ready", statuses=(200, 400))
        return answer.status == 200

    async def _read_index(self) -> list[RepositoryEntry]:
        url = self.url + "/v2/repository/index"
        document = parse_json(await self._fetch("POST", url, body=b"{}"), url)
        if not isinstance(document, list):
            raise SourceError("malformed", f"{public(url)} did not answer with a list of models")
        return model_repository.index(document)

    async def _read_configs(
        self,
        index: Sequence[RepositoryEntry],
        statistics: Sequence[tuple[Model, Tally]],
        now: float,
    ) -> None:
        """Read the configurations that are new, old, or of a model that was reloaded."""
        versions: dict[str, frozenset[str]] = {}
        for entry in index:
            if entry.ready:
                versions[entry.name] = versions.get(entry.name, frozenset()) | {entry.version}
        served: dict[str, float] = {}
        for (name, _), tally in statistics_api.tallies(statistics, {}).items():
            served[name] = served.get(name, 0.0) + tally.ok
        self._forget_configs({entry.name for entry in index})
        wanted = [
            name
            for name in sorted(versions, key=lambda name: (name in self._configs, name))
            if self._is_outdated(name, versions[name], served.get(name), now)
        ][:CONFIGS_AT_ONCE]
        results = await asyncio.gather(*map(self._read_config, wanted))
        failures = []
        for name, result in zip(wanted, results, strict=True):
            if isinstance(result, SourceError):
                self._config_errors[name] = str(result)
                failures.append(result)
            else:
                self._config_errors.pop(name, None)
                self._configs[name] = _CachedConfig(
                    result, versions[name], now, served.get(name, 0.0)
                )
        if failures:
            raise failures[0]

    def _forget_configs(self, kept: Collection[str]) -> None:
        self._configs = {name: one for name, one in self._configs.items() if name in kept}
        self._config_errors = {
            name: error for name, error in self._config_errors.items() if name in kept
        }

    def _is_outdated(
        self, name: str, versions: frozenset[str], served: float | None, now: float
    ) -> bool:
        cached = self._configs.get(name)
        if cached is None or cached.versions != versions or now - cached.at > CONFIG_AGE:
            return True
        if served is None:
            return False
        self._configs[name] = replace(cached, ok=max(served, cached.ok))
        # A count that fell is a reload in place, which the index does not show.
        return served < cached.ok

    async def _read_config(self, name: str) -> ModelConfig | SourceError:
        url = f"{self.url}/v2/models/{quote(name, safe='')}/config"
        try:
            found = model_repository.config(await self.get_json(url.removeprefix(self.url)))
        except SourceError as error:
            return error
        return found or SourceError("malformed", f"{public(url)} names no backend")

    async def _read_metrics(self) -> FamiliesByModel:
        try:
            answer = await self._fetch("GET", self.metrics_url)
            return await asyncio.to_thread(self._parse_metrics, answer.body)
        except SourceError as error:
            raise SourceError(error.kind, f"{error}{self._metrics_hint}") from None

    def _parse_metrics(self, body: bytes) -> FamiliesByModel:
        """Parse an exposition; raises SourceError ``empty`` or ``malformed``.

        Triton answers any path of its metrics port but /metrics with 200 and an empty body.
        """
        where = public(self.metrics_url)
        if not body.strip():
            fixed = urlunsplit((*urlsplit(where)[:2], "/metrics", "", ""))
            why = "this is no Triton" if where == fixed else f"Triton's metrics are at {fixed}"
            raise SourceError("empty", f"{where} answered with nothing: {why}")
        try:
            families = self._reader.read(body)
        except ExpositionError as error:
            raise SourceError(
                "malformed", f"{where} did not answer with Prometheus metrics ({error})"
            ) from None
        # Any metric of Triton's: without a loaded model those of requests are absent.
        if b"# TYPE nv_" not in body:
            raise SourceError(
                "malformed",
                f"{where} has no metric nv_*: these are not the metrics of a Triton server",
            )
        return FamiliesByModel(families, self._counter_parts)

    async def _fetch(
        self, method: str, url: str, *, statuses: Sequence[int] = (200,), body: bytes | None = None
    ) -> HttpResponse:
        return await fetch(
            self._opened(), method, url, limits=self._limits, statuses=statuses, body=body
        )


def default_metrics_url(url: str) -> str:
    """Return the default address of Triton's metrics, given that of its HTTP API."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return urlunsplit((parts.scheme, f"{host}:{METRICS_PORT}", "/metrics", "", ""))
