"""Levels at which objectives begin to be missed, throughput saturates, or one stack overtakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.level_result import LevelResult
from loadtest.settings import LoadLevel

_SATURATED = 0.95
"""Share of the highest throughput at which a level counts as saturated."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where an objective stops to be kept: the last level of those that keep it, and the next.

    ``kept`` is None if the lowest level does not keep it, ``missed`` if the highest one does.
    """

    objective: str
    kept: LoadLevel | None
    missed: LoadLevel | None


def crossovers(results: Sequence[LevelResult]) -> list[Crossover]:
    """Return the crossover of each objective over results in ascending order of load."""
    if not results:
        return []
    names = [each.objective.name for each in results[0].objectives]
    return [_crossover(name, index, results) for index, name in enumerate(names)]


def _crossover(name: str, index: int, results: Sequence[LevelResult]) -> Crossover:
    kept: LoadLevel | None = None
    for result in results:
        if result.objectives[index].verdict != "kept":
            return Crossover(name, kept, result.level)
        kept = result.level
    return Crossover(name, kept, None)


def saturation(results: Sequence[LevelResult]) -> LoadLevel | None:
    """Return the lowest level with almost the highest rate of output tokens, if it is not the last.

    None if throughput still grows at the highest level.
    """
    if len(results) < 2:
        return None
    most = max(result.output_tokens for result in results)
    enough = (result for result in results if result.output_tokens >= _SATURATED * most)
    first = next(enough).level
    return first if first != results[-1].level else None
