"""What alerts would have done on history: worked out, told to people and to programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service_example import example, objective

from alerts.backtest import Backtest, History, aligned, backtest
from alerts.backtest_report import as_json, as_text
from slos.model import Objective, PolicyStep
from slos.plan import Plan

STEP = 60.0
START = 1_767_225_600.0
"""2026-01-01, midnight."""
HOUR = 60
DAY = 24 * HOUR

AVAILABILITY = objective("availability", "0.99")


def run(
    total: Sequence[float | None],
    bad: Sequence[float | None],
    promise: Objective = AVAILABILITY,
) -> tuple[Plan, Backtest]:
    plan = example(promise)
    return plan, backtest(plan, plan.objectives[0], History(START, STEP, bad, total))


def fired(result: Backtest) -> list[tuple[str, str, float, float | None]]:
    """Kind, window, first minute, length in minutes."""
    return [
        (
            firing.alert.kind,
            firing.pair.long if firing.pair else "",
            (firing.start - START) / STEP,
            None if firing.end is None else (firing.end - firing.start) / STEP,
        )
        for firing in result.firings
    ]


def outage(ratio: float) -> tuple[list[float], list[float]]:
    """Four days of 10 requests a second; on the last one half an hour with failures."""
    bad = [0.0] * 4 * DAY
    bad[3 * DAY : 3 * DAY + 30] = [10.0 * ratio] * 30
    return [10.0] * 4 * DAY, bad


def test_an_outage_fires_each_pair_until_its_short_window_has_forgotten_it() -> None:
    _, result = run(*outage(1.0))
    assert fired(result) == [
        # 13.44 % of an hour is there after nine minutes, and gone with the last bad one.
        ("burn", "1h", 3 * DAY + 8, 22),
        # 5.6 % of six hours after 21, until less than two minutes of the last 30 were bad.
        ("burn", "6h", 3 * DAY + 20, 38),
    ]


def test_a_failure_within_budget_fires_nothing() -> None:
    _, result = run(*outage(0.001))
    assert fired(result) == []
    assert result.worst_ratio == pytest.approx(18 / 3_456_000)


def test_few_bad_events_fire_nothing_however_large_their_share() -> None:
    total = [1 / 3600] * 4 * DAY  # one an hour, every second of them bad
    _, result = run(total, [rate / 2 for rate in total])
    burns = {window for kind, window, *_ in fired(result) if kind == "burn"}
    assert burns == {"1d", "3d"}  # only there are ten of them


def test_a_trickle_that_fails_is_told_where_pairs_say_nothing() -> None:
    total = [1 / (8 * 3600)] * 4 * DAY  # three a day, nine in the longest window
    _, result = run(total, total)
    told = {kind: (start, length) for kind, _, start, length in fired(result)}
    assert "burn" not in told
    start, length = told["trickle"]
    assert start == pytest.approx(2.5 * 8 * HOUR, abs=2)
    assert length is None
    half = [rate / 2 for rate in total]
    assert "trickle" not in {kind for kind, *_ in fired(run(total, half)[1])}


def test_steps_of_a_budget_policy_are_told_one_by_one() -> None:
    steps = (PolicyStep(Decimal("0.5"), "slow down"), PolicyStep(Decimal(1), "stop"))
    plan = example(AVAILABILITY, policy=steps)
    for share, due in ((0.004, 0), (0.0075, 1), (0.02, 2)):
        history = History(START, STEP, [10 * share] * DAY, [10.0] * DAY)
        result = backtest(plan, plan.objectives[0], history)
        assert [kind for kind, *_ in fired(result)].count("policy") == due


def test_a_spent_budget_and_silence_are_told() -> None:
    total: list[float | None] = [10.0] * DAY
    bad: list[float | None] = [1.0] * DAY
    total[600:700] = bad[600:700] = [None] * 100
    _, result = run(total, bad)
    kinds = {kind: (start, length) for kind, _, start, length in fired(result)}
    assert kinds["exhausted"] == (0, None)
    absent = int(example(AVAILABILITY).objectives[0].absent_seconds / 60)
    assert kinds["absent"] == (600 + absent, 100 - absent)
    assert result.measured_share == pytest.approx(1 - 100 / DAY)


def test_the_tightest_target_is_just_met() -> None:
    _, result = run([10.0] * DAY, [0.01234] * DAY)
    assert result.tightest_target == Decimal("0.9987")
    assert run([10.0] * DAY, [0.0] * DAY)[1].tightest_target == Decimal(1)
    assert run([None] * DAY, [None] * DAY)[1].tightest_target is None


rates = st.lists(st.none() | st.tuples(st.floats(0, 20), st.floats(0, 1)), min_size=1, max_size=300)


@given(rates, st.sampled_from(["0.5", "0.9", "0.99", "0.999"]))
def test_pairs_fire_exactly_when_both_windows_are_above(
    history: list[tuple[float, float] | None], target: str
) -> None:
    """Against sums that are taken anew at each step."""
    total = [None if one is None else one[0] for one in history]
    bad = [None if one is None else one[0] * one[1] for one in history]
    plan, result = run(total, bad, objective("availability", target))
    pair = plan.objectives[0].pairs[0]

    def ratio(index: int, steps: int) -> float:
        window = slice(max(0, index + 1 - steps), index + 1)
        events = sum(one or 0 for one in total[window])
        return sum(one or 0 for one in bad[window]) / events if events > 1e-6 else 0.0

    edge = float(pair.threshold)
    for index in range(len(history)):
        hour = ratio(index, HOUR)
        now = (bad[index] or 0) / total[index] if total[index] else 0.0
        many = sum(one or 0 for one in bad[max(0, index + 1 - HOUR) : index + 1]) * STEP
        if min(abs(hour - edge), abs(now - edge), abs(many - 10)) < 1e-6:
            continue  # float noise may decide
        at = START + index * STEP
        firing = any(
            one.pair == pair and one.start <= at and (one.end is None or at < one.end)
            for one in result.firings
        )
        assert firing == (hour > edge and now > edge and many >= 10)


def test_points_go_where_they_belong() -> None:
    points = [(START + 60.0, 1.0), (START + 180.0, float("nan")), (START + 999.0, 2.0)]
    assert aligned(START, STEP, 4, points) == [None, 1.0, None, None]


def test_the_text_says_when_for_how_long_and_what_was_left() -> None:
    plan, result = run(*outage(1.0))
    assert (
        as_text(plan, [result])
        == """\
