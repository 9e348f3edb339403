"""Burn-rate arithmetic: properties of every period and target, and numbers computed by hand."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promql.expr import decimal_text
from slos.burn import Pair, absent_seconds, pairs
from slos.durations import parse_duration
from slos.model import BurnWindow

DAY = Decimal(86_400)
TICKETS = ("ticket 1d 2.8", "ticket 3d 1")
LONG = ("ticket 3d 3", "ticket 9d 1")
STATED_SHARE = {
    "10m": Decimal(1),
    "1h": Decimal("0.02"),
    "6h": Decimal("0.05"),
    "1d": Decimal("0.1"),
    "3d": Decimal("0.1"),
    "9d": Decimal("0.1"),
}

periods = st.integers(1, 90).map(lambda days: days * DAY)
targets = st.integers(1, 99_999).map(lambda share: Decimal(share).scaleb(-5))
ratios = st.integers(1, 10_000).map(lambda share: Decimal(share).scaleb(-4))


def test_a_day_has_the_burn_rates_of_a_week() -> None:
    of_a_week = {pair.long: pair.burn_rate for pair in pairs(7 * DAY, Decimal("0.999"))}
    of_a_day = {pair.long: pair.burn_rate for pair in pairs(DAY, Decimal("0.999"))}
    assert of_a_week["1h"] == Decimal("3.36")
    assert of_a_day.items() <= of_a_week.items()


def rounded_up(share: Decimal) -> Decimal:
    """Round a share up by the error of a burn rate with four significant digits."""
    return share * Decimal("1.0005")


@given(periods, targets)
def test_every_pair_can_fire_and_none_fires_within_budget(period: Decimal, target: Decimal) -> None:
    for pair in pairs(period, target):
        assert 1 - target <= pair.threshold < 1
        assert pair.burn_rate >= 1
        assert pair.seconds_to_fire(Decimal(1)) is not None
        assert pair.seconds_to_fire(pair.threshold) is None


@given(periods, targets)
def test_windows_are_within_the_period_and_in_the_usual_proportion(
    period: Decimal, target: Decimal
) -> None:
    for pair in pairs(period, target):
        assert parse_duration(pair.long) <= period
        proportion = 2 if pair.long == "10m" else 12
        assert parse_duration(pair.short) * proportion == parse_duration(pair.long)


@given(periods, targets)
def test_slower_pairs_have_lower_burn_rates_and_pages_come_first(
    period: Decimal, target: Decimal
) -> None:
    chosen = pairs(period, target)
    assert chosen[0].tier == "page"
    for faster, slower in pairwise(chosen):
        assert slower.threshold < faster.threshold
        assert parse_duration(slower.long) > parse_duration(faster.long)
        assert (faster.tier, slower.tier) != ("ticket", "page")


@given(periods, targets)
def test_every_burn_above_1_fires_a_pair(period: Decimal, target: Decimal) -> None:
    assert pairs(period, target)[-1].threshold == 1 - target


@given(periods, targets)
def test_no_more_is_spent_than_stated_unless_the_burn_rate_is_1(
    period: Decimal, target: Decimal
) -> None:
    for pair in pairs(period, target):
        spent = pair.threshold / (1 - target) * parse_duration(pair.long) / period
        stated = STATED_SHARE[pair.long] * max(7 * DAY / period, Decimal(1))
        assert spent <= rounded_up(stated) or pair.threshold == 1 - target


@given(periods, targets)
def test_less_is_spent_than_stated_only_halfway_to_everything_being_bad(
    period: Decimal, target: Decimal
) -> None:
    for pair in pairs(period, target):
        spent = pair.threshold / (1 - target) * parse_duration(pair.long) / period
        halfway = (2 - target) / 2
        assert rounded_up(spent) >= STATED_SHARE[pair.long] or pair.threshold == halfway


@given(periods, targets)
def test_numbers_are_written_without_noise(period: Decimal, target: Decimal) -> None:
    for pair in pairs(period, target):
        assert len(decimal_text(pair.burn_rate).replace(".", "").strip("0")) <= 4
        assert len(decimal_text(pair.threshold).partition(".")[2]) <= 10
        assert str(pair.burn_rate) == decimal_text(pair.burn_rate)


def fires(pair: Pair, error_ratio: float, step: float = 1.0) -> float:
    """Play a burn second by second: how long until the recorded series are above the threshold."""
    needed = float(pair.threshold * parse_duration(pair.long))
    shown, seconds = 0.0, 0.0
    while shown <= needed:
        shown += error_ratio * step
        seconds += step
    return seconds


@given(periods, targets, ratios)
def test_the_time_to_fire_is_that_of_the_recorded_series(
    period: Decimal, target: Decimal, beyond: Decimal
) -> None:
    pair = pairs(period, target)[0]
    error_ratio = pair.threshold + beyond * (1 - pair.threshold)
    seconds = pair.seconds_to_fire(error_ratio)
    assert seconds is not None
    assert float(seconds) == pytest.approx(fires(pair, float(error_ratio)), abs=2)


@given(periods, targets, ratios, ratios)
def test_a_higher_error_ratio_fires_sooner_and_a_guard_delays(
    period: Decimal, target: Decimal, one: Decimal, other: Decimal
) -> None:
    better, worse = sorted((one, other))
    for pair in pairs(period, target):
        soon, late = pair.seconds_to_fire(worse), pair.seconds_to_fire(better)
        assert late is None or soon <= late
        delayed = pair.seconds_to_fire(worse, guard=Decimal(900))
        if soon is None or 900 / worse > parse_duration(pair.long):  # that many never come together
            assert delayed is None
        else:
            assert delayed >= soon


def test_pairs_at_30_days_are_those_of_the_sre_workbook() -> None:
    assert pairs(30 * DAY, Decimal("0.999")) == (
        Pair("page", "1h", "5m", Decimal("14.4"), Decimal("0.0144")),
        Pair("page", "6h", "30m", Decimal(6), Decimal("0.006")),
        Pair("ticket", "1d", "2h", Decimal(3), Decimal("0.003")),
        Pair("ticket", "3d", "6h", Decimal(1), Decimal("0.001")),
    )


@pytest.mark.parametrize(
    ("days", "target", "expected"),
    [
        (28, "0.999", ["page 1h 13.44", "page 6h 5.6", "ticket 1d 2.8", "ticket 3d 1"]),
        (
            28,
            "0.97",
            ["page 10m 17.17", "page 1h 13.44", "page 6h 5.6", "ticket 1d 2.8", "ticket 3d 1"],
        ),
        (28, "0.95", ["page 10m 10.5", "page 6h 5.6", "ticket 1d 2.8", "ticket 3d 1"]),
        (28, "0.9", ["page 10m 5.5", "ticket 1d 2.8", "ticket 3d 1"]),
        (28, "0.5", ["page 10m 1.5", "ticket 3d 1"]),
        (7, "0.99", ["page 1h 3.36", "page 6h 1.4", "ticket 1d 1"]),
        (
            90,
            "0.99",
            [
                "page 10m 50.5",
                "page 1h 43.2",
                "page 6h 18",
                "ticket 1d 9",
                "ticket 3d 3",
                "ticket 9d 1",
            ],
        ),
    ],
)
def test_pairs_are_those_computed_by_hand(days: int, target: str, expected: list[str]) -> None:
    chosen = pairs(days * DAY, Decimal(target))
    assert [f"{pair.tier} {pair.long} {pair.burn_rate}" for pair in chosen] == expected


@pytest.mark.parametrize(
    ("target", "error_ratio", "seconds"),
    [
        ("0.999", "1", 49),  # 1.344 % of an hour
        ("0.99", "1", 484),
        ("0.99", "0.5", 968),
        ("0.95", "1", 315),  # over half of 10 minutes
        ("0.95", "0.5", None),
    ],
)
def test_times_to_page_are_those_computed_by_hand(
    target: str, error_ratio: str, seconds: int | None
) -> None:
    page = pairs(28 * DAY, Decimal(target))[0]
    assert page.seconds_to_fire(Decimal(error_ratio)) == seconds


@given(periods, targets.filter(lambda target: target >= Decimal("0.3")))
def test_a_total_outage_pages_within_10_minutes(period: Decimal, target: Decimal) -> None:
    first = pairs(period, target)[0]
    seconds = first.seconds_to_fire(Decimal(1))
    assert first.tier == "page"
    assert seconds is not None
    assert seconds <= 600 - 90, "less a scrape and an evaluation"


def test_configured_windows_replace_the_usual_ones() -> None:
    windows = (
        BurnWindow("page", Decimal(1800), Decimal(300), Decimal(20)),
        BurnWindow("ticket", 2 * DAY, Decimal(14_400), Decimal("1.5")),
    )
    assert pairs(28 * DAY, Decimal("0.99"), windows) == (
        Pair("page", "30m", "5m", Decimal(20), Decimal("0.2")),
        Pair("ticket", "2d", "4h", Decimal("1.5"), Decimal("0.015")),
    )


@given(periods, targets)
def test_missing_signals_alert_within_half_an_hour(period: Decimal, target: Decimal) -> None:
    seconds = absent_seconds(period, target)
    assert 300 <= seconds <= 1800
    assert seconds % 60 == 0


def test_a_tight_budget_alerts_on_missing_signals_sooner() -> None:
    waits = [absent_seconds(28 * DAY, Decimal(target)) for target in ("0.99", "0.997", "0.9999")]
    assert waits == [1800, 720, 300]
