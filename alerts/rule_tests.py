"""Tests that prove a service's rule file, for ``promtool test rules``.

Each test is a story that happens to the whole service: all objectives go through it at once, so
promtool evaluates the rule file once per story and needs seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from alerts.layout import document
from alerts.traffic import STEP, Phase, inputs, values
from promql.expr import Expr, Matcher, Vector, aggregate, call, decimal_text, number, vector
from slos import names
from slos.burn import Pair, TierName
from slos.durations import format_duration, parse_duration
from slos.plan import Plan, PlannedObjective

Item = dict[str, object]

_SETTLED = Decimal(600)
# What has just happened is seen by the next scrape, then by the next evaluation; and up to
# Prometheus 3 a range holds one sample more than its share.
_DELAY = 3 * STEP
_ALL = Decimal(1)
_HALF = Decimal("0.5")


def text(plan: Plan, *, source: str, version: str) -> str:
    """Return the promtool test file that lies beside the rule file of a service."""
    service = plan.service.service
    return document(
        f"Tests of the alerts of {service}. Run: promtool test rules {service}.test.yaml",
        {
            "rule_files": [f"{service}.rules.yaml"],
            "evaluation_interval": format_duration(STEP),
            "tests": [*_tests(plan)],
        },
        source=source,
        version=version,
    )


def _tests(plan: Plan) -> Iterator[Item]:
    yield _outage(plan)
    yield from _slow_burns(plan)
    yield _idle(plan)
    if plan.service.alerting.min_bad_events > 1:
        yield _one_failure(plan)
    yield _vanished(plan)


def _outage(plan: Plan) -> Item:
    waits = {planned: _outage_seconds(planned) for planned in plan.objectives}
    good = max(parse_duration(planned.pairs[0].long) for planned in plan.objectives)
    bad = max(waits.values()) + _DELAY
    good_again = max(parse_duration(planned.pairs[0].short) for planned in plan.objectives) + _DELAY
    busy = _busy(plan)
    checks = [_none(good, _alerted(plan, good))]
    for planned, wait in waits.items():
        page = _firing(plan, planned, planned.pairs[0])
        checks += [
            _none(good + max(wait / 2 - STEP, Decimal(0)), page),
            _some(good + wait + _DELAY, page),
            _none(good + bad + good_again, page),
        ]
    phases = [Phase(good, busy), Phase(bad, busy, bad=_ALL), Phase(good_again, busy)]
    return _test("a total outage pages in time, and only while it lasts", plan, phases, checks)


def _slow_burns(plan: Plan) -> Iterator[Item]:
    """Burn slower than any page asks for, and faster than the first ticket does.

    Objectives with the same indicator may need different ratios of the same series; each such
    ratio is a test of its own.
    """
    stories: dict[Decimal, list[PlannedObjective]] = {}
    for planned in plan.objectives:
        pages, tickets = _pairs(planned, "page"), _pairs(planned, "ticket")
        if tickets and not planned.indicator.in_slices:
            ratio = (pages[-1].threshold + tickets[0].threshold) / 2
            stories.setdefault(ratio, []).append(planned)
    for ratio, objectives in stories.items():
        checks = []
        for planned in objectives:
            ticket = _pairs(planned, "ticket")[0]
            checks.append(_some(_SETTLED, _firing(plan, planned, ticket)))
            checks += [
                _none(_SETTLED, _firing(plan, planned, page)) for page in _pairs(planned, "page")
            ]
        story = f"{decimal_text(ratio * 100)} % of events bad: a ticket, and no page"
        phases = [Phase(_SETTLED, _busy(plan), bad=ratio)]
        yield _test(story, plan, phases, checks, objectives)


def _idle(plan: Plan) -> Item:
    lasting = _longest_absence(plan) + _SETTLED
    ratios = Matcher("__name__", "=~", "slo:(period_)?error_ratio:.+")
    # What is not a number is not equal to anything, zero included.
    not_zero = Vector("", (ratios, *_service(plan))).compare("!=", number(0))
    untouched = vector(names.BUDGET_REMAINING, _service(plan)).compare("==", number(1))
    checks = [
        _none(lasting, _alerted(plan, lasting)),
        _none(lasting, not_zero),
        _some(lasting, untouched, len(plan.objectives)),
    ]
    phases = [Phase(lasting, Decimal(0))]
    return _test("an idle service raises nothing and spends nothing", plan, phases, checks)


def _one_failure(plan: Plan) -> Item:
    phases = [
        Phase(_SETTLED, Decimal(0)),
        Phase(STEP, Decimal(2), bad=_HALF),
        Phase(_SETTLED, Decimal(0)),
    ]
    end = 2 * _SETTLED + STEP
    checks = [_none(end, _alerted(plan, end))]
    return _test("one failure of two requests raises nothing", plan, phases, checks)


def _vanished(plan: Plan) -> Item:
    gone = _longest_absence(plan) + _DELAY
    checks = []
    for planned in plan.objectives:
        absent = _firing(plan, planned)
        checks += [
            _none(_SETTLED + planned.absent_seconds / 2, absent),
            _some(_SETTLED + planned.absent_seconds + _DELAY, absent),
            _none(_SETTLED + gone + _SETTLED, absent),
        ]
    busy = _busy(plan)
    phases = [Phase(_SETTLED, busy), Phase(gone, None), Phase(_SETTLED, busy)]
    return _test("signals that vanish are missed until they are back", plan, phases, checks)


def _outage_seconds(planned: PlannedObjective) -> Decimal:
    """How long a total outage takes to page, to a whole step."""
    seconds = planned.seconds_to_fire(planned.pairs[0], _ALL)
    assert seconds is not None  # noqa: S101  (every threshold is below 1)
    return _steps(seconds, ROUND_CEILING) * STEP


def _pairs(planned: PlannedObjective, tier: TierName) -> list[Pair]:
    return [pair for pair in planned.pairs if pair.tier == tier]


def _busy(plan: Plan) -> Decimal:
    """Return so many events for each step that no alert waits for its least number of bad ones."""
    per_second = max(
        planned.min_bad_events / (pair.threshold * _SETTLED)
        for planned in plan.objectives
        for pair in planned.pairs
    )
    # Twice that, as rates show the last minutes in part; and a round number.
    return _ALL.scaleb((2 * STEP * max(per_second, _ALL)).adjusted() + 1)


def _longest_absence(plan: Plan) -> Decimal:
    return max(planned.absent_seconds for planned in plan.objectives)


def _service(plan: Plan) -> tuple[Matcher, ...]:
    return (Matcher("service", "=", plan.service.service),)


def _alerted(plan: Plan, seconds: Decimal) -> Expr:
    """Select alerts that fired, or were about to, at any time in the last ``seconds``."""
    return call("count_over_time", vector("ALERTS", _service(plan), format_duration(seconds)))


def _firing(plan: Plan, planned: PlannedObjective, pair: Pair | None = None) -> Vector:
    """Select the firing burn alert of ``pair``; without one, the alert on missing signals."""
    alert = planned.burn if pair else planned.absent
    labels = {
        "alertname": alert.name,
        "alertstate": "firing",
        **names.series_labels(plan.service.service, planned.objective.name),
        **({"window": pair.long} if pair else {}),
    }
    return vector("ALERTS", labels)


def _none(seconds: Decimal, expr: Expr) -> Item:
    return _check(seconds, expr, [])


def _some(seconds: Decimal, expr: Expr, count: int = 1) -> Item:
    return _check(seconds, aggregate("count", expr), [{"labels": "{}", "value": count}])


def _check(seconds: Decimal, expr: Expr, samples: Sequence[Item]) -> Item:
    return {
        "expr": str(expr),
        "eval_time": format_duration(_steps(seconds, ROUND_FLOOR) * STEP),
        "exp_samples": samples,
    }


def _steps(seconds: Decimal, rounding: str) -> Decimal:
    return (seconds / STEP).to_integral_value(rounding)


def _test(
    name: str,
    plan: Plan,
    phases: Sequence[Phase],
    checks: Sequence[Item],
    objectives: Iterable[PlannedObjective] | None = None,
) -> Item:
    series = dict.fromkeys(
        made
        for planned in (objectives or plan.objectives)
        for made in inputs(planned, plan.service.selector)
    )
    return {
        "name": name,
        "interval": format_duration(STEP),
        "input_series": [
            {"series": made.series, "values": values(made, phases)} for made in series
        ],
        "promql_expr_test": checks,
    }
