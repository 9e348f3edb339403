"""Confidence bounds of shares: published values, and properties that every sample must have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gates.statistics import (
    Bounds,
    Count,
    bounds,
    deviations,
    least_baseline,
    least_canary,
    least_worse,
    most_worse,
    production_mix,
    z_of,
)

ONE = {"": 1.0}
CLASSES = ("0-512", "513-4096", "over-4096")


def arm(bad: float, total: float, z: float) -> Bounds:
    found = bounds({"": Count(bad, total)}, ONE, z)
    assert found is not None
    return found


@pytest.mark.parametrize(("limit", "events"), [(0.01, 268), (0.05, 52)])
def test_events_without_a_bad_one_that_show_a_limit(limit: float, events: int) -> None:
    """Wilson's upper bound of zero in n is z² / (n + z²)."""
    assert arm(0, events, 1.645).upper <= limit < arm(0, events - 1, 1.645).upper


def test_difference_of_one_class_is_newcombes() -> None:
    """Compare with Newcombe, Statistics in Medicine 17 (1998), table II: 56/70 and 48/80."""
    first, second = arm(56, 70, 1.959964), arm(48, 80, 1.959964)
    assert least_worse(first, second) == pytest.approx(0.0524, abs=5e-5)
    assert most_worse(first, second) == pytest.approx(0.3339, abs=5e-5)


def test_normal_quantiles_are_rounded_up() -> None:
    assert z_of(0.025) == 1.96
    assert z_of(0.005) == 2.5759


counts = st.integers(1, 5_000).flatmap(
    lambda total: st.builds(Count, st.integers(0, total), st.just(total))
)
arms = st.dictionaries(st.sampled_from(CLASSES), counts, min_size=1)
mixes = st.lists(st.integers(1, 100), min_size=3, max_size=3).map(
    lambda weights: production_mix(dict(zip(CLASSES, weights, strict=True)))
)
quantiles = st.floats(0.5, 5)


@given(arms, mixes, quantiles)
def test_bounds_contain_the_share_and_are_shares(
    canary: dict[str, Count], mix: dict[str, float], z: float
) -> None:
    found = bounds(canary, mix, z)
    assert found is not None
    assert -1e-9 <= found.lower <= found.low <= found.high + 1e-9
    assert found.high <= found.upper + 1e-9
    assert found.upper <= 1 + len(CLASSES) * 1e-9 or found.high - found.low >= 0


@given(arms, mixes, quantiles)
def test_classes_without_events_widen_the_share_by_their_weight(
    canary: dict[str, Count], mix: dict[str, float], z: float
) -> None:
    found = bounds(canary, mix, z)
    assert found is not None
    unseen = sum(weight for name, weight in mix.items() if name not in canary)
    assert found.high - found.low == pytest.approx(unseen, abs=1e-9)


@given(counts, quantiles)
def test_a_larger_sample_has_narrower_bounds(count: Count, z: float) -> None:
    larger = deviations(2 * count.bad, 2 * count.total, z)
    for small, large in zip(deviations(count.bad, count.total, z), larger, strict=True):
        assert large <= small + 1e-12


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3), mixes, quantiles)
def test_arms_with_equal_classes_do_not_differ_at_any_traffic_mix(
    shares: list[float], mix: dict[str, float], z: float
) -> None:
    """The raw shares differ: the canary has other prompts than the baseline."""
    canary, baseline = (
        bounds(
            {
                name: Count(share * total, total)
                for name, share, total in zip(CLASSES, shares, totals, strict=True)
            },
            mix,
            z,
        )
        for totals in ((10, 100, 1_000), (5_000, 200, 300))
    )
    assert canary is not None
    assert baseline is not None
    assert least_worse(canary, baseline) <= 1e-9
    assert most_worse(canary, baseline) >= -1e-9


def test_no_events_have_no_bounds_and_no_mix() -> None:
    assert bounds({}, ONE, 2) is None
    assert bounds({"": Count(0, 0)}, ONE, 2) is None
    assert bounds({"": Count(float("nan"), float("nan"))}, ONE, 2) is None
    assert production_mix({}) == production_mix({"": 0.0}) == {}
    assert production_mix({"": float("nan")}) == {}


def test_the_least_canary_is_the_least_that_can_be_promoted() -> None:
    baseline, z, limit, margin = Count(200, 10_000), 2.9353, 0.05, 0.025
    needed = least_canary(baseline, limit, margin, z)
    assert needed is not None

    def promotes(events: int) -> bool:
        canary, other = arm(0.02 * events, events, z), arm(200, 10_000, z)
        return canary.upper <= limit and most_worse(canary, other) <= margin

    assert promotes(needed)
    assert not promotes(needed - 1)


def test_no_canary_is_large_enough_beside_a_small_baseline() -> None:
    assert least_canary(Count(2, 100), 0.05, 0.0125, 2.9353) is None
    assert least_baseline(0.02, 0.0125, 2.9353) == 411
