"""Probe models with periodic requests for one token.

Probes are off by default: the server's counters and histograms include them, so request signals of
a probed model are withheld.  ``tokenslo_probe_requests_total`` counts the probes.  Every probe
carries the id of this process, in ``id`` for Triton and in ``user`` for others, so taps and traces
exclude it.  Responses are never shown or logged.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Literal
from urllib.parse import quote

import aiohttp

from exporter.families import MetricFamily, own_family
from exporter.log import ProblemLog
from exporter.samples import Measurement, Missing, Snapshot, SourceError
from exporter.sources.fetch import fetch, parse_json
from promql.http_client import FetchLimits, HttpResponse, new_session, public

ID = f"tokenslo-probe-{secrets.token_hex(8)}"
"""The id of this process' probes; random, so that clients cannot imitate it."""
MAX_BYTES = 64 * 1024
MAX_FAILURES = 3
"""Consecutive failures until a model is not ready: one may be a restart or a lost packet."""
_EVERY_STATUS = range(100, 600)
_BUSY_STATUSES = (429, 503)

# Input names of Triton's LLM backends: text or token ids, and the maximum of output tokens.
_INPUTS: Mapping[str, object] = {
    "text_input": "Hi",
    "PROMPT": "Hi",
    "prompt": "Hi",
    "input_ids": [1],
    "input_lengths": 1,
    "max_tokens": 1,
    "sampling_param_max_tokens": 1,
    "request_output_len": 1,
    "stream": True,
    "streaming": True,
    "bad_words": "",
    "stop_words": "",
    "end_id": 2,
    "pad_id": 2,
}

COUNTED = frozenset(
    {
        *("ttft", "tpot", "e2e", "queue", "prefill", "decode", "max_gap"),
        *("requests", "request_failures", "requests_without_first_token"),
        *("input_tokens", "cached_input_tokens", "output_tokens"),
    }
)
"""Signals that include probes; a single token has no gap, and gauges show it briefly."""
PER_REQUEST_SOURCES = ("taps", "traces")
"""Sources that observe single requests and exclude probes themselves."""
_WITHHELD = "the server counts the sidecar's own probes among the requests of clients"
_USE_TAP = "send clients through a proxy tap, or capture their traffic; or omit --probe"

Result = Literal["ok", "busy", "failed"]
SendProbe = Callable[[aiohttp.ClientSession, str, FetchLimits], Awaitable[None]]
"""Sends one probe to a model; raises SourceError for a failure or an invalid response."""


@dataclass(frozen=True, slots=True)
class ProbeState:
    """The result of the latest probes; ``ready`` is None if unknown, ``reason`` explains it."""

    ready: bool | None
    reason: str


class Probe:
    """Probes one model, one request at a time and never more often than ``interval`` seconds.

    ``produced_since`` returns whether an engine produced anything after a time: a request that is
    rejected or times out is then no failure, because the server is overloaded, not stuck.
    """

    def __init__(
        self,
        model: str,
        send: SendProbe,
        *,
        interval: float,
        timeout: float,
        produced_since: Callable[[float], bool],
    ) -> None:
        self.model = model
        self.state = ProbeState(None, "no response yet")
        self._send = send
        self._interval = interval
        self._limits = FetchLimits(timeout, MAX_BYTES)
        self._produced_since = produced_since
        self._problem_log = ProblemLog()
        self._failures = 0
        self._results = Counter[Result]()
        self._last: Result | None = None
        self._seconds: float | None = None

    async def run(self) -> None:
        """Probe until cancelled."""
        async with new_session() as session:
            while True:
                began = monotonic()
                await self.send(session)
                await asyncio.sleep(max(0.0, began + self._interval - monotonic()))

    async def send(self, session: aiohttp.ClientSession) -> None:
        """Send one probe and record its result."""
        began, what = monotonic(), f"probing {self.model}"
        try:
            await self._send(session, self.model, self._limits)
        except SourceError as error:
            now = monotonic()
            self._problem_log.failed(what, str(error), now)
            if error.kind == "impossible":
                self.state = ProbeState(None, str(error))
                return
            busy = error.kind in ("timeout", "busy") and self._produced_since(began)
            self._record_result("busy" if busy else "failed", str(error))
        else:
            now = monotonic()
            self._seconds = now - began
            self._problem_log.recovered(what, now)
            self._record_result("ok", "")

    def success(self) -> Iterator[tuple[dict[str, str], float]]:
        """Yield 1 if the last probe succeeded, else 0."""
        if self._last:
            yield {"model": self.model}, float(self._last == "ok")

    def seconds(self) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the duration of the last successful probe in seconds."""
        if self._seconds is not None:
            yield {"model": self.model}, self._seconds

    def results(self) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the number of probes by result."""
        for result, count in sorted(self._results.items()):
            yield {"model": self.model, "result": result}, count

    def _record_result(self, result: Result, reason: str) -> None:
        self._last = result
        self._results[result] += 1
        self._failures = self._failures + 1 if result == "failed" else 0
        if result == "busy":
            reason = f"{reason}, but decoding progresses: the server is busy"
        times = f" ({self._failures} in a row)" if self._failures > 1 else ""
        self.state = ProbeState(self._failures < MAX_FAILURES, reason + times)


