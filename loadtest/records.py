"""Measurements of one request by its client."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from slos.outcomes import Outcome


@dataclass(slots=True)
class RequestRecord:
    """Times of one request in seconds of a monotonic clock, its outcome and its token counts.

    ``scheduled`` is the planned start, ``sent`` the actual one.  ``chunks`` are the arrivals of
    chunks with text.  ``input_tokens`` and ``output_tokens`` are the server's counts, None without
    any.  The outcome of a planned cancellation is ``client_disconnected``.  A ``measured`` request
    was scheduled in the measured window.
    """

    number: int
    prompt: str
    planned_tokens: int
    scheduled: float
    sent: float = 0.0
    chunks: array[float] = field(default_factory=lambda: array("d"))
    ended: float = 0.0
    outcome: Outcome = "error"
    reason: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    measured: bool = True

    @property
    def lag(self) -> float:
        """How late the request was sent."""
        return self.sent - self.scheduled

    @property
    def ttft(self) -> float | None:
        """Time from the send to the first token."""
        return self.chunks[0] - self.sent if self.chunks else None

    @property
    def gaps(self) -> Sequence[float]:
        """Gaps between consecutive chunks."""
        return [after - before for before, after in pairwise(self.chunks)]

    @property
    def tokens(self) -> int:
        """The server's count of output tokens, else one token for each chunk."""
        return len(self.chunks) if self.output_tokens is None else self.output_tokens

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, of complete responses; 0 for one token.

        None if all of several tokens came in a single chunk.
        """
        if self.outcome != "ok" or not self.chunks:
            return None
        if len(self.chunks) == 1 and self.tokens > 2:
            return None
        return (self.chunks[-1] - self.chunks[0]) / max(1, self.tokens - 1)

    @property
    def e2e(self) -> float:
        """Time from the send to the end of the response."""
        return self.ended - self.sent

    @property
    def matched(self) -> bool | None:
        """Whether a complete response has the planned length; None without the server's count."""
        if self.outcome != "ok" or self.output_tokens is None:
            return None
        return self.output_tokens == self.planned_tokens


_BY_STATUS: Mapping[int, Outcome] = {
    402: "quota",
    408: "timeout",
    429: "quota",
    504: "timeout",
    529: "shed",
}


def outcome_of_status(status: int) -> Outcome:
    """Return the outcome of a request by its HTTP status alone, which is not 200.

    A sidecar also reads headers and text of the response (:mod:`exporter.outcome_rules`).
    """
    return _BY_STATUS.get(status, "invalid" if 400 <= status < 500 else "error")
