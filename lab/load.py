"""Generate streaming load on Triton or an OpenAI-compatible server, and measure at the clients.

Requests arrive as a Poisson process (open loop).  The limit of concurrent requests makes the load a
closed loop if the server is slower, or with an infinite rate.  No prompt and no response is stored.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import aiohttp

from lab.quantiles import nearest_rank

Outcome = Literal[
    "ok",
    "rejected",
    "failed_before_first_token",
    "failed_mid_stream",
    "disconnected_before_first_token",
    "disconnected_mid_stream",
    "timeout",
    "unreachable",
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

Protocol = Literal["generate", "completions", "chat"]

_LOOPBACK_HOSTS = {"127.0.0.1", "localhost", "::1"}
# Time-out of a client that disconnects before its first token: less than a prefill takes.
_EARLY_DISCONNECT_SECONDS = (0.005, 0.03)
_DONE = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The behaviour of the clients; times in seconds, shares from 0 to 1.

    ``rate`` requests per second are sent while fewer than ``concurrency`` are running, for
    ``seconds`` and at most ``requests`` in total; ``request_seconds`` is the time-out of each.
    ``prompt_words`` and ``max_tokens`` are lengths to choose from.  Prompts share prefixes: each
    begins with one of ``prefixes`` texts of ``prefix_words`` words.  ``invalid`` requests have bad
    inputs; ``failing`` requests make the engine fail before or after their first token.  They go to
    Triton's ``generate_stream``, or to the completions or chat completions of an OpenAI-compatible
    server.
    """

    rate: float = 2.5
    concurrency: int = 64
    seconds: float = 60.0
    requests: int = 10_000
    request_seconds: float = 60.0
    model: str = "tensorrt_llm"
    protocol: Protocol = "generate"
    prompt_words: tuple[int, ...] = (40, 120, 300, 700)
    max_tokens: tuple[int, ...] = (16, 60, 120, 240)
    prefixes: int = 4
    prefix_words: int = 32
    disconnect_before_first_token: float = 0.03
    disconnect_mid_stream: float = 0.08
    invalid: float = 0.02
    failing: float = 0.01
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Nearest-rank quantiles in seconds, and the number of observations."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """Client-side results: ended requests by outcome, times to first token, gaps between tokens.

    ``rejected`` requests failed at the server, ``failed`` ones in the model or the engine.  Each
    chunk of text counts as one token; the server must not merge tokens.  Quantiles are None
    without observations.
    """

    outcomes: Mapping[Outcome, int]
    tokens: int
    ttft: Quantiles | None
    gap: Quantiles | None

    @property
    def requests(self) -> int:
        """The number of ended requests."""
        return sum(self.outcomes.values())


@dataclass(frozen=True, slots=True)
class _LoadApi:
    """Path, request body and event text of an API."""

    path: str
    prompt: Callable[[str, str], dict[str, object]]
    text: Callable[[Mapping[str, Any]], str | None]


def _choice(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the event's choice, empty for usage events."""
    choices = event["choices"]
    return choices[0] if choices else {}


_APIS: Mapping[Protocol, _LoadApi] = {
    "generate": _LoadApi(
        path="/v2/models/{model}/generate_stream",
        prompt=lambda _, text: {"text_input": text},
        text=lambda event: event.get("text_output"),
    ),
    "completions": _LoadApi(
        path="/v1/completions",
        prompt=lambda model, text: {"model": model, "prompt": text},
        text=lambda event: _choice(event).get("text"),
    ),
    "chat": _LoadApi(
        path="/v1/chat/completions",
        prompt=lambda model, text: {
            "model": model,
            "messages": [{"role": "user", "content": text}],
        },
        text=lambda event: _choice(event).get("delta", {}).get("content"),
    ),
}


@dataclass(frozen=True, slots=True)
class _ClientPlan:
    """One client: request body, tokens until it disconnects, first-token time-out in seconds."""

    body: dict[str, object]
    tokens: int | None = None
    first_token_timeout: float | None = None