def without_probes(snapshot: Snapshot, probed: Collection[str]) -> Snapshot:
    """Mark request signals of probed models as unavailable."""
    if snapshot.source in PER_REQUEST_SOURCES or not probed:
        return snapshot
    kept: list[Measurement] = []
    missing = list(snapshot.missing)
    for one in snapshot.measurements:
        if one.model in probed and one.signal in COUNTED:
            missing.append(Missing(one.signal, one.model, one.version, _WITHHELD, _USE_TAP))
        else:
            kept.append(one)
    return replace(snapshot, measurements=tuple(kept), missing=tuple(missing))


def families(probes: Sequence[Probe]) -> tuple[MetricFamily, ...]:
    """Return the metric families of all probes."""
    return (
        own_family("tokenslo_probe_success", [one for p in probes for one in p.success()]),
        own_family("tokenslo_probe_duration_seconds", [one for p in probes for one in p.seconds()]),
        own_family("tokenslo_probe_requests", [one for p in probes for one in p.results()]),
    )


def of_triton(url: str) -> SendProbe:
    """Return a probe of Triton: ``generate``, or ``generate_stream`` for decoupled models."""

    async def send(session: aiohttp.ClientSession, model: str, limits: FetchLimits) -> None:
        where = f"{url.rstrip('/')}/v2/models/{quote(model, safe='')}"
        answer = await _fetch(session, "GET", f"{where}/config", limits)
        body, streams = _triton_request(parse_json(answer, where), model)
        verb = "generate_stream" if streams else "generate"
        answer = await _fetch(session, "POST", f"{where}/{verb}", limits, body)
        events = _events(answer) if streams else [answer.body]
        _check([_json(event) for event in events], "", where)

    return send


def of_openai(url: str) -> SendProbe:
    """Return a probe of servers with OpenAI's completions API."""

    async def send(session: aiohttp.ClientSession, model: str, limits: FetchLimits) -> None:
        where = f"{url.rstrip('/')}/v1/completions"
        request = {"model": model, "prompt": "Hi", "max_tokens": 1, "user": ID}
        answer = await _fetch(session, "POST", where, limits, json.dumps(request).encode())
        _check([_json(answer.body)], "choices", where)

    return send


async def _fetch(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    limits: FetchLimits,
    body: bytes | None = None,
) -> HttpResponse:
    answer = await fetch(session, method, url, limits=limits, statuses=_EVERY_STATUS, body=body)
    if answer.status != 200:
        kind = "busy" if answer.status in _BUSY_STATUSES else "status"
        raise SourceError(kind, f"{public(url)} answered {answer.status}")
    return answer


def _triton_request(config: object, model: str) -> tuple[bytes, bool]:
    """Return the smallest request that the model accepts, and whether it streams."""
    document = config if isinstance(config, dict) else {}
    policy = document.get("model_transaction_policy")
    streams = isinstance(policy, dict) and policy.get("decoupled") is True
    request: dict[str, object] = {"id": ID, "max_tokens": 1}
    inputs = document.get("input")
    needed = []
    for tensor in inputs if isinstance(inputs, list) else ():
        name = str(tensor.get("name", "")) if isinstance(tensor, dict) else ""
        if name in _INPUTS:
            request[name] = streams if name in ("stream", "streaming") else _INPUTS[name]
        elif name and tensor.get("optional") is not True:
            needed.append(name)
    if needed:
        raise SourceError(
            "impossible", f"{model} cannot be probed: it requires the unsupported input {needed[0]}"
        )
    return json.dumps(request).encode(), streams


def _events(answer: HttpResponse) -> list[bytes]:
    lines = answer.body.splitlines()
    return [line.removeprefix(b"data:") for line in lines if line.startswith(b"data:")]


def _json(text: bytes) -> object:
    with suppress(ValueError, RecursionError):
        value: object = json.loads(text)
        return value
    return None


def _check(answers: Sequence[object], wanted: str, where: str) -> None:
    """Raise SourceError for an error or an empty response."""
    good = [one for one in answers if isinstance(one, dict) and wanted in ("", *one)]
    if not good or len(good) < len(answers) or any("error" in one for one in good):
        raise SourceError("error", f"{public(where)} answered with an error, or without a token")
