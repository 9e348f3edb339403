"""Detect lost records by comparing the received ones with the server's own count.

A server keeps the records of its requests in a bounded queue that every read empties: with two
readers each gets a part, and a full queue drops records silently.  The server's counters have all
requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class LossCounter:
    """Compares received records with a counter; ``lost`` is the number of missing records.

    Read the counter before the records: then records beyond the count can only be from the latest
    scrape, and records that are still outstanding ``grace_scrapes`` scrapes later are lost.
    """

    grace_scrapes: int = 1
    lost: float = 0.0
    _counted: float | None = None
    _arrived: float = 0.0
    _balance: float = 0.0
    _outstanding: deque[float] = field(default_factory=deque)

    def add_received(self, count: float) -> None:
        """Add received records."""
        self._arrived += count

    def compare(self, counted: float) -> float:
        """Compare with the counter of this scrape; return newly lost records."""
        before, self._counted = self._counted, counted
        arrived, self._arrived = self._arrived, 0.0
        if before is None or counted < before:  # first scrape, or the server restarted
            self._balance = arrived
            self._outstanding.clear()
            return 0.0
        self._balance = min(self._balance + arrived - (counted - before), arrived)
        self._outstanding.append(max(0.0, -self._balance))
        if len(self._outstanding) <= self.grace_scrapes:
            return 0.0
        lost = min(self._outstanding)
        self._outstanding = deque(
            (count - lost for count in self._outstanding), self.grace_scrapes + 1
        )
        self._balance += lost
        self.lost += lost
        return lost
