"""Whether everything that was counted at one place has arrived at another.

A server keeps what it tells of each request in a bounded queue that is emptied by whoever reads it:
with two readers each gets a part, and a full queue drops without a word.  But the server counts its
requests elsewhere too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class LossCounter:
    """Holds what arrived against what was counted; ``lost`` is what never came.

    The count must be read before what is told of the same requests: then what arrived beyond the
    count can only be of the latest reading, and what is still owed ``patience`` readings later is
    lost.
    """

    patience: int = 1
    lost: float = 0.0
    _counted: float | None = None
    _arrived: float = 0.0
    _balance: float = 0.0
    _owed: deque[float] = field(default_factory=deque)

    def arrive(self, count: float) -> None:
        """Note what arrived."""
        self._arrived += count

    def settle(self, counted: float) -> float:
        """Compare with the count of this reading; return what is lost since the last."""
        before, self._counted = self._counted, counted
        arrived, self._arrived = self._arrived, 0.0
        if before is None or counted < before:  # the beginning, or the server restarted
            self._balance = arrived
            self._owed.clear()
            return 0.0
        self._balance = min(self._balance + arrived - (counted - before), arrived)
        self._owed.append(max(0.0, -self._balance))
        if len(self._owed) <= self.patience:
            return 0.0
        lost = min(self._owed)
        self._owed = deque((owed - lost for owed in self._owed), self.patience + 1)
        self._balance += lost
        self.lost += lost
        return lost
