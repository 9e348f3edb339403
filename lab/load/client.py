"""One client of the load: its request, its behaviour, and its retries."""

from __future__ import annotations

import asyncio
import json
import math
import random
import socket
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import aiohttp

from lab.load.settings import LoadSettings, LoadTarget
from lab.load.summary import LoadResults, Outcome
from loadtest.apis import APIS

# Time-out of a client that disconnects before its first token: less than a prefill takes.
_EARLY_DISCONNECT_SECONDS = (0.005, 0.03)
_DONE = b"data: [DONE]"
_RETRIED: frozenset[Outcome] = frozenset(
    ("timeout", "failed_before_first_token", "failed_mid_stream", "unreachable")
)
_TOO_MANY_REQUESTS = 429

# A slow reader's buffers.  The kernel sizes the sender's buffer by segment size and window: with
# those of loopback a server writes 4 MB ahead, more than any stream has; with these, 30 to 100 KB.
_SLOW_RECEIVE_BUFFER = 1  # the kernel's minimum
_SLOW_SEGMENT_BYTES = 256
_SLOW_READ_BUFFER = 2048

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """A client's request and behaviour; times in seconds.

    The client disconnects after ``tokens`` or at ``disconnect_age``, and reads at most
    ``bytes_per_second``.  With ``half_close`` it disconnects in two steps.  It retries once after
    each of ``backoffs``.
    """

    settings: LoadSettings
    path: str
    body: dict[str, object]
    backoffs: tuple[float, ...] = ()
    tokens: int | None = None
    disconnect_age: float | None = None
    bytes_per_second: float | None = None
    half_close: bool = False