chat availability: 99% over 28d, from 2026-01-01 00:00 to 2026-01-04 23:59 UTC
  3,456,000 requests, 18,000 of them bad (0.521%); measured 100.0% of the time
  tightest target that this history meets: 99.47%
  budget left, day by day: 01-01 100%, 01-02 100%, 01-03 100%, 01-04 48%
  would have fired:
    2026-01-04 00:08  page    ChatAvailabilityBudgetBurn (1h window) for 22m
    2026-01-04 00:20  page    ChatAvailabilityBudgetBurn (6h window) for 38m
"""
    )


def test_the_text_says_that_nothing_was_measured() -> None:
    plan, result = run([None] * 10, [None] * 10)
    assert "nothing was measured" in as_text(plan, [result])


def test_json_carries_the_same() -> None:
    plan, result = run(*outage(1.0))
    (found,) = json.loads(as_json([(plan, [result])]))
    assert found["service"] == "chat"
    assert found["tightest_target"] == float(result.tightest_target or 0)
    assert len(found["budget_left"]) == 4 * DAY
    assert found["fired"][0] == {
        "alert": "ChatAvailabilityBudgetBurn",
        "tier": "page",
        "window": "1h",
        "start": START + (3 * DAY + 8) * STEP,
        "end": START + (3 * DAY + 30) * STEP,
    }
