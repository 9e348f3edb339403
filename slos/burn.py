"""Multi-window, multi-burn-rate arithmetic.

A pair of windows alerts when the error ratio over both is above ``threshold``: the long window says
that a worthwhile share of the budget is gone, the short one that it is still burning.  The burn
rate follows from what shall be spent when the alert fires, ``share * period / long`` (Google SRE
Workbook, chapter 5), for the period of this SLO instead of the usual 30 days.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

from slos.durations import parse_duration

TierName = Literal["page", "ticket"]

# tier, long window, short window, share of the budget spent when it fires
_SHAPES: tuple[tuple[TierName, str, str, Decimal], ...] = (
    ("page", "1h", "5m", Decimal("0.02")),
    ("page", "6h", "30m", Decimal("0.05")),
    ("ticket", "1d", "2h", Decimal("0.1")),
    ("ticket", "3d", "6h", Decimal("0.1")),
)
# LLM objectives are often 90 or 95 %.  There the textbook rate asks for an error ratio near or
# above 1: a total outage would page late or never.  Half of all events bad is reason enough.
_HIGHEST_THRESHOLD = Decimal("0.5")
_ABSENT_SHARE = Decimal("0.1")
_ABSENT_SECONDS = (Decimal(300), Decimal(1800))


@dataclass(frozen=True, slots=True)
class Pair:
    """One burn-rate condition: fires above ``threshold`` (an error ratio) over both windows."""

    tier: TierName
    long: str
    short: str
    burn_rate: Decimal
    threshold: Decimal

    def seconds_to_fire(self, error_ratio: Decimal) -> Decimal | None:
        """How long ``error_ratio`` must last, from a clean slate, until this fires; None: never."""
        if error_ratio <= self.threshold:
            return None
        return self.threshold * parse_duration(self.long) / error_ratio


def pairs(period: Decimal, target: Decimal) -> tuple[Pair, ...]:
    """Return the pairs for an SLO over ``period`` seconds, the most urgent first.

    No pair has a burn rate below 1 (such a burn is within budget), none needs more than half of all
    events to be bad unless the budget itself is larger, and a pair is left out when a faster one
    already asks for no more than it.
    """
    budget = 1 - target
    chosen: list[Pair] = []
    for tier, long, short, share in _SHAPES:
        burn_rate = max(share * period / parse_duration(long), Decimal(1))
        threshold = min(burn_rate * budget, max(_HIGHEST_THRESHOLD, budget))
        if chosen and threshold >= chosen[-1].threshold:
            continue
        chosen.append(Pair(tier, long, short, _rounded(threshold / budget), _rounded(threshold)))
    return tuple(chosen)


def absent_seconds(period: Decimal, target: Decimal) -> Decimal:
    """Return how long signals may be missing before someone should know.

    A tenth of the budget, were everything bad meanwhile; at least 5 and at most 30 minutes, so that
    a restart is not an incident and blindness never lasts.
    """
    low, high = _ABSENT_SECONDS
    seconds = min(max(_ABSENT_SHARE * (1 - target) * period, low), high)
    return seconds.quantize(Decimal(1), ROUND_HALF_UP)


def _rounded(value: Decimal) -> Decimal:
    """Keep four significant digits: more than anyone tunes, and no tail of repeating decimals."""
    digits = 3 - value.adjusted()
    return value.quantize(Decimal(1).scaleb(-max(digits, 0)), ROUND_HALF_UP)
