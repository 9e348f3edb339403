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
    """Where an objective stops to be kept: the last level that keeps it, and the first that misses.

    ``kept`` is None if no level below the first miss keeps it.  If none misses it, ``above`` is the
    first inconclusive level above ``kept``, None without one.  ``result`` is that of ``above``, or
    of the highest level.
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
    unproven: LevelResult | None = None
    for level in results:
        found = level.objectives[index]
        if found.verdict == "missed":
            return Crossover(name, kept, level.level, found)
        if found.verdict == "kept":
            kept, unproven = level.level, None
        elif unproven is None:  # short levels of low load often have too few requests
            unproven = level
    if unproven:
        return Crossover(name, kept, unproven.level, unproven.objectives[index])
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
