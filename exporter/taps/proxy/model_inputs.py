"""Discover the input by which each model of a Triton returns engine timing."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import quote

from exporter.protocol.injection import INPUTS

MAX_MODELS = 256
MAX_BYTES = 4 * 1024 * 1024
SECONDS = 5.0
REFRESH_SECONDS = 300.0
"""Time between queries of a model's configuration: a reload may change its inputs."""
RETRY_SECONDS = 30.0
"""The same for a model without a known input: it may be loading."""


class ModelInputs:
    """Caches the timing input of each model; requests never wait for it.

    The first request for a model starts the query and is forwarded unchanged.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        server_name: str = "",
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._server_name = server_name
        self._known: dict[str, tuple[str, float]] = {}
        self._queries: set[asyncio.Task[None]] = set()

    def input_of(self, model: str) -> str:
        """Return the name of the input, empty if there is none or it is not known yet."""
        name, due = self._known.get(model, ("", 0.0))
        now = asyncio.get_running_loop().time()
        if now >= due and (model in self._known or self._make_room()):
            self._known[model] = name, now + RETRY_SECONDS
            self._start(self._query(model))
        return name

    def _make_room(self) -> bool:
        """Evict a model without an input if needed, as clients can invent names of models.

        Return whether there is room; models with an input stay.
        """
        if len(self._known) >= MAX_MODELS:
            evicted = next((model for model, (name, _) in self._known.items() if not name), None)
            if evicted is None:
                return False
            del self._known[evicted]
        return True

    def close(self) -> None:
        """Cancel pending queries."""
        for task in self._queries:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._queries.add(task)
        task.add_done_callback(self._queries.discard)

    async def _query(self, model: str) -> None:
        name = ""
        try:
            async with asyncio.timeout(SECONDS):
                name = input_name(await self._response(model))
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            pass  # no Triton, or not available: a later request repeats the query
        if name and model in self._known:
            self._known[model] = name, asyncio.get_running_loop().time() + REFRESH_SECONDS

    async def _response(self, model: str) -> bytes:
        """Return the response to a query of the model's configuration."""
        tls = self._tls()
        # Without aiohttp, which would add half to the memory of the tap process.
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=tls, server_hostname=self._server_name if tls else None
        )
        try:
            path = f"/v2/models/{quote(model, safe='')}/config"
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {self._host}\r\n\r\n".encode())
            response = bytearray()
            while (part := await reader.read(65536)) and len(response) <= MAX_BYTES:
                response += part
        finally:
            writer.close()
        return bytes(response)


def input_name(response: bytes) -> str:
    """Return the model's input for timing, empty if it has none; raises ValueError."""
    head, _, body = response.partition(b"\r\n\r\n")
    try:
        config = json.loads(body) if head[9:12] == b"200" else None
    except RecursionError:
        raise ValueError("the configuration is nested too deeply") from None
    inputs = config.get("input") if isinstance(config, dict) else None
    given = inputs if isinstance(inputs, list) else ()
    names = [each.get("name") for each in given if isinstance(each, dict)]
    return next((name for name in INPUTS if name in names), "")
