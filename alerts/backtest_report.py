"""Reports of backtests, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from textwrap import wrap
from typing import Any

from alerts.backtest import Backtest, Firing
from promql.expr import decimal_text, quote
from slos.durations import format_duration
from slos.plan import Plan

_WIDTH = 100
"""Maximum width of a line of days."""
_BLANK = "\u00a0"
"""A no-break space."""


def as_text(plan: Plan, backtests: Iterable[Backtest]) -> str:
    """Format the backtests of a service as text for terminals."""
    return "\n".join("\n".join(_lines(plan, each)) + "\n" for each in backtests)


def _lines(plan: Plan, backtest: Backtest) -> Iterator[str]:
    planned = backtest.planned
    objective = planned.objective
    if backtest.group:
        yield f"{plan.service.service} {objective.name}, {_labels(backtest.group)}"
    else:
        start, end = _moment(backtest.start), _moment(backtest.end)
        by_group = f" for each {' and '.join(objective.group_by)}" if objective.group_by else ""
        yield (
            f"{plan.service.service} {objective.name}: {_percent(objective.target)} over "
            f"{format_duration(plan.service.window)}{by_group}, from {start} to {end} UTC"
        )
    yield from _measured(backtest)
    if backtest.groups is not None:
        yield f"  {_groups(backtest)}"
    elif backtest.worst_ratio is not None:
        yield f"  tightest target that this history meets: {_tightest(backtest)}"
        left = f"budget left, day by day: {', '.join(_by_day(backtest))}"
        for line in wrap(left, _WIDTH, initial_indent="  ", subsequent_indent="    "):
            yield line.replace(_BLANK, " ")
    yield from _fired(backtest)


def _measured(backtest: Backtest) -> Iterator[str]:
    events, share = backtest.planned.indicator.events, f"{backtest.measured_share:.1%} of the time"
    if not backtest.measured_share:
        yield "  nothing was measured: Prometheus has no events of this objective"
    elif not backtest.total_events:
        yield f"  no {events}; measured {share}"
    else:
        ratio = backtest.bad_events / backtest.total_events
        yield (
            f"  {backtest.total_events:,.0f} {events}, {backtest.bad_events:,.0f} of "
            f"them bad ({ratio:.3%}); measured {share}"
        )


def _groups(backtest: Backtest) -> str:
    note = ", of which those below spent most of their budget" if backtest.groups else ""
    return f"{backtest.groups:,} groups{note}"


def _tightest(backtest: Backtest) -> str:
    tightest = backtest.tightest_target
    if tightest == 1:
        return "any, as nothing was bad"
    return _percent(tightest) if tightest else "none, as everything was bad"


def _by_day(backtest: Backtest) -> Iterator[str]:
    """Yield the remaining budget at the end of each day."""
    days: dict[date, float] = {}
    for time, left in backtest.budget:
        days[datetime.fromtimestamp(time, UTC).date()] = left
    for day, left in days.items():
        yield f"{day:%m-%d}{_BLANK}{left:.0%}"


def _fired(backtest: Backtest) -> Iterator[str]:
    if backtest.firings:
        yield "  would have fired:"
        yield from (f"    {_firing(firing)}" for firing in backtest.firings)
    elif backtest.measured_share:
        yield f"  no alert{' on all groups' * (backtest.groups is not None)} would have fired"


def _firing(firing: Firing) -> str:
    window = f" ({firing.pair.long} window)" if firing.pair else ""
    step = f" ({firing.policy_step} spent)" if firing.policy_step else ""
    lasted = (
        "and does still"
        if firing.end is None
        else f"for {format_duration(Decimal(round(firing.end - firing.start)))}"
    )
    return f"{_moment(firing.start)}  {firing.tier:6}  {firing.alert.name}{window}{step} {lasted}"


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={quote(value)}" for name, value in labels.items())


def as_json(tested: Iterable[tuple[Plan, Iterable[Backtest]]]) -> str:
    """Format backtests as JSON: times in seconds since the epoch, shares as ratios.

    docs/reference/json-output.md lists the keys.
    """
    found = [_object(plan, backtest) for plan, backtests in tested for backtest in backtests]
    return json.dumps(found, indent=2) + "\n"


def _object(plan: Plan, backtest: Backtest) -> dict[str, Any]:
    tightest = backtest.tightest_target
    return {
        "service": plan.service.service,
        "objective": backtest.planned.objective.name,
        "group": dict(backtest.group),
        "groups": backtest.groups,
        "target": float(backtest.planned.objective.target),
        "start": backtest.start,
        "end": backtest.end,
        "step_seconds": backtest.step,
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
                "policy_step": firing.policy_step or None,
                "start": firing.start,
                "end": firing.end,
            }
            for firing in backtest.firings
        ],
    }


def _moment(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M}"


def _percent(ratio: Decimal) -> str:
    return f"{decimal_text(ratio * 100)}%"
