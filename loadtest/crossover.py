"""Levels at which objectives begin to be missed, throughput saturates, or one stack overtakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.level_result import LevelResult
from loadtest.objectives import ObjectiveResult
from loadtest.settings import LoadLevel

_SATURATED = 0.95
"""Share of the highest throughput at which a level counts as saturated."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where an objective stops to be kept: the last level of those that keep it, and the next.

    ``kept`` is None if the lowest level does not keep it.  ``above`` is the next level,
    None if the highest one keeps it; ``result`` is that of the next level, or of the highest one.
    """

    objective: str
    kept: LoadLevel | None
    above: LoadLevel | None
    result: ObjectiveResult


def crossovers(results: Sequence[LevelResult]) -> list[Crossover]:
    """Return the crossover of each objective over results in ascending order of load."""
    if not results:
        return []
    names = [each.objective.name for each in results[0].objectives]
    return [_crossover(name, index, results) for index, name in enumerate(names)]


def _crossover(name: str, index: int, results: Sequence[LevelResult]) -> Crossover:
    kept: LoadLevel | None = None
    for level in results:
        if level.objectives[index].verdict != "kept":
            return Crossover(name, kept, level.level, level.objectives[index])
        kept = level.level
    return Crossover(name, kept, None, results[-1].objectives[index])


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
