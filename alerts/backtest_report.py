"""A backtest for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from alerts.backtest import Backtest, Firing
from promql.expr import decimal_text
from slos.durations import format_duration
from slos.plan import Plan

_DAY = 86_400


def as_text(plan: Plan, backtests: Iterable[Backtest]) -> str:
    """Write what came of a service's objectives as a text for terminals."""
    return "\n".join("\n".join(_lines(plan, each)) + "\n" for each in backtests)


def _lines(plan: Plan, backtest: Backtest) -> Iterator[str]:
    planned, history = backtest.planned, backtest.history
    objective = planned.objective
    start, end = history.start, history.time(len(history.total) - 1)
    yield (
        f"{plan.service.service} {objective.name}: {_percent(objective.target)} over "
        f"{format_duration(plan.service.window)}, from {_moment(start)} to {_moment(end)} UTC"
    )
    if backtest.worst_ratio is None:
        yield "  nothing was measured: Prometheus has no events of this objective"
        return
    ratio = backtest.bad_events / backtest.total_events if backtest.total_events else 0.0
    yield (
        f"  {backtest.total_events:,.0f} {planned.indicator.events}, {backtest.bad_events:,.0f} of "
        f"them bad ({ratio:.3%}); measured {backtest.measured_share:.1%} of the time"
    )
    if tightest := backtest.tightest_target:
        yield f"  tightest target that this history meets: {_percent(tightest)}"
    yield f"  budget left, day by day: {', '.join(_by_day(backtest))}"
    if not backtest.firings:
        yield "  no alert would have fired"
        return
    yield "  would have fired:"
    yield from (f"    {_fired(firing)}" for firing in backtest.firings)


def _by_day(backtest: Backtest) -> Iterator[str]:
    """Yield what was left at the end of each day."""
    days: dict[str, float] = {}
    for time, left in backtest.budget:
        days[f"{datetime.fromtimestamp(time, UTC):%m-%d}"] = left
    for day, left in days.items():
        yield f"{day} {left:.0%}"


def _fired(firing: Firing) -> str:
    window = f" ({firing.pair.long} window)" if firing.pair else ""
    lasted = (
        "and does still"
        if firing.end is None
        else f"for {format_duration(Decimal(round(firing.end - firing.start)))}"
    )
    return f"{_moment(firing.start)}  {firing.tier:6}  {firing.alert.name}{window} {lasted}"


def as_json(tested: Iterable[tuple[Plan, Iterable[Backtest]]]) -> str:
    """Write backtests as JSON; times are in seconds since the epoch, shares are ratios."""
    found = [_object(plan, backtest) for plan, backtests in tested for backtest in backtests]
    return json.dumps(found, indent=2) + "\n"


def _object(plan: Plan, backtest: Backtest) -> dict[str, Any]:
    tightest = backtest.tightest_target
    return {
        "service": plan.service.service,
        "objective": backtest.planned.objective.name,
        "target": float(backtest.planned.objective.target),
        "start": backtest.history.start,
        "step_seconds": backtest.history.step,
        "total_events": backtest.total_events,
        "bad_events": backtest.bad_events,
        "measured_share": backtest.measured_share,
        "worst_error_ratio": backtest.worst_ratio,
        "tightest_target": None if tightest is None else float(tightest),
        "budget_left": [list(point) for point in backtest.budget],
        "fired": [
            {
                "alert": firing.alert.name,
                "tier": firing.tier,
                "window": firing.pair.long if firing.pair else None,
                "start": firing.start,
                "end": firing.end,
            }
            for firing in backtest.firings
        ],
    }


def _moment(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M}"


def _percent(ratio: Decimal) -> str:
    return f"{decimal_text((ratio * 100).quantize(Decimal('0.000001'), ROUND_HALF_UP))}%"
