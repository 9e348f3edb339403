"""Record exact engine events, the ground truth for tests of estimates.

A real trtllm-serve has no such endpoint, and code under test must not read it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict
from itertools import repeat
from typing import Any

from lab.engine_events import EngineEvent
from loadtest.quantiles import nearest_rank

_MAX_RECORDS = 200_000
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class RequestLog:
    """Record every engine event, on the engine's thread; only the latest are records.

    A gap is the time in seconds between two steps that brought tokens of one request; with
    speculative decoding the second can bring several.
    """

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._burst: dict[int, int] = {}
        self._gaps: list[tuple[float, float, int]] = []
        self._requests: list[tuple[float, dict[str, Any]]] = []

    def record(self, event: EngineEvent) -> None:
        """Record an event; events of a request must come in order."""
        number = event.request_id
        if event.index is not None:
            self._burst[number] = self._burst.get(number, 0) + 1
        if event.more:
            return
        if tokens := self._burst.pop(number, 0):
            if number in self._last:
                self._gaps.append((event.time, event.time - self._last[number], tokens))
            self._last[number] = event.time
        if event.metrics:
            self._last.pop(number, None)
            ended = asdict(event.metrics) | {"finish_reason": event.finish_reason}
            self._requests.append((event.time, {"request_id": number} | ended))
        for records in (self._gaps, self._requests):
            if len(records) > 2 * _MAX_RECORDS:
                del records[:_MAX_RECORDS]

    def since(self, moment: float) -> dict[str, Any]:
        """Return gaps and requests after a time in seconds since the epoch.

        ``gaps`` and ``tokens`` are parallel: each gap, and the number of tokens that ended it.
        Quantiles are nearest-rank, of gaps and of each token's share of its gap.
        """
        gaps = self._gaps[bisect_right(self._gaps, moment, key=lambda gap: gap[0]) :]
        ended = self._requests[bisect_right(self._requests, moment, key=lambda one: one[0]) :]
        shares = (share for _, gap, tokens in gaps for share in repeat(gap / tokens, tokens))
        return {
            "gaps": [gap for _, gap, _ in gaps],
            "tokens": [tokens for _, _, tokens in gaps],
            "gap_quantiles": _quantiles(gap for _, gap, _ in gaps),
            "token_quantiles": _quantiles(shares),
            "requests": [request for _, request in ended],
        }


def _quantiles(values: Iterable[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {}
    return {name: nearest_rank(q, ordered) for name, q in _QUANTILES.items()}
