"""Generate promtool tests of a hang in which no request ends.

The sidecar counts requests in flight as bad when they cross their threshold.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal

from alerts.checks import Item, burning, none, some
from alerts.traffic import DELAY, STEP, Phase, busy_pace, inputs, values
from promql.expr import call, number, vector
from slos import names
from slos.burn import Pair
from slos.durations import format_duration, parse_duration
from slos.plan import Plan, PlannedObjective
from slos.signals import SIGNALS


def tests(plan: Plan) -> Iterator[Item]:
    """Yield the test of the objectives for which requests in flight count, if any."""
    firsts = {
        planned: first
        for planned in plan.objectives
        if planned.in_flight_seconds is not None
        and (first := next((p for p in planned.alerting_pairs if p.tier == "page"), None))
    }
    if not firsts:
        return
    begin = max(parse_duration(first.long) for first in firsts.values())
    # Plain rules read rates, which look back over the base window.
    smoothed = parse_duration(names.BASE_WINDOW) if plan.service.rules == "plain" else Decimal(0)
    late = DELAY + smoothed
    hang = max(_pages(planned, first) for planned, first in firsts.items()) + late
    pace = busy_pace(plan)
    checks = []
    series = dict[str, str]()
    for planned, first in firsts.items():
        page, fires = burning(plan, planned, first), begin + _pages(planned, first) + late
        crossing = _steps(planned.in_flight_seconds or Decimal(0))
        own = names.series_labels(plan.service.service, planned.objective.name)
        bad = call("sum_over_time", vector(names.BAD, own, format_duration(hang)))
        checks += [
            none(begin + crossing, page),
            some(fires, bad.compare(">", number(0))),
            some(fires, page),
        ]
        phases = [
            Phase(begin, pace),
            Phase(crossing, Decimal(0)),
            Phase(hang - crossing, pace, bad=Decimal(1)),
        ]
        for made in inputs(planned, plan.service):
            series[made.series] = values(made, phases)
    ended = vector(
        SIGNALS["requests"].metric,
        {**plan.service.selector, "outcome": "ok"},
        format_duration(hang - DELAY),
    )
    counter = str(vector(ended.metric, ended.matchers))
    steps = int(begin / STEP)
    series[counter] = f"0+{pace}x{steps} {pace * steps}+0x{int(hang / STEP)}"
    checks.append(some(begin + hang, call("changes", ended).compare("==", number(0))))
    yield {
        "name": "a hang in which no request ends pages when requests in flight are late",
        "interval": format_duration(STEP),
        "input_series": [{"series": name, "values": text} for name, text in series.items()],
        "promql_expr_test": checks,
    }


def _pages(planned: PlannedObjective, first: Pair) -> Decimal:
    """Return the seconds of a hang until an alert fires, in whole steps."""
    seconds = planned.hang_seconds(first)
    assert seconds is not None  # noqa: S101  (all callers' objectives have one)
    return _steps(seconds)


def _steps(seconds: Decimal) -> Decimal:
    return (seconds / STEP).to_integral_value(ROUND_CEILING) * STEP
