"""Client-side results of a load."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from loadtest.quantiles import nearest_rank

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

    ``rejected`` requests failed at the server or gateway, ``failed`` ones in the model or the
    engine.  ``retries`` of the requests repeated an earlier one.  Each chunk of text counts as one
    token; the server must not merge tokens.  Quantiles are None without observations.
    """

    outcomes: Mapping[Outcome, int]
    tokens: int
    ttft: Quantiles | None
    gap: Quantiles | None
    retries: int = 0

    @property
    def requests(self) -> int:
        """The number of ended requests."""
        return sum(self.outcomes.values())


class LoadResults:
    """Results of the requests that have ended so far."""

    def __init__(self) -> None:
        self._outcomes: Counter[Outcome] = Counter()
        self._ttft, self._gaps = array("d"), array("d")
        self._tokens = self._retries = 0

    def record(self, outcome: Outcome, times: Sequence[float], *, retry: bool) -> None:
        """Record an ended request; ``times`` are those of its start and of each token."""
        self._outcomes[outcome] += 1
        self._retries += retry
        self._tokens += len(times) - 1
        if len(times) > 1:
            self._ttft.append(times[1] - times[0])
        self._gaps.extend(after - before for before, after in pairwise(times[1:]))

    def summary(self) -> LoadSummary:
        """Return the results so far."""
        return LoadSummary(
            outcomes={outcome: self._outcomes[outcome] for outcome in OUTCOMES},
            tokens=self._tokens,
            ttft=_quantiles(self._ttft),
            gap=_quantiles(self._gaps),
            retries=self._retries,
        )


def _quantiles(seconds: array[float]) -> Quantiles | None:
    ordered = sorted(seconds[:])
    if not ordered:
        return None
    return Quantiles(len(ordered), *(nearest_rank(q, ordered) for q in (0.5, 0.95, 0.99, 1.0)))
