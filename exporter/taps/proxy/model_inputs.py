"""Which models of a Triton can be asked for their timing, found out once for each."""

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
ASK_AGAIN = 300.0
"""Seconds after which a model is asked for again: it may have been loaded with other inputs."""
ASK_SOON = 30.0
"""The same for a model of which nothing is known: it may be loading."""


class ModelInputs:
    """Remembers by which input each model can be asked; requests never wait for that.

    The first request for a model starts the question and goes out as it is.
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
        self._asking: set[asyncio.Task[None]] = set()

    def input_of(self, model: str) -> str:
        """Return the input, empty if there is none or nobody knows yet."""
        name, due = self._known.get(model, ("", 0.0))
        now = asyncio.get_running_loop().time()
        if now >= due and (model in self._known or self._has_room()):
            self._known[model] = name, now + ASK_SOON
            self._begin(self._ask(model))
        return name

    def _has_room(self) -> bool:
        """Make room if need be: names that clients invent must not keep out the models there are.

        Those that can be asked stay.
        """
        if len(self._known) >= MAX_MODELS:
            useless = next((model for model, (name, _) in self._known.items() if not name), None)
            if useless is None:
                return False
            del self._known[useless]
        return True

    def close(self) -> None:
        """Ask no more."""
        for task in self._asking:
            task.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, model: str) -> None:
        name = ""
        try:
            async with asyncio.timeout(SECONDS):
                name = _input(await self._config(model))
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            pass  # no Triton, or not now: it is asked again, and requests go out as they are
        if name and model in self._known:
            self._known[model] = name, asyncio.get_running_loop().time() + ASK_AGAIN

    async def _config(self, model: str) -> object:
        tls = self._tls()
        # By hand: loading aiohttp would cost the process of the taps half as much memory again.
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=tls, server_hostname=self._server_name if tls else None
        )
        try:
            path = f"/v2/models/{quote(model, safe='')}/config"
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {self._host}\r\n\r\n".encode())
            answer = bytearray()
            while (part := await reader.read(65536)) and len(answer) <= MAX_BYTES:
                answer += part
        finally:
            writer.close()
        head, _, body = bytes(answer).partition(b"\r\n\r\n")
        return json.loads(body) if head[9:12] == b"200" else None


def _input(config: object) -> str:
    inputs = config.get("input") if isinstance(config, dict) else None
    names = [each.get("name") for each in inputs or () if isinstance(each, dict)]
    return next((name for name in INPUTS if name in names), "")
