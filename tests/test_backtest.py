"""Backtests of alerts on history: results as values, text and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from promql_parser import parse
from service_example import example, objective

from alerts.backtest import Backtest, History, aligned, backtest
from alerts.backtest_report import as_json, as_text
from alerts.history import PrometheusHistory
from promql.client import QueryTooLargeError, Series
from slos.durations import parse_duration
from slos.model import Alerting, Objective, PolicyStep
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
    chosen: Objective = AVAILABILITY,
) -> tuple[Plan, Backtest]:
    plan = example(chosen)
    return plan, backtest(plan, plan.objectives[0], History(START, STEP, bad, total))


def fired(result: Backtest) -> list[tuple[str, str, float, float | None]]:
    """Return kind, window, first minute and length in minutes of each firing."""
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
    """Return rates of four days at 10 requests/s, with failures in half an hour of the last."""
    bad = [0.0] * 4 * DAY
    bad[3 * DAY : 3 * DAY + 30] = [10.0 * ratio] * 30
    return [10.0] * 4 * DAY, bad


def test_an_outage_fires_each_pair_until_its_short_window_has_passed() -> None:
    _, result = run(*outage(1.0))
    assert fired(result) == [
        # 13.44% of an hour is reached after nine minutes, and lost with the last bad one.
        ("burn", "1h", 3 * DAY + 8, 22),
        # 5.6% of six hours after 21, until less than two minutes of the last 30 were bad.
        ("burn", "6h", 3 * DAY + 20, 38),
    ]


def test_a_failure_within_budget_fires_nothing() -> None:
    _, result = run(*outage(0.001))
    assert fired(result) == []
    assert result.worst_ratio == pytest.approx(18 / 3_456_000)


def test_few_bad_events_fire_nothing_however_large_their_share() -> None:
    total = [1 / 3600] * 4 * DAY  # one per hour, half of them bad
    _, result = run(total, [rate / 2 for rate in total])
    burns = {window for kind, window, *_ in fired(result) if kind == "burn"}
    assert burns == {"1d", "3d"}  # only these windows hold ten bad events


def test_errors_at_low_traffic_fire_below_the_guard_of_the_pairs() -> None:
    total = [1 / (8 * 3600)] * 4 * DAY  # three per day, nine in the longest window
    _, result = run(total, total)
    found = {kind: (start, length) for kind, _, start, length in fired(result)}
    assert "burn" not in found
    start, length = found["low_traffic"]
    assert start == pytest.approx(2.5 * 8 * HOUR, abs=2)
    assert length is None
    many = [rate * 4 for rate in total]  # enough for the burn-rate pairs
    assert "burn" in {kind for kind, *_ in fired(run(many, many)[1])}
    late = [(kind, start) for kind, _, start, length in fired(run(many, many)[1]) if not length]
    assert "low_traffic" not in dict(late)
    half = [rate / 2 for rate in total]
    assert "low_traffic" not in {kind for kind, *_ in fired(run(total, half)[1])}


def test_steps_of_a_budget_policy_fire_one_by_one() -> None:
    steps = (PolicyStep(Decimal("0.5"), "slow down"), PolicyStep(Decimal(1), "stop"))
    plan = example(AVAILABILITY, policy=steps)
    for share, due in ((0.13, 0), (0.15, 1), (0.29, 2)):
        history = History(START, STEP, [10 * share] * DAY, [10.0] * DAY)
        result = backtest(plan, plan.objectives[0], history)
        assert [kind for kind, *_ in fired(result)].count("policy") == due


def test_a_spent_budget_and_a_missing_metric_fire() -> None:
    total: list[float | None] = [10.0] * DAY
    bad: list[float | None] = [10.0] * DAY
    total[600:700] = bad[600:700] = [None] * 100
    _, result = run(total, bad)
    kinds = {kind: (start, length) for kind, _, start, length in fired(result)}
    assert kinds["exhausted"] == (403, None)  # 1% of 28 days
    absent = int(example(AVAILABILITY).objectives[0].absent_seconds / 60)
    assert kinds["absent"] == (600 + absent, 100 - absent)
    assert result.measured_share == pytest.approx(1 - 100 / DAY)


@pytest.mark.parametrize(("least", "fires"), [(1, True), (2, False)])
def test_a_guard_of_one_event_has_no_effect(least: int, fires: bool) -> None:
    plan = example(AVAILABILITY, alerting=Alerting(min_bad_events=least))
    history = History(START, STEP, [0.5 / 600] * 10, [1 / 600] * 10)
    found = backtest(plan, plan.objectives[0], history).firings
    assert any(firing.alert.kind == "burn" for firing in found) is fires


def test_disabled_alerts_do_not_fire() -> None:
    off = Alerting(disable=frozenset({"page", "exhausted", "absent"}))
    plan = example(AVAILABILITY, alerting=off)
    total, bad = outage(1.0)
    total[-60:] = bad[-60:] = [None] * 60  # type: ignore[list-item]
    found = backtest(
        plan, plan.objectives[0], History(START, STEP, [10.0] * 600 + bad, [10.0] * 600 + total)
    )
    assert {firing.alert.kind for firing in found.firings} == {"burn"}
    assert {firing.tier for firing in found.firings} == {"ticket"}


def test_absence_alerts_are_pending_for_as_long_as_in_the_rules() -> None:
    plan = example(objective("ttft"))
    (planned,) = plan.objectives
    lasting = int(planned.absent_seconds / 60)
    steps = range(3 * lasting)
    rates = [1.0] * len(steps)

    def fires(**flags: list[bool]) -> list[tuple[str, str, float, float | None]]:
        history = History(START, STEP, [0.0] * len(steps), rates, **flags)
        found = backtest(plan, planned, history).firings
        minutes = [(at and (at - START) / STEP) for f in found for at in (f.start, f.end)]
        return [(f.alert.kind, f.tier, *minutes[2 * i :][:2]) for i, f in enumerate(found)]  # type: ignore[misc]

    long = [at < 2 * lasting for at in steps]
    assert fires(missing=long) == [("absent", "page", lasting, 2 * lasting)]
    assert fires(uncovered=long) == [("absent", "ticket", lasting, 2 * lasting)]
    # While Prometheus is down, the pending time starts again.
    away = [at == lasting - 1 for at in steps]
    assert fires(missing=long, down=away) == []


def test_history_that_begins_late_is_measured_from_its_first_sample() -> None:
    """Earlier time is not good time; an outage at the start is not the worst day."""
    plan = example(AVAILABILITY, window=Decimal(86_400))
    bad: list[float | None] = [None] * DAY + [1.0] * 60 + [0.0] * (2 * DAY - 60)
    total: list[float | None] = [None] * DAY + [1.0] * 2 * DAY
    result = backtest(plan, plan.objectives[0], History(START, STEP, bad, total))
    assert result.worst_ratio == pytest.approx(60 / DAY)


histories = st.lists(
    st.none() | st.tuples(st.floats(0, 20), st.floats(0, 1)), min_size=30, max_size=80
)


@given(histories)
@settings(max_examples=40)
def test_the_proposed_target_is_met_and_one_step_tighter_is_not(
    rates: list[tuple[float, float] | None],
) -> None:
    """Replay the same history, over every complete window where it is long enough."""
    total = [None if one is None else one[0] for one in rates]
    bad = [None if one is None else one[0] * one[1] for one in rates]
    hourly = History(START, 3600.0, bad, total)

    def least_left(target: Decimal) -> float:
        chosen = replace(AVAILABILITY, target=target)
        plan = example(chosen, window=Decimal(86_400))
        remaining = backtest(plan, plan.objectives[0], hourly).budget
        began = next(index for index, one in enumerate(total) if one is not None)
        complete = [one for at, one in remaining if at >= hourly.time(began + 23)]
        return min(complete) if complete else remaining[-1][1]

    plan = example(AVAILABILITY, window=Decimal(86_400))
    target = backtest(plan, plan.objectives[0], hourly).tightest_target
    if target is None or target in (0, 1):
        return
    assert 0 < target < 1
    assert least_left(target) >= -1e-9
    tighter = target + Decimal(1).scaleb(int(target.as_tuple().exponent))
    assert tighter >= 1 or least_left(tighter) < 0


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
    """Compare with sums that are computed from scratch at each step."""
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
        hour = ratio(index, int(parse_duration(pair.long) / 60))
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


class StoredRates:
    """A Prometheus that matches queries by a substring and returns at most ``most`` points."""

    def __init__(self, most: int, **rates: dict[str, float]) -> None:
        self.most, self.rates, self.queries = most, rates, list[tuple[str, int]]()

    def __call__(self, query: str, first: float, last: float, step: float) -> list[Series]:
        points = round((last - first) / step) + 1
        if points > self.most:
            raise QueryTooLargeError("too many samples")
        self.queries.append((query, points))
        much = points * STEP if "sum_over_time" in query else 1.0
        series = [
            Series({"tenant": tenant}, {first + at * step: rate * much for at in range(points)})
            for word, rates in self.rates.items()
            for tenant, rate in rates.items()
            if word in query
        ]
        return series if " by (tenant)" in query else series[:1]


def archive(stored: StoredRates, done: list[int]) -> PrometheusHistory:
    return PrometheusHistory(stored, 2, START + 2 * 86_400, done.append)


GROUPED = replace(AVAILABILITY, group_by=("tenant",))
FAILED = 'outcome=~"error|draining|timeout|truncated|shed"'
ANSWERED = 'outcome=~"ok|error|draining|timeout|truncated|shed"'


def test_queries_shrink_when_prometheus_refuses_them() -> None:
    plan = example(AVAILABILITY)
    (planned,) = plan.objectives
    stored, done = StoredRates(300, **{FAILED: {"": 0.0}, ANSWERED: {"": 2.0}}), list[int]()
    queries = archive(stored, done)
    history = queries.whole(plan, planned)
    assert list(history.total) == [2.0] * 2 * DAY
    assert list(history.bad) == [0.0] * 2 * DAY
    assert sum(done) == queries.work([plan])
    assert max(points for _, points in stored.queries) <= 300
    with pytest.raises(QueryTooLargeError):
        archive(StoredRates(30), []).whole(plan, planned)


def test_the_worst_groups_are_found_and_small_groups_with_few_failures_come_last() -> None:
    plan = example(GROUPED)
    (planned,) = plan.objectives
    tenants = {f"t{number}": 1.0 for number in range(50)}
    failures = {"t7": 0.2, "t8": 0.5, 't$1\\"\n': 0.4, "small": 1 / 86_400}
    stored = StoredRates(
        2_000, **{FAILED: failures, ANSWERED: tenants | {'t$1\\"\n': 1.0, "small": 1 / 86_400}}
    )
    found = archive(stored, []).groups(planned, 4)
    assert found.worst == (("t8",), ('t$1\\"\n',), ("t7",), ("small",))
    assert found.count == 52
    histories = list(archive(stored, []).by_group(planned, found))
    assert [group["tenant"] for group, _ in histories] == [tenant for (tenant,) in found.worst]
    query = next(text for text, _ in stored.queries if "label_replace" in text)
    assert query.endswith(
        'label_replace(vector(1), "tenant", "small", "", ""))'
    )  # so that Prometheus returns no other group
    assert 'label_replace(vector(1), "tenant", "t$$1\\\\\\"\\n", "", "")' in query
    assert parse(query)


def test_points_are_aligned_to_steps() -> None:
    points = [(START + 60.0, 1.0), (START + 180.0, float("nan")), (START + 999.0, 2.0)]
    assert aligned(START, STEP, 4, points) == [None, 1.0, None, None]


def test_the_text_reports_firings_durations_and_remaining_budget() -> None:
    plan, result = run(*outage(1.0))
    assert (
        as_text(plan, [result])
        == """\
