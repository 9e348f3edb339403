"""Clients' records of their requests, and the counters expected from them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

Sample = tuple[str, tuple[tuple[str, str], ...]]
"""A metric's name and its labels, sorted."""

BY_STATUS = {408: "timeout", 429: "quota", 499: "cancelled", 504: "timeout"}
QUEUE_FULL = "Exceeds maximum queue size"
"""Triton's text for a request that a full queue refuses."""
BY_GRPC_STATUS = {
    "OK": "ok",
    "DEADLINE_EXCEEDED": "timeout",
    "RESOURCE_EXHAUSTED": "shed",
    "UNAVAILABLE": "error",
    "CANCELLED": "cancelled",
    "INVALID_ARGUMENT": "invalid",
    "NOT_FOUND": "invalid",
    "UNIMPLEMENTED": "invalid",
}


@dataclass(slots=True)
class ClientRecord:
    """One request; times are monotonic seconds of the client.

    ``sent`` is the time just before the last byte of the request, ``arrivals`` the times at which
    chunks with tokens were read, ``tokens`` the count of their tokens.  After a disconnect, tokens
    in the socket are counted as well.  ``late`` are tokens received after the client half-closed
    the connection, if the server aborted the stream because of that.
    """

    model: str
    manner: str
    streaming: bool = True
    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0
    late: int = 0
    outcome: str = ""
    reason: str = ""

    def mark_sent(self) -> None:
        """Set ``sent`` to now."""
        self.sent = time.monotonic()

    def receive(self, now: float, tokens: int = 1) -> None:
        """Record a chunk with tokens."""
        self.arrivals.append(now)
        self.tokens += tokens

    def end(self, outcome: str, reason: str = "") -> ClientRecord:
        """Record outcome and reason."""
        self.outcome, self.reason = outcome, reason
        return self

    @property
    def phase(self) -> str:
        """The phase in which the request ended."""
        if self.outcome == "ok":
            return "complete"
        return "mid_stream" if self.arrivals else "before_first_token"


def of_status(status: int) -> str:
    """Return the outcome of an HTTP status other than success."""
    return BY_STATUS.get(status, "error" if status >= 500 else "invalid")


def counts(every: Iterable[ClientRecord]) -> dict[Sample, float]:
    """Return the expected counters after these requests."""
    found: Counter[Sample] = Counter()
    for seen in every:
        for name, labels, amount in _counts(seen):
            found[name, tuple(sorted({"model": seen.model, **labels}.items()))] += amount
    return {sample: value for sample, value in found.items() if value}


def _counts(seen: ClientRecord) -> Iterator[tuple[str, Mapping[str, str], int]]:
    outcome, phase = {"outcome": seen.outcome}, {"phase": seen.phase}
    yield "llm_requests_total", outcome, 1
    if seen.outcome != "ok":
        yield "llm_request_failures_total", {**outcome, "reason": seen.reason.lower()}, 1
    yield "llm_tokens_total", {"direction": "output"}, seen.tokens
    if not seen.streaming:
        return
    yield "llm_streams_total", {**outcome, **phase}, 1
    if seen.phase == "before_first_token":
        yield "llm_requests_without_first_token_total", outcome, 1
    if seen.outcome == "client_disconnected":
        yield "llm_streaming_disconnects_total", phase, 1
        yield "llm_partial_response_tokens_total", {}, seen.tokens


def first_tokens(every: Iterable[ClientRecord]) -> list[float]:
    """Return the times to first token of streams, in seconds."""
    return [seen.arrivals[0] - seen.sent for seen in every if seen.streaming and seen.arrivals]


def gaps(every: Iterable[ClientRecord]) -> list[float]:
    """Return the gaps between chunks with tokens, in seconds."""
    return [
        after - before
        for seen in every
        if seen.streaming
        for before, after in pairwise(seen.arrivals)
    ]
