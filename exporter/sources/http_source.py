"""The base class of sources that read one HTTP server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

import aiohttp

from exporter.samples import ModelInfo, SourceError
from exporter.sources import BaseSource
from exporter.sources.exposition.by_model import FamiliesByModel
from exporter.sources.fetch import fetch, parse_json, receive
from promql.http_client import FetchLimits, HttpResponse, new_session, public

T = TypeVar("T")
MAX_VERSION = 40
MAX_MODELS = 256
"""The maximum of reported models of one server; versions count separately."""

Parts = dict[str, SourceError | None]


class HttpSource(BaseSource):
    """Reads one server at ``url``; connections are opened when first needed."""

    def __init__(self, name: str, url: str, limits: FetchLimits | None) -> None:
        self.name = name
        self.url = url.rstrip("/")
        self._limits = limits or FetchLimits()
        self._session: aiohttp.ClientSession | None = None

    @property
    def where(self) -> str:
        """The address that is read, without credentials."""
        return public(self.url)

    async def close(self) -> None:
        """Close the connections; a later snapshot opens new ones."""
        if self._session:
            await self._session.close()
            self._session = None

    async def get(self, path: str, statuses: Collection[int] = (200,)) -> HttpResponse:
        """Get ``path``; raises SourceError."""
        url = self.url + path
        return await fetch(self._opened(), "GET", url, limits=self._limits, statuses=statuses)

    async def get_json(self, path: str) -> object:
        """Get a JSON document; raises SourceError."""
        return parse_json(await self.get(path), self.url + path)

    async def stream_body(
        self, path: str, take: Callable[[bytes], None], statuses: Collection[int] = (200,)
    ) -> int:
        """Stream a body that the server sends only once; raises SourceError."""
        return await receive(
            self._opened(), "GET", self.url + path, take, limits=self._limits, statuses=statuses
        )

    async def is_healthy(self) -> bool:
        """Return whether ``/health`` answers 200, not 503; raises SourceError."""
        return (await self.get("/health", (200, 503))).status == 200

    async def read_version(self) -> str:
        """Read ``/version``; empty if the response names none.  Raises SourceError."""
        document = await self.get_json("/version")
        version = document.get("version") if isinstance(document, dict) else None
        return version[:MAX_VERSION] if isinstance(version, str) else ""

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = new_session()
        return self._session


async def attempt(parts: Parts, name: str, work: Awaitable[T]) -> T | None:
    """Await one part of a snapshot and record its error, or None."""
    try:
        result = await work
    except SourceError as error:
        parts[name] = error
        return None
    parts[name] = None
    return result


def model_info(model: str, backend: str, version: str, ready: bool | None) -> ModelInfo:
    """Describe a model of a server without model versions."""
    reason = "" if ready is not False else "/health answers 503"
    return ModelInfo(
        model, "", f"{backend} {version}".rstrip(), decoupled=True, ready=not reason, reason=reason
    )


def raise_if_all_failed(parts: Parts) -> None:
    """Raise SourceError if no part of a snapshot could be read."""
    failures = [error for error in parts.values() if error]
    if len(failures) == len(parts):
        kinds = {error.kind: str(error) for error in failures}
        raise SourceError(failures[-1].kind, "; ".join(kinds.values()))


def duplicate_error(metrics: FamiliesByModel) -> SourceError | None:
    """Return an error if an exposition has duplicate series, else None."""
    found = metrics.duplicates
    if not found:
        return None
    return SourceError(
        "duplicate",
        f"{len(found)} metrics have a series twice, and its first value is used: {found[0]}",
    )


def model_limit_error(models: Sequence[object], most: int = MAX_MODELS) -> SourceError | None:
    """Return an error if a server has more than ``most`` models, else None."""
    if len(models) <= most:
        return None
    return SourceError(
        "too_many_models", f"the server has {len(models):,} models, and only {most:,} are read"
    )
