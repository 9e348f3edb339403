"""Explain SLOs in numbers: budgets, detection times, minimum traffic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Decimal
from typing import Any

from promql.expr import decimal_text
from slos.burn import Pair
from slos.durations import format_duration
from slos.indicators import good_sentence, indicator_of
from slos.model import Service
from slos.plan import Plan, PlannedObjective
from slos.text_table import text_table

FAILURES = (Decimal(1), Decimal("0.5"), Decimal("0.2"))
"""Error ratios with a detection time."""

_MILLION = Decimal(1_000_000)


@dataclass(frozen=True, slots=True)
class AlertTimes:
    """Times to alert of one pair of windows, in seconds by error ratio; None for never.

    With ``time_slices`` the ratio is that of the events in a slice.  ``least_events`` is the number
    of events in a pair's long window at which a total outage alerts; None for time slices.
    """

    pair: Pair
    fires: Mapping[Decimal, Decimal | None]
    least_events: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """An objective's budget and alerts.

    ``outage`` is the budget in seconds of 100% errors over the whole window.  ``bad_events`` of
    ``total_events`` is the budget in events: of a million, or of those at a given traffic.
    """

    planned: PlannedObjective
    outage: Decimal
    bad_events: Decimal
    total_events: Decimal
    alerts: tuple[AlertTimes, ...]
    hang: Decimal | None

    def first(self, tier: str, ratio: Decimal) -> Decimal | None:
        """Return the seconds until the first alert of a tier fires, None for never."""
        times = [alert.fires[ratio] for alert in self.alerts if alert.pair.tier == tier]
        return min((time for time in times if time is not None), default=None)


def explain(plan: Plan, events_per_second: Decimal | None = None) -> tuple[Explanation, ...]:
    """Explain all objectives of a plan, optionally at a given traffic."""
    return tuple(_explained(plan, planned, events_per_second) for planned in plan.objectives)


def _explained(
    plan: Plan, planned: PlannedObjective, events_per_second: Decimal | None
) -> Explanation:
    window = plan.service.window
    budget = 1 - planned.objective.target
    total = _MILLION
    if planned.indicator.slice:
        total = window / planned.indicator.slice
    elif events_per_second is not None:
        total = events_per_second * window
    return Explanation(
        planned,
        outage=budget * window,
        bad_events=(budget * total).to_integral_value(ROUND_FLOOR),
        total_events=total.to_integral_value(ROUND_HALF_UP),
        alerts=tuple(_times(planned, pair, events_per_second) for pair in planned.alerting_pairs),
        hang=_hang(planned, events_per_second),
    )


def _hang(planned: PlannedObjective, events_per_second: Decimal | None) -> Decimal | None:
    """Return the seconds until a page for a hang in which no request ends."""
    pages = (pair for pair in planned.alerting_pairs if pair.tier == "page")
    times = (planned.hang_seconds(pair, events_per_second) for pair in pages)
    return min((time for time in times if time is not None), default=None)


def _times(planned: PlannedObjective, pair: Pair, events_per_second: Decimal | None) -> AlertTimes:
    return AlertTimes(
        pair,
        {ratio: planned.seconds_to_fire(pair, ratio, events_per_second) for ratio in FAILURES},
        None if planned.indicator.in_slices else planned.min_bad_events,
    )


# Text


def as_text(plan: Plan, explanations: Iterable[Explanation]) -> str:
    """Render explanations as text for a terminal."""
    service = plan.service
    owner = f", owned by {service.owner}" if service.owner else ""
    title = f"{service.service}: over {format_duration(service.window)}{owner}"
    lines = (line for each in explanations for line in _lines(service, each))
    return "\n".join([title, *lines, *_policy(service)]) + "\n"


def _policy(service: Service) -> Iterator[str]:
    if service.policy:
        yield ""
        yield "budget policy, for each objective:"
        rows = [(f"{_percent(step.spent)} spent", step.do) for step in service.policy]
        yield from (f"  {line}" for line in text_table(rows))


def _lines(service: Service, explanation: Explanation) -> Iterator[str]:
    planned = explanation.planned
    objective, indicator = planned.objective, planned.indicator
    yield ""
    yield (
        f"{objective.name}: {_percent(objective.target)} of {indicator.events} are good, that is: "
        f"{good_sentence(objective)}"
    )
    yield (
        f"  budget: {_percent(1 - objective.target)}, {_count(explanation.bad_events)} of "
        f"{_count(explanation.total_events)} {indicator.events}, or {_time(explanation.outage)} of "
        "total outage"
    )
    if objective.group_by:
        yield f"  kept for each {' and '.join(objective.group_by)} by itself: budget and alerts"
    if slices := objective.slices:
        counted = indicator_of(replace(objective, slices=None)).events
        yield (
            f"  a slice is bad as a whole if more than {_percent(1 - slices.target)} of its "
            f'{counted} are; below, "50% bad" says half of them'
        )
    if objective.owner:
        yield f"  owned by {service.owns(objective)}"
    heads = [
        "tier",
        "windows",
        "burn rate",
        "above",
        *(f"{_percent(ratio)} bad" for ratio in FAILURES),
        "least traffic",
    ]
    rows = [_row(alert) for alert in explanation.alerts]
    yield from (f"  {line}" for line in text_table([heads, *rows]))
    yield f"  {_verdict(explanation)}"
    if explanation.hang is not None:
        yield f"  a hang in which no request ends pages after {_time(explanation.hang)}"
    condition = planned.low_traffic
    if condition is not None and planned.low_traffic_errors in planned.alerts:
        yield (
            f"  less traffic than that, over {_percent(condition.threshold)} bad and at least "
            f"{condition.events} in {condition.window}: {planned.low_traffic_errors.name} opens a "
            f"ticket, within {_time(condition.seconds_to_fire)} of total failure"
        )
    if planned.absent in planned.alerts:
        urgency = "pages" if planned.absent_tier == "page" else "opens a ticket"
        lasting = _time(planned.absent_seconds)
        yield f"  nothing measured for {lasting}: {planned.absent.name} {urgency}"


def _row(alert: AlertTimes) -> list[str]:
    pair = alert.pair
    least = "" if alert.least_events is None else f"{alert.least_events} in {pair.long}"
    return [
        pair.tier,
        f"{pair.long} and {pair.short}",
        decimal_text(pair.burn_rate),
        _percent(pair.threshold),
        *(_time(alert.fires[ratio]) for ratio in FAILURES),
        least,
    ]


def _verdict(explanation: Explanation) -> str:
    outage = FAILURES[0]
    page, ticket = (explanation.first(tier, outage) for tier in ("page", "ticket"))
    if page is not None:
        return f"a total outage pages after {_time(page)}"
    if ticket is not None:
        return f"a total outage does not page; it opens a ticket after {_time(ticket)}"
    return "a total outage fires none of these"


def _percent(ratio: Decimal) -> str:
    return f"{decimal_text(ratio * 100)}%"


def _count(number: Decimal) -> str:
    return f"{number:,.0f}"


def _time(seconds: Decimal | None) -> str:
    """Write a time in minutes from an hour on, in seconds below, and to 0.1 s below ten seconds."""
    if seconds is None:
        return "never"
    unit = Decimal("0.1") if seconds < 10 else Decimal(1) if seconds < 3600 else Decimal(60)
    return format_duration((seconds / unit).to_integral_value(ROUND_HALF_UP) * unit)


# JSON


def as_json(plans: Iterable[tuple[Plan, Iterable[Explanation]]]) -> str:
    """Render explanations as JSON: durations in seconds, shares as ratios, as numbers.

    docs/reference/json-output.md lists the keys.
    """
    services = [
        {
            "service": plan.service.service,
            "file": plan.service.file,
            "window_seconds": _number(plan.service.window),
            "budget_policy": [
                {"spent": _number(step.spent), "do": step.do} for step in plan.service.policy
            ],
            "objectives": [_object(plan.service, each) for each in explanations],
        }
        for plan, explanations in plans
    ]
    return json.dumps(services, indent=2) + "\n"


def _object(service: Service, explanation: Explanation) -> dict[str, Any]:
    planned = explanation.planned
    return {
        "name": planned.objective.name,
        "indicator": planned.objective.indicator,
        "owner": service.owns(planned.objective),
        "group_by": list(planned.objective.group_by),
        "good": good_sentence(planned.objective),
        "target": _number(planned.objective.target),
        "budget": {
            "ratio": _number(1 - planned.objective.target),
            "outage_seconds": _number(explanation.outage),
            "bad_events": _number(explanation.bad_events),
            "total_events": _number(explanation.total_events),
        },
        "alerts": [
            {
                "name": planned.burn.name,
                "tier": alert.pair.tier,
                "long": alert.pair.long,
                "short": alert.pair.short,
                "burn_rate": _number(alert.pair.burn_rate),
                "error_ratio_above": _number(alert.pair.threshold),
                "seconds_to_fire": {
                    decimal_text(ratio): _number(time) for ratio, time in alert.fires.items()
                },
                "least_bad_events": alert.least_events,
            }
            for alert in explanation.alerts
        ],
        "low_traffic": _low_traffic(planned),
        "absent_seconds": _number(planned.absent_seconds),
        "hang_seconds": _number(explanation.hang),
    }


def _low_traffic(planned: PlannedObjective) -> dict[str, Any] | None:
    condition = planned.low_traffic
    if condition is None or planned.low_traffic_errors not in planned.alerts:
        return None
    return {
        "name": planned.low_traffic_errors.name,
        "window": condition.window,
        "error_ratio_above": _number(condition.threshold),
        "least_bad_events": condition.events,
        "seconds_to_fire": _number(condition.seconds_to_fire),
    }


def _number(value: Decimal | None) -> float | int | None:
    if value is None:
        return None
    return int(value) if value == value.to_integral_value() else float(value)
