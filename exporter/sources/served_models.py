"""Read model names from servers behind taps: /v1/models and Triton's repository index."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Iterator, Sequence

import aiohttp

from exporter.samples import SourceError
from exporter.sources.fetch import fetch, parse_json
from exporter.sources.triton import model_repository
from exporter.taps.tap import ProxySpec, Spec
from promql.client_config import HttpClientConfig
from promql.http_client import FetchLimits, new_session

INTERVAL = 30.0
"""Seconds between two requests to a server, once a server has listed a model."""
INITIAL_INTERVAL = 2.0
"""Seconds between two requests while no server has listed any model."""


class ServedModels:
    """Polls the servers behind taps for the names of their models.

    Servers of a capture tap are reached on this host.  With a ``server_name``, the name in their
    certificate, requests use TLS; ``ca`` is a file of CAs, empty for the system's.
    """

    def __init__(
        self, taps: Iterable[Spec], limits: FetchLimits, *, server_name: str = "", ca: str = ""
    ) -> None:
        self._server_name, self._ca = server_name, ca
        scheme = "https" if server_name else "http"
        self._urls = [f"{scheme}://{address}" for tap in taps for address in _addresses(tap)]
        self._limits = limits
        self._listed: dict[str, frozenset[str]] = {}
        self._generative: dict[str, frozenset[str]] = {}
        self._not_http: set[str] = set()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL if any(self._listed.values()) else INITIAL_INTERVAL)
            await self.refresh()

    async def refresh(self) -> None:
        """Poll every server once; the names of an unreachable server are kept.

        A port that does not answer in HTTP serves gRPC and is not polled again.
        """
        async with new_session(HttpClientConfig(tls=self._tls())) as session:
            for url in self._urls:
                if url not in self._not_http:
                    await self._read_models(session, url)

    def names(self) -> frozenset[str]:
        """Return every name that a server lists."""
        return frozenset().union(*self._listed.values())

    def generative(self) -> frozenset[str]:
        """Return the names at /v1/models, whose models generate text."""
        return frozenset().union(*self._generative.values())

    async def _read_models(self, session: aiohttp.ClientSession, url: str) -> None:
        generative = await self._get(session, "GET", url, "/v1/models")
        if url in self._not_http:
            return
        index = await self._get(session, "POST", url, "/v2/repository/index")
        if generative is not None:
            self._generative[url] = frozenset(_ids(generative))
        if generative is not None or index is not None:
            ready = frozenset(entry.name for entry in model_repository.index(index) if entry.ready)
            self._listed[url] = self._generative.get(url, frozenset()) | ready

    def _tls(self) -> ssl.SSLContext | None:
        if not self._server_name:
            return None
        context = ssl.create_default_context(cafile=self._ca or None)
        # The proxy verifies the name in the certificate; here the chain suffices, because only
        # model names are read.
        context.check_hostname = False
        return context

    async def _get(
        self, session: aiohttp.ClientSession, method: str, url: str, path: str
    ) -> object:
        try:
            answer = await fetch(session, method, url + path, limits=self._limits)
        except SourceError as error:
            if error.kind == "malformed":
                self._not_http.add(url)
            return None
        try:
            return parse_json(answer, url)
        except SourceError:
            return None  # another kind of server


def _addresses(tap: Spec) -> Sequence[str]:
    if isinstance(tap, ProxySpec):
        host = f"[{tap.upstream_host}]" if ":" in tap.upstream_host else tap.upstream_host
        return (f"{host}:{tap.upstream_port}",)
    return [f"127.0.0.1:{port}" for port in tap.ports]


def _ids(document: object) -> Iterator[str]:
    """Yield the ids in a response of /v1/models."""
    data = document.get("data") if isinstance(document, dict) else None
    for entry in data if isinstance(data, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            yield entry["id"]
