"""Figures of benches: intervals of medians, verdicts on targets, slopes, repetition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import comb

import pytest

from bench.figures import (
    CONFIDENCE,
    LEAST_ROUNDS,
    Figure,
    GrowthCurve,
    MissingPeer,
    PeerComparison,
    RepeatLimits,
    as_json,
    from_json,
    median_interval,
    repeat,
    trimmed_rounds,
)


def comparison(
    ratios: Sequence[float], target: float | None = None, *, exact: bool = False
) -> PeerComparison:
    return PeerComparison(
        "x", "peer", "s", [2 * each for each in ratios], [2.0] * len(ratios), target, exact
    )


def growth(exponent: float, noise: Sequence[float] = (1.0,)) -> GrowthCurve:
    sizes = (1, 10, 100, 1_000)
    return GrowthCurve(
        "x", "models", "ms", sizes, [[size**exponent * each for each in noise] for size in sizes]
    )


def test_interval_of_five_rounds_is_their_range() -> None:
    found = median_interval([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (found.median, found.low, found.high, found.rounds) == (3, 1, 5, 5)
    assert found.spread == pytest.approx(4 / 3)


def test_interval_of_many_rounds_leaves_out_outliers() -> None:
    found = median_interval([1.0, *[10.0] * 8, 1_000.0])
    assert (found.low, found.high, found.spread) == (10, 10, 0)


@pytest.mark.parametrize("rounds", range(1, 60))
def test_interval_is_the_narrowest_with_the_stated_confidence(rounds: int) -> None:
    def coverage(trimmed: int) -> float:
        return 1 - 2 * sum(comb(rounds, heads) for heads in range(trimmed + 1)) / 2**rounds

    trimmed = trimmed_rounds(rounds)
    assert coverage(trimmed + 1) < CONFIDENCE
    assert (coverage(trimmed) >= CONFIDENCE) == (rounds >= LEAST_ROUNDS)
    assert trimmed == 0 or rounds > LEAST_ROUNDS


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.00, 1.01, 1.02, 1.03, 1.04], "met"),
        ([1.21, 1.22, 1.23, 1.24, 1.25], "missed"),
        ([1.17, 1.18, 1.19, 1.20, 1.21], "undecided"),  # the interval includes the target
        ([0.50, 0.60, 0.70, 0.80, 0.90], "undecided"),  # within the target, but a wide spread
        ([1.30, 1.50, 1.70, 1.90, 2.10], "missed"),  # beyond the target at any spread
        ([1.0, 1.0, 1.0, 1.0], "undecided"),  # too few rounds
        ([2.0, 2.0, 2.0, 2.0], "undecided"),
    ],
)
def test_a_target_is_met_only_within_a_small_spread(ratios: list[float], verdict: str) -> None:
    assert comparison(ratios, 1.2).verdict == verdict
    assert comparison(ratios).verdict == ""


def test_exact_values_have_a_verdict_after_one_round() -> None:
    assert comparison([1.2], 1.2, exact=True).verdict == "met"
    assert comparison([1.3], 1.2, exact=True).verdict == "missed"


def test_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    """A round on a busy machine is slow for both."""
    found = PeerComparison("x", "peer", "s", [1.0, 10.0, 3.0], [2.0, 20.0, 2.0])
    assert found.ratio.median == 0.5


@pytest.mark.parametrize(
    ("exponent", "verdict"),
    [(0.0, "linear or less"), (1.0, "linear or less"), (1.5, "superlinear from 1 to 10")],
)
def test_slope_of_a_power_is_its_exponent(exponent: float, verdict: str) -> None:
    curve = growth(exponent)
    assert curve.slope.median == pytest.approx(exponent)
    assert [step.median for step in curve.steps] == pytest.approx([exponent] * 3)
    assert curve.verdict == verdict


def test_growth_is_superlinear_where_one_step_is() -> None:
    curve = GrowthCurve("x", "models", "ms", (1, 10, 100, 1_000), [[1.0], [1.5], [5.0], [100.0]])
    assert curve.slope.median < 1
    assert curve.verdict == "superlinear from 100 to 1,000"


def test_noisy_growth_is_undecided() -> None:
    noise = [[1.0, 2.0, 1.0, 1.0, 1.0], [10.0, 10.0, 10.0, 20.0, 10.0], [100.0] * 5]
    curve = GrowthCurve("x", "models", "ms", (1, 10, 100), noise)
    assert curve.verdict == "undecided from 1 to 10"


class RecordedRounds:
    """Rounds that return the next value, and a clock that counts them."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values: Iterator[float] = iter(values)
        self.count = 0

    def measure(self) -> float:
        self.count += 1
        return next(self._values)

    def clock(self) -> float:
        return float(self.count)


def repeated(values: Sequence[float], limits: RepeatLimits) -> list[float]:
    rounds = RecordedRounds(values)
    return repeat(rounds.measure, lambda done: [median_interval(done)], limits, rounds.clock)


def test_rounds_are_repeated_until_the_spread_is_small() -> None:
    limits = RepeatLimits(most=100, seconds=100)
    assert len(repeated([1.0] * 100, limits)) == LEAST_ROUNDS
    # One outlier of seven rounds belongs to the interval, one of eight does not.
    assert len(repeated([1.0, 2.0, *[1.0] * 98], limits)) == 8


def test_rounds_end_at_a_limit() -> None:
    wide = [1.0, 2.0] * 50
    assert len(repeated(wide, RepeatLimits(most=9, seconds=100))) == 9
    assert len(repeated(wide, RepeatLimits(most=100, seconds=20))) == 20
    assert len(repeated(wide, RepeatLimits(most=100, seconds=1))) == LEAST_ROUNDS
    assert len(repeated(wide, RepeatLimits(least=1, most=1))) == 1


@pytest.mark.parametrize(
    "figure",
    [comparison([1.0, 2.0], 0.5), MissingPeer("x", "envoy", "not on PATH"), growth(1.0)],
)
def test_a_figure_survives_json(figure: Figure) -> None:
    assert as_json(from_json(as_json(figure))) == as_json(figure)
    assert type(from_json(as_json(figure))) is type(figure)


@pytest.mark.parametrize("line", ["", "1", "{}", '{"kind": "Other"}', '{"kind": "MissingPeer"}'])
def test_another_line_is_no_figure(line: str) -> None:
    with pytest.raises(ValueError, match=r"not a figure|Expecting value"):
        from_json(line)