chat availability: 99% over 28d, from 2026-01-01 00:00 to 2026-01-04 23:59 UTC
  3,456,000 requests, 18,000 of them bad (0.521%); measured 100.0% of the time
  tightest target that this history meets: 99.47%
  budget left, day by day: 01-01 100%, 01-02 100%, 01-03 100%, 01-04 93%
  would have fired:
    2026-01-04 00:08  page    ChatAvailabilityErrorBudgetBurn (1h window) for 22m
    2026-01-04 00:20  page    ChatAvailabilityErrorBudgetBurn (6h window) for 38m
"""
    )


@pytest.mark.parametrize(
    ("total", "bad", "found"),
    [
        (None, None, "nothing was measured"),
        (0.0, 0.0, "no requests; measured 100.0% of the time"),
        (1.0, 0.0, "tightest target that this history meets: any, as nothing was bad"),
        (1.0, 1.0, "tightest target that this history meets: none, as everything was bad"),
        (1.0, 0.99551, "tightest target that this history meets: 0.44%"),
        (1.0, 1.21e-9, "tightest target that this history meets: 99.99999987%"),
    ],
)
def test_the_text_reports_the_tightest_target(
    total: float | None, bad: float | None, found: str
) -> None:
    plan, result = run([total] * 10, [bad] * 10)
    assert found in as_text(plan, [result])


def test_a_year_lists_every_day_once_within_the_point_limit() -> None:
    days = 366
    plan = example(AVAILABILITY)
    history = History(START, 600.0, [0.0] * days * 144, [1.0] * days * 144)
    result = backtest(plan, plan.objectives[0], history)
    text = as_text(plan, [result])
    assert text.count("100%") == days
    assert max(map(len, text.splitlines())) <= 100
    assert len(result.budget) <= 11_000
    assert result.budget[-1][0] == result.end


def test_json_reports_the_same_as_the_text() -> None:
    plan, result = run(*outage(1.0))
    (found,) = json.loads(as_json([(plan, [result])]))
    assert found["service"] == "chat"
    assert found["tightest_target"] == float(result.tightest_target or 0)
    assert len(found["budget_left"]) == 4 * DAY
    assert found["fired"][0] == {
        "alert": "ChatAvailabilityErrorBudgetBurn",
        "tier": "page",
        "window": "1h",
        "policy_step": None,
        "start": START + (3 * DAY + 8) * STEP,
        "end": START + (3 * DAY + 30) * STEP,
    }
