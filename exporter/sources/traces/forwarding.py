"""Forward export requests unchanged to a collector.

Senders do not wait: requests are queued here, and dropped when the queue is full.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic

import aiohttp

from exporter.samples import SourceError
from promql.client_config import DIRECT
from promql.http_client import new_session, public

RETRYABLE = frozenset((429, 502, 503, 504))
"""Statuses after which a sender may retry (OTLP specification 1.5, OTLP/HTTP)."""

MIN_PAUSE, MAX_PAUSE = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    body: bytes
    headers: Mapping[str, str]
    since: float


class Forwarder:
    """Sends the requests offered to it to ``url``, one at a time and in order.

    At most ``max_bytes`` are queued, none for longer than ``give_up_after`` seconds.
    """

    def __init__(
        self, url: str, *, timeout: float, max_bytes: int, give_up_after: float = 300.0
    ) -> None:
        self._url = url
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._max_bytes = max_bytes
        self._give_up_after = give_up_after
        self._queue: deque[_Waiting] = deque()
        self._bytes = 0
        self._dropped = 0
        self._failure: SourceError | None = None
        self._offered = asyncio.Event()

    @property
    def where(self) -> str:
        """The collector's address, without credentials."""
        return public(self._url)

    def offer(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Queue a body, or drop it if the queue is full; never waits."""
        if self._bytes + len(body) > self._max_bytes:
            self._dropped += 1
            return
        self._queue.append(_Waiting(body, headers, monotonic()))
        self._bytes += len(body)
        self._offered.set()

    def problem(self) -> SourceError | None:
        """Return dropped requests since the last call, or the current failure, as an error."""
        dropped, self._dropped = self._dropped, 0
        if dropped:
            why = f"; {self._failure}" if self._failure else ""
            return SourceError("dropped", f"export requests dropped: {dropped}{why}")
        return self._failure

    async def run(self) -> None:
        """Send until cancelled."""
        pause = MIN_PAUSE
        async with new_session(DIRECT) as session:
            while True:
                while not self._queue:
                    self._offered.clear()
                    await self._offered.wait()
                waiting = self._queue[0]
                again, self._failure = await self._send(session, waiting)
                late = monotonic() - waiting.since > self._give_up_after
                if again and not late:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, MAX_PAUSE)
                    continue
                self._queue.popleft()
                self._bytes -= len(waiting.body)
                self._dropped += self._failure is not None
                pause = pause if again else MIN_PAUSE

    async def _send(
        self, session: aiohttp.ClientSession, waiting: _Waiting
    ) -> tuple[bool, SourceError | None]:
        """Send one request; return whether to retry, and the error."""
        try:
            async with session.post(
                self._url,
                data=waiting.body,
                headers=waiting.headers,
                allow_redirects=False,
                timeout=self._timeout,
            ) as response:
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            what = f"{self.where} cannot be reached ({type(error).__name__})"
            return True, SourceError("unreachable", what)
        if 200 <= status < 300:
            return False, None
        return status in RETRYABLE, SourceError("status", f"{self.where} answered {status}")
