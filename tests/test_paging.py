"""Pages of our rules in long histories: total outages, and no page without an incident."""

from __future__ import annotations

from decimal import Decimal
from functools import reduce
from itertools import product
from operator import or_

import numpy as np
import pytest

from bench.paging import (
    BACKGROUND_TARGETS,
    HISTORY,
    PER_MINUTE,
    SCENARIO_TARGETS,
    TARGETS,
    PagingRules,
    background,
    own_conditions,
    pages,
    seconds_to_page,
)
from slos.events import MINUTE
from tests.rule_values.paging import BurnRateCondition, begins, increases
from tests.rule_values.traffic import DAY, REQUESTS, SCENARIOS, TrafficScenario, play

HALF = Decimal("0.5")
MONTH = 30 * DAY
"""A scenario's history; ``bench.paging`` has 90 days of each."""


def own(targets: tuple[Decimal, ...]) -> PagingRules:
    return PagingRules({each: own_conditions(each) for each in targets}, MINUTE, increases)


@pytest.mark.parametrize("per_minute", [2, 60])
def test_a_total_outage_pages_within_10_minutes_of_its_first_failure(per_minute: int) -> None:
    slowest = seconds_to_page(own(TARGETS), per_minute)
    assert [*slowest] == [*TARGETS]
    assert all(seconds is not None and 60 <= seconds <= 600 for seconds in slowest.values())


@pytest.mark.parametrize(
    ("per_minute", "bad"), [*product(PER_MINUTE, (Decimal("0.05"), Decimal("0.1")))]
)
def test_a_steady_background_of_errors_does_not_page_in_90_days(
    per_minute: float, bad: Decimal
) -> None:
    samples = background(per_minute, bad, HISTORY, seed=0)
    firing = own(BACKGROUND_TARGETS).firing(samples, HISTORY)
    assert {target: int(reduce(or_, each).sum()) for target, _, each in firing} == dict.fromkeys(
        BACKGROUND_TARGETS, 0
    )


def test_without_the_least_number_of_bad_events_a_background_pages() -> None:
    samples = background(1, Decimal("0.1"), HISTORY, seed=0)
    guarded = own_conditions(Decimal("0.9"))
    bare = [BurnRateCondition(True, each.long, each.short, each.threshold) for each in guarded]
    rules = PagingRules({Decimal("0.9"): bare}, MINUTE, increases)
    ((_, _, firing),) = rules.firing(samples, HISTORY)
    assert len(begins(reduce(or_, firing))) > 0


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_page_of_random_traffic_has_an_incident(scenario: TrafficScenario) -> None:
    traffic = play(scenario, MONTH, families=[REQUESTS])
    found = pages(own(SCENARIO_TARGETS), traffic, MONTH)
    assert all(each.all > 0 for each in found.values())
    assert [each.without_incident for each in found.values()] == [0] * len(SCENARIO_TARGETS)


def test_a_condition_fires_when_it_has_held_for_its_wait() -> None:
    condition = BurnRateCondition(True, Decimal(60), Decimal(60), HALF, wait=Decimal(120))
    bad = np.array([0, 9, 9, 9, 9, 0, 9, 9, 9, 0, 9])
    fires = condition.fires(lambda _: (bad, np.full(len(bad), 10)), 60)
    assert [*np.flatnonzero(fires)] == [3, 4, 8]
    assert [*begins(fires)] == [3, 8]