def plan_client(settings: LoadSettings, pick: random.Random) -> ClientPlan:
    """Choose a client's request and behaviour."""
    api = APIS[settings.protocol]
    targets = {each: each.share for each in settings.other_targets}
    target = _choose(pick, targets, LoadTarget(1.0, settings.model))
    max_tokens = pick.choice(settings.max_tokens)
    body: dict[str, object] = {
        **api.prompt(target.model, _prompt(settings, target, pick)),
        "max_tokens": max_tokens,
        "stream": True,
    }
    if settings.include_usage:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    backoffs = tuple(
        settings.backoff_seconds * 2**retry * pick.uniform(0.5, 1)
        for retry in range(settings.retries)
    )
    plan = partial(ClientPlan, settings, api.path(target.model, target.version))
    match _choose(pick, settings.shares, "completes"):
        case "disconnect_before_first_token":
            return plan(body, disconnect_age=pick.uniform(*_EARLY_DISCONNECT_SECONDS))
        case "disconnect_mid_stream":
            return plan(body, tokens=pick.randint(1, max(1, max_tokens // 2)))
        case "half_close_mid_stream":
            tokens = pick.randint(1, max(1, max_tokens // 4))
            return plan(body, tokens=tokens, half_close=True)
        case "disconnect_by_age":
            return plan(body, disconnect_age=pick.uniform(*settings.disconnect_ages))
        case "slow_readers":
            return plan(body, backoffs, bytes_per_second=settings.reader_bytes_per_second)
        case "invalid":
            return plan(body | {"max_tokens": "many"})
        case "failing":
            return plan(body | {"fail_after": pick.choice((0, max_tokens // 2))}, backoffs)
        case "failing_mid_stream":
            return plan(body | {"fail_after": pick.randint(1, max(1, max_tokens // 2))}, backoffs)
    return plan(body, backoffs)


def open_session(*, slow: bool = False) -> aiohttp.ClientSession:
    """Return a session without limits, or one of slow readers, with small buffers."""
    options: dict[str, Any] = {}
    if slow:
        options["read_bufsize"] = _SLOW_READ_BUFFER
    connector = aiohttp.TCPConnector(limit=0, socket_factory=_slow_socket if slow else None)
    timeout = aiohttp.ClientTimeout(total=None)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, **options)


async def run_client(
    http: aiohttp.ClientSession, url: str, plan: ClientPlan, results: LoadResults
) -> None:
    """Send the client's request, and its retries until one ends without a reason to retry."""
    for number, backoff in enumerate((*plan.backoffs, None)):
        attempt = _Attempt(plan)
        outcome = await attempt.run(http, url)
        results.record(outcome, attempt.times, retry=number > 0)
        if backoff is None or not (outcome in _RETRIED or attempt.too_many_requests):
            return
        await asyncio.sleep(backoff)


@dataclass(slots=True)
class _Attempt:
    """One request of a client; ``times`` are those of its start and of each token."""

    plan: ClientPlan
    times: array[float] = field(default_factory=lambda: array("d", [time.perf_counter()]))
    too_many_requests: bool = False

    async def run(self, http: aiohttp.ClientSession, url: str) -> Outcome:
        """Send the request and return its outcome."""
        plan = self.plan
        limit = asyncio.timeout(plan.disconnect_age or plan.settings.request_seconds)
        try:
            async with limit:
                return await self._stream(http, url)
        except TimeoutError:
            if not (plan.disconnect_age and limit.expired()):
                return "timeout"
            return self._by_phase("disconnected_before_first_token", "disconnected_mid_stream")
        except aiohttp.ClientConnectorError:
            return "unreachable"
        except (aiohttp.ClientError, ValueError):
            return self._failure()

    async def _stream(self, http: aiohttp.ClientSession, url: str) -> Outcome:
        """Read the stream and record the arrival time of each token."""
        plan, api = self.plan, APIS[self.plan.settings.protocol]
        idle = plan.settings.idle_seconds
        timeout = aiohttp.ClientTimeout(total=None, sock_read=idle if idle < math.inf else None)
        async with http.post(url + plan.path, json=plan.body, timeout=timeout) as response:
            self.too_many_requests = response.status == _TOO_MANY_REQUESTS
            # The server rejects a request in plain JSON; a model's error is an event of the stream.
            if self.too_many_requests or (
                response.status != 200 and response.content_type == "application/json"
            ):
                return "rejected"
            async for line in response.content:
                if plan.bytes_per_second:
                    await asyncio.sleep(len(line) / plan.bytes_per_second)
                if not line.startswith(b"data:") or line.startswith(_DONE):
                    continue
                event = json.loads(line[5:])
                if "error" in event:
                    return self._failure()
                if api.text(event):
                    self.times.append(time.perf_counter())
                if len(self.times) - 1 == plan.tokens:
                    if plan.half_close:
                        await self._half_close(response)
                    response.close()
                    return "disconnected_mid_stream"
            return "ok" if len(self.times) > 1 else self._failure()

    async def _half_close(self, response: aiohttp.ClientResponse) -> None:
        """Send FIN and stop reading, so that closing the connection later resets it."""
        connection = response.connection
        if connection and connection.transport:
            connection.transport.pause_reading()
            connection.transport.write_eof()
            await asyncio.sleep(self.plan.settings.half_close_seconds)

    def _failure(self) -> Outcome:
        return self._by_phase("failed_before_first_token", "failed_mid_stream")

    def _by_phase(self, early: Outcome, late: Outcome) -> Outcome:
        return late if len(self.times) > 1 else early


def _slow_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket that receives little ahead of its reader."""
    family, kind, protocol, *_ = address
    slow = socket.socket(family, kind, protocol)
    slow.setblocking(False)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_RECEIVE_BUFFER)
    slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SLOW_SEGMENT_BYTES)
    return slow


def _prompt(settings: LoadSettings, target: LoadTarget, pick: random.Random) -> str:
    words = pick.choice(target.prompt_words or settings.prompt_words)
    common, own = f"p{pick.randrange(max(1, settings.prefixes))}", f"r{pick.getrandbits(48)}"
    shared = min(words, settings.prefix_words)
    return " ".join([f"{common}.{n}" for n in range(shared)] + [own] * (words - shared))


def _choose(pick: random.Random, shares: Mapping[T, float], otherwise: T) -> T:
    """Choose a key by its share, or ``otherwise`` with the rest."""
    rest = max(0.0, 1 - sum(shares.values()))
    return pick.choices([*shares, otherwise], [*shares.values(), rest])[0]
