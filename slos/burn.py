"""Multi-window, multi-burn-rate arithmetic.

A pair of windows alerts when the error ratio over both is above ``threshold``: the long window says
that a worthwhile share of the budget is gone, the short one that it is still burning.  The burn
rate follows from what shall be spent when the alert fires, ``share * period / long`` (Google SRE
Workbook, chapter 5), for the period of this SLO instead of the usual 30 days.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal
from typing import Literal

from promql.expr import decimal_text
from slos.durations import parse_duration
from slos.names import BASE_WINDOW

TierName = Literal["page", "ticket"]

# tier, long window, short window, share of the budget spent when it fires.  The last one is for
# periods above 30 days: without it a burn of two or three would spend such a budget unnoticed.
_SHAPES: tuple[tuple[TierName, str, str, Decimal], ...] = (
    ("page", "1h", "5m", Decimal("0.02")),
    ("page", "6h", "30m", Decimal("0.05")),
    ("ticket", "1d", "2h", Decimal("0.1")),
    ("ticket", "3d", "6h", Decimal("0.1")),
    ("ticket", "9d", "18h", Decimal("0.1")),
)
_ABSENT_SHARE = Decimal("0.1")
_ABSENT_SECONDS = (Decimal(300), Decimal(1800))
_MINUTE = Decimal(60)


@dataclass(frozen=True, slots=True)
class Pair:
    """One burn-rate condition: fires above ``threshold`` (an error ratio) over both windows.

    ``burn_rate`` says the same as a multiple of the budget, rounded for people.
    """

    tier: TierName
    long: str
    short: str
    burn_rate: Decimal
    threshold: Decimal

    def seconds_to_fire(self, error_ratio: Decimal, guard: Decimal = Decimal(0)) -> Decimal | None:
        """How long ``error_ratio`` must last, after a good spell, until this fires; None: never.

        ``guard`` is how many seconds of traffic the least number of bad events is.  At constant
        traffic, and but for the wait for the next scrape and evaluation.  The recorded rates look
        back over the base window, so a failure shows in them gradually: fully after one base
        window, until then with the square of time.
        """
        if error_ratio <= self.threshold:
            return None
        base = parse_duration(BASE_WINDOW)
        of_bad = max(self.threshold * parse_duration(self.long), guard) / error_ratio
        seconds = of_bad + base / 2 if of_bad >= base / 2 else (2 * base * of_bad).sqrt()
        return seconds.to_integral_value(ROUND_CEILING)


def pairs(period: Decimal, target: Decimal) -> tuple[Pair, ...]:
    """Return the pairs for an SLO over ``period`` seconds, the most urgent first.

    No pair asks for less than a burn rate of 1 (that is within budget), nor for more than halfway
    from the budget to everything being bad: LLM objectives are often 90 or 95 %, and there the
    textbook rate would page late or never in a total outage.  A pair is left out when its window is
    longer than the period, or when a faster one already asks for no more.
    """
    budget = 1 - target
    highest = (1 + budget) / 2
    chosen: list[Pair] = []
    for tier, long, short, share in _SHAPES:
        seconds = parse_duration(long)
        wanted = max(_rounded(share * period / seconds), Decimal(1))
        threshold = min(wanted * budget, highest)
        if seconds > period or (chosen and threshold >= chosen[-1].threshold):
            continue
        burn_rate = _rounded(threshold / budget)
        chosen.append(Pair(tier, long, short, burn_rate, Decimal(decimal_text(threshold))))
    return tuple(chosen)


def absent_seconds(period: Decimal, target: Decimal) -> Decimal:
    """Return how long signals may be missing before someone should know, in whole minutes.

    A tenth of the budget, were everything bad meanwhile; at least 5 and at most 30 minutes, so that
    a restart is not an incident and blindness never lasts.
    """
    low, high = _ABSENT_SECONDS
    seconds = min(max(_ABSENT_SHARE * (1 - target) * period, low), high)
    return (seconds / _MINUTE).to_integral_value(ROUND_HALF_UP) * _MINUTE


def _rounded(value: Decimal) -> Decimal:
    """Keep four significant digits: more than anyone tunes, and no tail of repeating decimals."""
    digits = 3 - value.adjusted()
    return Decimal(decimal_text(value.quantize(Decimal(1).scaleb(-max(digits, 0)), ROUND_HALF_UP)))
