"""Bound the values of labels that clients or servers choose, and the series they cause."""

from __future__ import annotations

from collections import Counter

OTHER = "other"
MAX_SERIES = 20_000
"""Series that clients can cause beside those of the models that are known."""


class LabelLimiter:
    """Keeps the first ``limit`` values of a label; every later one becomes ``other``.

    Up to ``provisional_limit`` more values are kept before they are confirmed.
    """

    def __init__(self, limit: int, provisional_limit: int = 0) -> None:
        self._limit = limit
        self._provisional_limit = provisional_limit
        self._values: set[str] = set()
        self._provisional: set[str] = set()

    def reserve(self, value: str) -> None:
        """Keep a value that the operator chose; it takes no place of the others."""
        if value not in self._values:
            self._values.add(value)
            self._limit += 1

    def begin(self, value: str) -> str:
        """Return the label of a value that is not confirmed yet; empty where there is no room."""
        if value in self._values or value in self._provisional:
            return value
        if len(self._values) >= self._limit:
            return OTHER
        if len(self._provisional) >= self._provisional_limit:
            return ""
        self._provisional.add(value)
        return value

    def admit(self, value: str, *, confirmed: bool = True) -> str:
        """Return the label of a value; one that is not ``confirmed`` takes no lasting place."""
        if value in self._values:
            return value
        if not confirmed or len(self._values) >= self._limit:
            return value if value in self._provisional else OTHER
        self._provisional.discard(value)
        self._values.add(value)
        return value


class SeriesBudget:
    """The number of series that clients can cause: one budget for models, tenants and reasons.

    ``limited`` counts requests by the label that is ``other`` instead of a value of its own.
    """

    def __init__(self, limit: int = MAX_SERIES) -> None:
        self._left = limit
        self.limited: Counter[str] = Counter()

    def take(self, series: int) -> bool:
        """Take a number of series from the budget; False, and nothing is taken, if it has less."""
        if series > self._left:
            return False
        self._left -= series
        return True
