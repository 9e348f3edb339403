"""The search for the highest rate, and its confidence bounds."""

from __future__ import annotations

import asyncio
import math
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.confidence import least_count, wilson
from loadtest.level import LevelRun, run_level
from loadtest.level_result import level_result
from loadtest.objectives import ClientObjective
from loadtest.search import FoundRate, rate_search
from loadtest.session import LoadTest, RateSearchSettings, run_load_test
from loadtest.settings import LoadEndpoint, LoadLevel, PromptClass, Workload
from tests.simulated_endpoint import SimulatedClient
from tests.virtual_time import run_virtually


def search(capacity: float, first: float, highest: float, resolution: float) -> FoundRate:
    """Search on a server that keeps its objectives up to a rate."""
    rates = rate_search(first, highest, resolution)
    rate = next(rates)
    while True:
        try:
            rate = rates.send(rate <= capacity)
        except StopIteration as end:
            found: FoundRate = end.value
            return found


@settings(max_examples=30)
@given(st.floats(0.05, 900), st.floats(0.5, 20), st.sampled_from((0.01, 0.05, 0.2)))
def test_search_finds_a_capacity_within_its_resolution(
    capacity: float, first: float, resolution: float
) -> None:
    found = search(capacity, first, 1000, resolution)
    if capacity < first / 64:  # six halvings
        assert found.kept is None
    elif found.kept is not None:
        assert found.missed is not None
        assert found.kept <= capacity < found.missed <= found.kept * (1 + resolution)


def test_search_ends_at_the_highest_rate_and_below_the_lowest() -> None:
    assert search(5000, 1, 1000, 0.05) == FoundRate(1000, None)
    assert search(0.0001, 1, 1000, 0.05) == FoundRate(None, 1 / 64)


def test_search_doubles_and_then_bisects() -> None:
    tried = []
    rates = rate_search(1, 100, 0.1)
    rate = next(rates)
    while True:
        tried.append(rate)
        try:
            rate = rates.send(rate <= 5)
        except StopIteration:
            break
    assert tried == [1, 2, 4, 8, 6, 5, 5.5]


def test_wilson_bounds_match_published_values() -> None:
    """Newcombe 1998, table I: 81 of 263 and 15 of 148, two-sided 95 %."""
    assert wilson(81 / 263, 263, 0.975) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(15 / 148, 148, 0.975) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson(0.0, 0, 0.95) == (0, 1)


@given(st.integers(1, 5000), st.floats(0, 1), st.sampled_from((0.9, 0.95, 0.99)))
def test_wilson_bounds_solve_the_score_equation(
    count: int, share: float, confidence: float
) -> None:
    z = NormalDist().inv_cdf(confidence)
    for bound in wilson(share, count, confidence):
        if 1e-9 < bound < 1 - 1e-9:
            score = abs(share - bound) / math.sqrt(bound * (1 - bound) / count)
            assert score == pytest.approx(z, rel=1e-3, abs=1e-6)


@given(st.sampled_from((0.5, 0.9, 0.95, 0.99, 0.999)), st.sampled_from((0.8, 0.95, 0.99)))
def test_least_count_is_the_first_that_can_prove_a_target(target: float, confidence: float) -> None:
    least = least_count(target, confidence)
    assert wilson(1.0, least, confidence).lower >= target - 1e-12
    assert wilson(1.0, least - 1, confidence).lower < target


SLOTS, SECONDS = 4, 0.2
CAPACITY = SLOTS / SECONDS


def found_rate(target: float, *others: ClientObjective) -> tuple[FoundRate, list[LevelRun]]:
    """Search on a simulated server of known capacity, in virtual time."""
    runs = []
    work = Workload((PromptClass(1),), 1, warm_up=3.0, duration=8.0, cool_down=0.5)
    objective = ClientObjective("chat/first", "ttft", target, 1.0)
    test = LoadTest(
        (LoadEndpoint("http://simulated", "chat", "m"),),
        work,
        (),
        (objective, *others),
        search=RateSearchSettings(4.0, 100.0, 0.1, 60.0),
    )

    async def driver(
        endpoint: LoadEndpoint, level: LoadLevel, work: Workload, numbers: object
    ) -> LevelRun:
        client = SimulatedClient(slots=SLOTS, first=SECONDS)
        runs.append(await run_level(client, level, work))
        return runs[-1]

    async def no_check(*_: object) -> None: ...

    async def run() -> FoundRate | None:
        result = await run_load_test(test, asyncio.Event(), driver=driver, check=no_check)
        return result.found

    found = run_virtually(run())
    assert found is not None
    return found, runs


def test_search_finds_the_capacity_of_a_simulated_server() -> None:
    found, runs = found_rate(0.9)
    assert found.kept is not None
    assert found.missed is not None
    # A queue is stable below its capacity; near it, some requests wait longer than the limit.
    assert 0.7 * CAPACITY < found.kept < CAPACITY
    assert found.missed <= found.kept * 1.1
    assert [run.level.value for run in runs][:3] == [4, 8, 16]
    # Every level lasts long enough to prove the target.
    least = 2 * least_count(0.9, 0.95)
    assert all(len(run.measured) >= 0.7 * least for run in runs)


def test_a_target_that_takes_too_long_to_prove_does_not_stop_the_search() -> None:
    """99.99 % takes 27,000 requests without a bad one."""
    objective = ClientObjective("chat/up", "availability", 0.9999)
    found, runs = found_rate(0.9, objective)
    assert found.kept is not None
    assert 0.7 * CAPACITY < found.kept < CAPACITY
    assert max(run.end - run.begin for run in runs) < 60
    result = level_result([run for run in runs if run.level.value == found.kept], [objective], 0.95)
    assert (result.verdict, result.acceptable) == ("inconclusive", True)
