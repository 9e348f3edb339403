"""Sum counters of several processes or engines across partial resets.

One of several engines of a model may restart while the others continue.  The sum of their counters
then falls, which reads as a reset of the sum and counts everything again.  So each part is
continued on its own: its value before a reset stays in the sum.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from operator import add
from typing import TypeVar

P = TypeVar("P", bound=Hashable)

MAX_GROUPS = 20_000
MAX_PARTS = 1_024
# Sums of floats may differ in the last digits from scrape to scrape.
TOLERANCE = 1e-9

Values = tuple[float, ...]
"""A counter is one number, a histogram its buckets and its sum."""


class CounterParts:
    """Keeps the parts of sums between scrapes; sums of a single part need no state."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}
        self._derived: dict[Hashable, tuple[Values, Values]] = {}

    def continues(self, group: Hashable) -> bool:
        """Return whether a group has had several parts; otherwise its sum is its only part."""
        return group in self._groups

    def total(self, group: Hashable, parts: Mapping[P, Values]) -> Values:
        """Return the sum of a group's parts, each continued over its resets.

        A part that is missing keeps its last value.
        """
        known = self._groups.get(group)
        if known is None:
            if len(parts) == 1 or len(self._groups) >= MAX_GROUPS:
                return _sum(list(parts.values()))
            known = self._groups[group] = _Group()
        return known.total(parts)

    def derived(self, key: Hashable, values: Values, raw: Values) -> Values:
        """Return ``values`` derived from counters ``raw``, monotonic until ``raw`` resets.

        Counters that are not read at the same moment may make a difference fall, which would look
        like a reset.
        """
        last = self._derived.get(key)
        if last and len(last[0]) == len(values) and not _has_fallen(raw, last[1]):
            values = tuple(map(max, values, last[0]))
        if last or len(self._derived) < MAX_GROUPS:
            self._derived[key] = (values, raw)
        return values


class _Group:
    """The parts of one sum: their last values, and the total before resets."""

    def __init__(self) -> None:
        self._last: dict[Hashable, Values] = {}
        self._before: Values = ()

    def total(self, parts: Mapping[P, Values]) -> Values:
        if len(self._last) + len(parts) > MAX_PARTS:
            for gone in self._last.keys() - parts.keys():
                self._keep(self._last.pop(gone))
        for part, values in parts.items():
            last = self._last.get(part)
            if last is not None and _has_fallen(values, last):
                self._keep(last)
            self._last[part] = values
        return _sum([*self._last.values(), *([self._before] if self._before else [])])

    def _keep(self, values: Values) -> None:
        self._before = tuple(map(add, self._before, values)) if self._before else values


def _has_fallen(values: Values, last: Values) -> bool:
    return any(
        value < before * (1 - TOLERANCE) for value, before in zip(values, last, strict=False)
    )


def _sum(parts: list[Values]) -> Values:
    return parts[0] if len(parts) == 1 else tuple(map(sum, zip(*parts, strict=False)))