class Load:
    """Load on one server; raises ValueError unless it is on this machine.

    ``stop`` and ``summary`` are thread-safe.
    """

    def __init__(self, url: str, settings: LoadSettings) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname not in _LOOPBACK_HOSTS:
            raise ValueError(
                f"{url}: load is allowed only on http://127.0.0.1 and http://localhost"
            )
        self._api = _APIS[settings.protocol]
        self._url = url.rstrip("/") + self._api.path.format(model=settings.model)
        self._settings = settings
        self._random = random.Random(settings.seed)
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outcomes: Counter[Outcome] = Counter()
        self._ttft, self._gaps, self._tokens = array("d"), array("d"), 0

    async def run(self) -> LoadSummary:
        """Run until the end or :meth:`stop`, which cancels running requests uncounted."""
        self._loop = asyncio.get_running_loop()
        connector = aiohttp.TCPConnector(limit=0)
        no_limit = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=no_limit) as session,
            asyncio.TaskGroup() as group,
        ):
            stop = group.create_task(self._stop.wait())
            clients: set[asyncio.Task[None]] = set()
            end = time.monotonic() + self._settings.seconds
            for _ in range(self._settings.requests):
                pause = self._random.expovariate(self._settings.rate)
                await asyncio.wait({stop}, timeout=max(0.0, min(pause, end - time.monotonic())))
                while len(clients) >= self._settings.concurrency and not stop.done():
                    await asyncio.wait({stop, *clients}, return_when=asyncio.FIRST_COMPLETED)
                if stop.done() or time.monotonic() >= end:
                    break
                client = group.create_task(self._client(session, self._plan()))
                clients.add(client)
                client.add_done_callback(clients.discard)
            while clients and not stop.done():
                await asyncio.wait({stop, *clients}, return_when=asyncio.FIRST_COMPLETED)
            for task in (stop, *clients):
                task.cancel()
        return self.summary()

    def stop(self) -> None:
        """Stop the load and cancel running requests."""
        if self._loop is None:
            self._stop.set()
            return
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stop.set)

    def summary(self) -> LoadSummary:
        """Return the results of the requests that have ended so far."""
        return LoadSummary(
            outcomes={outcome: self._outcomes[outcome] for outcome in OUTCOMES},
            tokens=self._tokens,
            ttft=_quantiles(self._ttft),
            gap=_quantiles(self._gaps),
        )

    def _plan(self) -> _ClientPlan:
        pick, settings = self._random, self._settings
        max_tokens = pick.choice(settings.max_tokens)
        body: dict[str, object] = {
            **self._api.prompt(settings.model, self._prompt(pick.choice(settings.prompt_words))),
            "max_tokens": max_tokens,
            "stream": True,
        }
        shares = {
            "disconnects early": settings.disconnect_before_first_token,
            "disconnects": settings.disconnect_mid_stream,
            "invalid": settings.invalid,
            "fails": settings.failing,
        }
        completes = 1 - sum(shares.values())
        match pick.choices([*shares, "completes"], [*shares.values(), completes])[0]:
            case "disconnects early":
                return _ClientPlan(
                    body, first_token_timeout=pick.uniform(*_EARLY_DISCONNECT_SECONDS)
                )
            case "disconnects":
                return _ClientPlan(body, tokens=pick.randint(1, max(1, max_tokens // 2)))
            case "invalid":
                return _ClientPlan(body | {"max_tokens": "many"})
            case "fails":
                return _ClientPlan(body | {"fail_after": pick.choice((0, max_tokens // 2))})
        return _ClientPlan(body)

    def _prompt(self, words: int) -> str:
        settings, pick = self._settings, self._random
        common, own = f"p{pick.randrange(max(1, settings.prefixes))}", f"r{pick.getrandbits(48)}"
        shared = min(words, settings.prefix_words)
        return " ".join([f"{common}.{n}" for n in range(shared)] + [own] * (words - shared))

    async def _client(self, session: aiohttp.ClientSession, plan: _ClientPlan) -> None:
        seen = array("d", [time.perf_counter()])
        try:
            async with asyncio.timeout(plan.first_token_timeout or self._settings.request_seconds):
                outcome = await self._stream(session, plan, seen)
        except TimeoutError:
            if not plan.first_token_timeout:
                outcome = "timeout"
            elif len(seen) > 1:
                outcome = "disconnected_mid_stream"
            else:
                outcome = "disconnected_before_first_token"
        except aiohttp.ClientConnectorError:
            outcome = "unreachable"
        except (aiohttp.ClientError, ValueError):
            outcome = _failure(seen)
        self._outcomes[outcome] += 1
        self._tokens += len(seen) - 1
        if len(seen) > 1:
            self._ttft.append(seen[1] - seen[0])
        self._gaps.extend(after - before for before, after in pairwise(seen[1:]))

    async def _stream(
        self, session: aiohttp.ClientSession, plan: _ClientPlan, seen: array[float]
    ) -> Outcome:
        """Send the request and record the arrival time of each token."""
        async with session.post(self._url, json=plan.body) as response:
            # The server rejects a request in plain JSON; a model's error is an event of the stream.
            if response.status != 200 and response.content_type == "application/json":
                return "rejected"
            async for line in response.content:
                if not line.startswith(b"data:") or line.startswith(_DONE):
                    continue
                event = json.loads(line[5:])
                if "error" in event:
                    return _failure(seen)
                if self._api.text(event):
                    seen.append(time.perf_counter())
                if len(seen) - 1 == plan.tokens:
                    response.close()
                    return "disconnected_mid_stream"
            return "ok" if len(seen) > 1 else _failure(seen)


@contextmanager
def running_load(load: Load) -> Iterator[Load]:
    """Run a load in a background thread, stopped when the scope exits."""
    thread = threading.Thread(target=lambda: asyncio.run(load.run()), name="load", daemon=True)
    thread.start()
    try:
        yield load
    finally:
        load.stop()
        thread.join()


def _failure(seen: array[float]) -> Outcome:
    return "failed_mid_stream" if len(seen) > 1 else "failed_before_first_token"


def _quantiles(seconds: array[float]) -> Quantiles | None:
    ordered = sorted(seconds[:])
    if not ordered:
        return None
    return Quantiles(len(ordered), *(nearest_rank(q, ordered) for q in (0.5, 0.95, 0.99, 1.0)))
