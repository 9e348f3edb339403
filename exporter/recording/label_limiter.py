"""Limit label values that clients or servers choose, and the series that they create."""

from __future__ import annotations

from collections import Counter

OTHER = "other"
MAX_SERIES = 20_000
"""Series that clients can create, in addition to those of known models."""


class LabelLimiter:
    """Keep the first ``limit`` values of a label; every later one becomes ``other``.

    Up to ``provisional_limit`` additional values are kept before they are confirmed.
    """

    def __init__(self, limit: int, provisional_limit: int = 0) -> None:
        self._limit = limit
        self._provisional_limit = provisional_limit
        self._values: set[str] = set()
        self._provisional: set[str] = set()

    def reserve(self, value: str) -> None:
        """Keep a value that the operator configured; it does not count against the limit."""
        if value not in self._values:
            self._values.add(value)
            self._limit += 1

    def begin(self, value: str) -> str:
        """Return the label of an unconfirmed value; empty if the provisional limit is reached."""
        if value in self._values or value in self._provisional:
            return value
        if len(self._values) >= self._limit:
            return OTHER
        if len(self._provisional) >= self._provisional_limit:
            return ""
        self._provisional.add(value)
        return value

    def admit(self, value: str, *, confirmed: bool = True) -> str:
        """Return the label of a value; one that is not ``confirmed`` is not kept."""
        if value in self._values:
            return value
        if not confirmed or len(self._values) >= self._limit:
            return value if value in self._provisional else OTHER
        self._provisional.discard(value)
        self._values.add(value)
        return value


class SeriesBudget:
    """Limit the series that clients can create: one budget for models, tenants and reasons.

    ``limited`` counts requests by the label whose value became ``other``.
    """

    def __init__(self, limit: int = MAX_SERIES) -> None:
        self._remaining = limit
        self.limited: Counter[str] = Counter()

    def take(self, series: int) -> bool:
        """Take a number of series from the budget; return False, and take none, if it has fewer."""
        if series > self._remaining:
            return False
        self._remaining -= series
        return True
