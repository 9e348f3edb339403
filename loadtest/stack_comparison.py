"""Compare two stacks that received the same requests in alternating rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadtest.level import LevelRun
from loadtest.level_result import LatencySummary, LevelResult
from loadtest.records import RequestRecord
from loadtest.settings import LoadLevel

_RATIOS = ("ttft", "itl", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class EqualWork:
    """Whether both stacks did the same work: pairs of complete responses to the same request.

    ``problem`` is the reason why that is not proven, empty if it is.
    """

    pairs: int
    input_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    problem: str

    @property
    def proven(self) -> bool:
        """Whether the server's counts of all pairs are equal."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class StackRatios:
    """Ratios of one level: the second stack / the first one, by name."""

    level: LoadLevel
    ratios: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Overtake:
    """A measurement in which the better stack changes between two levels.

    ``better`` is the index of the stack that is better at the higher level.
    """

    name: str
    below: LoadLevel
    above: LoadLevel
    better: int


@dataclass(frozen=True, slots=True)
class StackComparison:
    """The second stack relative to the first one; no ratios without a proof of equal work."""

    work: EqualWork
    levels: tuple[StackRatios, ...]
    overtakes: tuple[Overtake, ...]


def compare_stacks(
    runs: tuple[Sequence[LevelRun], Sequence[LevelRun]],
    results: tuple[Sequence[LevelResult], Sequence[LevelResult]],
) -> StackComparison:
    """Compare the runs of two stacks, whose results have the same levels in the same order."""
    work = equal_work(*([record for run in side for record in run.measured] for side in runs))
    if not work.proven:
        return StackComparison(work, (), ())
    levels = tuple(
        StackRatios(one.level, dict(_ratios(one, other)))
        for one, other in zip(*results, strict=False)
    )
    return StackComparison(work, levels, tuple(_overtakes(levels)))


def equal_work(first: Sequence[RequestRecord], second: Sequence[RequestRecord]) -> EqualWork:
    """Compare the servers' token counts of complete responses to the same requests."""
    ours, theirs = (
        {record.number: record for record in side if record.outcome == "ok"}
        for side in (first, second)
    )
    pairs = [(ours[number], theirs[number]) for number in sorted(ours.keys() & theirs.keys())]
    counts: dict[str, tuple[int, int]] = {}
    problem = "" if pairs else "no request was completed by both"
    for kind in ("input", "output"):
        sums = [0, 0]
        for pair in pairs:
            values = [getattr(record, f"{kind}_tokens") for record in pair]
            if None in values:
                problem = problem or f"a server does not report its {kind} tokens"
                continue
            sums = [total + value for total, value in zip(sums, values, strict=True)]
            if values[0] != values[1]:
                problem = problem or f"the {kind} tokens of the same request differ"
        counts[kind] = (sums[0], sums[1])
    return EqualWork(len(pairs), counts["input"], counts["output"], problem)


def _ratios(one: LevelResult, other: LevelResult) -> Iterator[tuple[str, float]]:
    if one.output_tokens:
        yield "output_tokens_per_second", other.output_tokens / one.output_tokens
    for name in _RATIOS:
        summaries: list[LatencySummary | None] = [
            each.latencies[name if name == "itl" or name == "tpot" else f"scheduled_{name}"]
            for each in (one, other)
        ]
        first, second = summaries
        if first and second:
            for quantile in ("p50", "p99"):
                base = getattr(first, quantile)
                if base:
                    yield f"{name}_{quantile}", getattr(second, quantile) / base


def _overtakes(levels: Sequence[StackRatios]) -> Iterator[Overtake]:
    """Yield the changes of the better stack; a latency is better if lower."""
    for name in {name: None for level in levels for name in level.ratios}:
        rising = name == "output_tokens_per_second"
        known = [(level.level, level.ratios[name]) for level in levels if name in level.ratios]
        for (below, before), (above, after) in pairwise(known):
            if (before - 1) * (after - 1) < 0:
                yield Overtake(name, below, above, int((after > 1) == rising))
