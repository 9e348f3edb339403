"""Multi-window, multi-burn-rate arithmetic.

A pair of windows alerts when the error ratio over both is above ``threshold``: the long window
shows that a relevant share of the budget is spent, the short one that it still burns.  The burn
rate follows from the share to spend before the alert fires, ``share * period / long`` (Google SRE
Workbook, chapter 5), for the period of this SLO instead of the usual 30 days.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal
from functools import lru_cache

from promql.expr import decimal_text
from slos.durations import format_duration, parse_duration
from slos.model import BurnWindow, TierName

__all__ = [
    "LowTrafficCondition",
    "Pair",
    "TierName",
    "absent_seconds",
    "low_traffic_condition",
    "pairs",
]

# tier, long window, short window, share of the budget spent when it fires.  The last one is for
# periods above 30 days: without it a burn of two or three would spend such a budget unnoticed.
_SHAPES: tuple[tuple[TierName, str, str, Decimal], ...] = (
    ("page", "1h", "5m", Decimal("0.02")),
    ("page", "6h", "30m", Decimal("0.05")),
    ("ticket", "1d", "2h", Decimal("0.1")),
    ("ticket", "3d", "6h", Decimal("0.1")),
    ("ticket", "9d", "18h", Decimal("0.1")),
)
# A page pair for targets at which the first pair above sees a total outage too late.
_FAST: tuple[TierName, str, str] = ("page", "10m", "5m")
_LATE = Decimal(600 - 90)
"""Seconds of a total outage within which a page must fire, less a scrape and an evaluation."""
_ABSENT_SHARE = Decimal("0.1")
_ABSENT_SECONDS = (Decimal(300), Decimal(1800))
_MINUTE = Decimal(60)
# A small burn spends the budget of a day quickly: shorter periods get the burn rates of a week, or
# every blip would page.
_WEEK = Decimal(7 * 86_400)
_FEW = 3
"""Least failures to alert on at low traffic."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One burn-rate condition: fires above ``threshold`` (an error ratio) over both windows.

    ``burn_rate`` is the same as a multiple of the budget, rounded for display.
    """

    tier: TierName
    long: str
    short: str
    burn_rate: Decimal
    threshold: Decimal

    def seconds_to_fire(self, error_ratio: Decimal, guard: Decimal = Decimal(0)) -> Decimal | None:
        """Return the seconds of an ``error_ratio`` until this fires, None for never.

        ``guard`` is the traffic, in seconds, that holds the least number of bad events.  Traffic is
        constant and good before; scrape and evaluation delays are not included.
        """
        if error_ratio <= self.threshold:
            return None
        long = parse_duration(self.long)
        seconds = max(self.threshold * long, guard) / error_ratio
        if seconds > long:
            return None  # the window holds no more events than now
        return seconds.to_integral_value(ROUND_CEILING)


@lru_cache
def pairs(
    period: Decimal, target: Decimal, configured: tuple[BurnWindow, ...] = ()
) -> tuple[Pair, ...]:
    """Return the pairs for an SLO over ``period`` seconds, the most urgent first.

    ``configured`` pairs replace the default ones.  No threshold is above the middle between the
    budget and 100% errors: above 1 it could not fire.  A pair with the same threshold as a faster
    one is left out.
    """
    budget = 1 - target
    highest = _halfway(budget)
    wanted: list[tuple[TierName, str, str, Decimal]] = [
        (each.tier, format_duration(each.long), format_duration(each.short), each.burn_rate)
        for each in configured
    ] or [
        (tier, long, short, _burn_rate(share, period, parse_duration(long)))
        for tier, long, short, share in _SHAPES
    ]
    if not configured and wanted[0][3] * budget * parse_duration(wanted[0][1]) > _LATE:
        wanted.insert(0, (*_FAST, 1 / budget))
    chosen: list[Pair] = []
    for tier, long, short, rate in wanted:
        threshold = Decimal(decimal_text(min(rate * budget, highest)))
        if parse_duration(long) > period or (chosen and threshold >= chosen[-1].threshold):
            continue
        chosen.append(Pair(tier, long, short, _rounded(threshold / budget), threshold))
    return tuple(chosen)


def _burn_rate(share: Decimal, period: Decimal, seconds: Decimal) -> Decimal:
    return max(_rounded(share * max(period, _WEEK) / seconds), Decimal(1))


@dataclass(frozen=True, slots=True)
class LowTrafficCondition:
    """A condition for errors at low traffic: most of at least ``events`` bad within ``window``.

    "Most" is a ratio above ``threshold``, the middle between the budget and 100% errors.
    """

    window: str
    threshold: Decimal
    events: int

    @property
    def seconds_to_fire(self) -> Decimal:
        """Return the seconds of 100% errors until this fires, at constant low traffic."""
        return self.threshold * parse_duration(self.window)


def low_traffic_condition(
    chosen: Sequence[Pair], target: Decimal, least_bad_events: int
) -> LowTrafficCondition | None:
    """Return the condition for errors at low traffic, None if the pairs suffice.

    The pairs ignore fewer than ``least_bad_events``, as at one request per hour.  This condition
    needs three failures, so that a single one does not alert, and most events to be bad, so that
    three of a thousand do not.
    """
    if least_bad_events <= _FEW:
        return None
    window = max((pair.long for pair in chosen), key=parse_duration)
    return LowTrafficCondition(window, _halfway(1 - target), _FEW)


def _halfway(budget: Decimal) -> Decimal:
    """Return the error ratio in the middle between the budget and 100% errors."""
    return Decimal(decimal_text((1 + budget) / 2))


def absent_seconds(period: Decimal, target: Decimal) -> Decimal:
    """Return the seconds without a signal until an alert, in whole minutes.

    That is the time in which 100% errors spend a tenth of the budget, within 5 and 30 minutes: a
    restart does not alert, and missing data never goes unnoticed for long.
    """
    low, high = _ABSENT_SECONDS
    seconds = min(max(_ABSENT_SHARE * (1 - target) * period, low), high)
    return (seconds / _MINUTE).to_integral_value(ROUND_HALF_UP) * _MINUTE


def _rounded(value: Decimal) -> Decimal:
    """Round to four significant digits."""
    digits = 3 - value.adjusted()
    return Decimal(decimal_text(value.quantize(Decimal(1).scaleb(-max(digits, 0)), ROUND_HALF_UP)))
