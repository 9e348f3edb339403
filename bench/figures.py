"""Figures of benches as data: values of each round next to a peer's, and growth with a size.

A ratio is ours / the peer's in one round, so less is better.  Benches write figures as JSON lines.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import comb, log
from statistics import linear_regression, median
from typing import TypeVar

CONFIDENCE = 0.9
"""Least probability that an interval contains the true median."""
LEAST_ROUNDS = 5
"""Rounds below which even the whole range has less than that probability."""
MOST_SPREAD = 0.1
LINEAR = 1.1
"""Largest exponent of growth that counts as linear: caches and allocators are not exact."""

Round = TypeVar("Round")


@dataclass(frozen=True, slots=True)
class MedianInterval:
    """The median of rounds, and the interval that contains the true median.

    With fewer than :data:`LEAST_ROUNDS` rounds the interval is their whole range.
    """

    median: float
    low: float
    high: float
    rounds: int

    @property
    def spread(self) -> float:
        """The width of the interval as a share of the median."""
        return (self.high - self.low) / abs(self.median) if self.median else 0.0


def median_interval(values: Iterable[float]) -> MedianInterval:
    """Return the median of rounds with its interval from order statistics."""
    ordered = sorted(values)
    trimmed = trimmed_rounds(len(ordered))
    return MedianInterval(
        median(ordered), ordered[trimmed], ordered[-1 - trimmed], rounds=len(ordered)
    )


def trimmed_rounds(rounds: int) -> int:
    """Return the number of rounds at each end that lie outside the interval of the median.

    The k + 1 least rounds are all above the true median with the probability of at most k heads in
    as many coin flips as there are rounds.
    """
    tail, trimmed = 0, 0
    for heads in range((rounds + 1) // 2):
        tail += comb(rounds, heads)
        if 2 * tail > (1 - CONFIDENCE) * 2**rounds:
            break
        trimmed = heads
    return trimmed


@dataclass(frozen=True, slots=True)
class PeerComparison:
    """The values of each round next to a peer's, in the same unit.

    ``target`` is the largest allowed ratio.  ``exact`` values are counted or documented and do not
    vary, so one round has no spread.
    """

    subject: str
    peer: str
    unit: str
    ours: Sequence[float]
    theirs: Sequence[float]
    target: float | None = None
    exact: bool = False

    @property
    def ratio(self) -> MedianInterval:
        """The ratio to the peer."""
        return median_interval(
            ours / peer for ours, peer in zip(self.ours, self.theirs, strict=True)
        )

    @property
    def settled(self) -> bool:
        """Whether the spread is small enough for a verdict."""
        return self.exact or is_settled(self.ratio)

    @property
    def verdict(self) -> str:
        """``met``, ``missed`` or ``undecided``; empty without a target.

        A target is met only if the spread is small and the whole interval is within the target.
        """
        if self.target is None:
            return ""
        ratio = self.ratio
        if ratio.low > self.target and (self.exact or ratio.rounds >= LEAST_ROUNDS):
            return "missed"
        return "met" if self.settled and ratio.high <= self.target else "undecided"


def is_settled(ratio: MedianInterval) -> bool:
    """Return whether enough rounds have a small spread."""
    return ratio.rounds >= LEAST_ROUNDS and ratio.spread < MOST_SPREAD


@dataclass(frozen=True, slots=True)
class MissingPeer:
    """A comparison that was not measured, and why."""

    subject: str
    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class GrowthCurve:
    """A cost at growing sizes; ``costs`` has the rounds of each size."""

    subject: str
    size: str
    unit: str
    sizes: Sequence[int]
    costs: Sequence[Sequence[float]]

    @property
    def slope(self) -> MedianInterval:
        """The slope of the logarithm of cost over that of size: 1 is linear."""
        logs = [log(size) for size in self.sizes]
        return median_interval(
            linear_regression(logs, [log(cost) for cost in costs]).slope
            for costs in zip(*self.costs, strict=True)
        )

    @property
    def steps(self) -> list[MedianInterval]:
        """The exponents of growth from each size to the next."""
        return [
            median_interval(
                log(after / before) / log(size / smaller)
                for before, after in zip(lower, upper, strict=True)
            )
            for (smaller, lower), (size, upper) in pairwise(
                zip(self.sizes, self.costs, strict=True)
            )
        ]

    @property
    def verdict(self) -> str:
        """``linear or less``, ``superlinear`` with its sizes, or ``undecided``."""
        between = [f"from {a:,} to {b:,}" for a, b in pairwise(self.sizes)]
        for step, sizes in zip(self.steps, between, strict=True):
            if step.low > LINEAR:
                return f"superlinear {sizes}"
        if self.slope.low > LINEAR:
            return "superlinear"
        wide = [s for step, s in zip(self.steps, between, strict=True) if step.high > LINEAR]
        if self.slope.high > LINEAR or wide:
            return " ".join(["undecided", *wide[:1]])
        return "linear or less"


Figure = PeerComparison | MissingPeer | GrowthCurve
_KINDS = {kind.__name__: kind for kind in (PeerComparison, MissingPeer, GrowthCurve)}


def as_json(figure: Figure) -> str:
    """Return a figure as a line of JSON."""
    return json.dumps({"kind": type(figure).__name__} | asdict(figure))


def from_json(line: str) -> Figure:
    """Return the figure of a line of JSON; raises ValueError for anything else."""
    try:
        fields = json.loads(line)
        figure: Figure = _KINDS[fields.pop("kind")](**fields)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a figure: {line[:200]}") from error
    return figure


@dataclass(frozen=True, slots=True)
class RepeatLimits:
    """Least and most rounds, and the seconds after which no further round begins."""

    least: int = LEAST_ROUNDS
    most: int = 8
    seconds: float = 120.0


LONG = 5
"""Factor of the limits of long runs."""


def limits(long: bool, *, most: int = 8, seconds: float = 120.0) -> RepeatLimits:
    """Return the limits of a bench; those of a long run are :data:`LONG` times as large."""
    factor = LONG if long else 1
    return RepeatLimits(most=factor * most, seconds=factor * seconds)


def repeat(
    measure: Callable[[], Round],
    ratios: Callable[[Sequence[Round]], Iterable[MedianInterval]],
    limits: RepeatLimits,
    clock: Callable[[], float] = time.monotonic,
) -> list[Round]:
    """Measure rounds until every ratio has settled, or a limit is reached."""
    rounds: list[Round] = []
    began = clock()
    while len(rounds) < limits.most:
        rounds.append(measure())
        if len(rounds) < limits.least:
            continue
        if clock() - began >= limits.seconds or all(map(is_settled, ratios(rounds))):
            break
    return rounds
