"""Tests of what becomes of the two recorded rates, for ``promtool test rules``.

How events are counted is the matter of :mod:`alerts.rule_tests`; here the rates are given.  So all
objectives go through a story at once, each at its own error ratio, and the rules are evaluated only
every four minutes: even pairs with long windows can be shown to need both of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal

from alerts.checks import Item, burning, fires, firing, none, some
from alerts.layout import document
from alerts.traffic import STEP, groups
from promql.expr import decimal_text, vector
from slos import names
from slos.burn import Pair
from slos.durations import format_duration, parse_duration
from slos.plan import Plan, PlannedObjective

_EVERY = Decimal(240)
"""Seconds between two evaluations: less than a lookup sees back."""
_SEEN = 2 * _EVERY
"""After so long everybody has seen it: promtool evaluates groups in any order."""
_SPELL = _SEEN + _EVERY
_SPARSE = Decimal(120)
_LONGEST = parse_duration("6h")
"""Short windows above this would take promtool too long; they follow the same rule."""
_DIGITS = Context(prec=12)
_ABOVE, _BELOW = Decimal("1.02"), Decimal("0.98")


@dataclass(frozen=True, slots=True)
class _Spell:
    """So many bad and other events a second for ``seconds``."""

    seconds: Decimal
    bad: Decimal
    total: Decimal


_Rates = dict[PlannedObjective, list[_Spell]]


def text(plan: Plan, *, source: str, version: str) -> str:
    """Return the promtool test file for windows and budgets of a service."""
    service = plan.service.service
    return document(
        f"Tests of the windows and budgets of {service}. "
        f"Run: promtool test rules {service}.budget.test.yaml",
        {
            "rule_files": [f"{service}.rules.yaml"],
            "evaluation_interval": format_duration(_EVERY),
            "tests": [test for stories in _STORIES for test in stories(plan)],
        },
        source=source,
        version=version,
    )


def _thresholds(plan: Plan) -> Iterator[Item]:
    """Burn a hair above and a hair below what each pair asks for."""
    alerting = {planned: planned.alerting_pairs for planned in plan.objectives}
    for number in range(max(map(len, alerting.values()), default=0)):
        told = {planned: pairs for planned, pairs in alerting.items() if number < len(pairs)}
        for ratio, word in ((_ABOVE, "a hair above"), (_BELOW, "a hair below")):
            rates, checks = _Rates(), list[Item]()
            for planned, pairs in told.items():
                asked = pairs[number].threshold
                share = min(asked * ratio, (asked + 1) / 2)
                rates[planned] = [_steadily(planned, share)]
                checks += [
                    fires(_SPELL, burning(plan, planned, pair), does=share > pair.threshold)
                    for pair in pairs
                ]
            story = f"{word} what pair {number + 1} of each objective asks for"
            yield _test(story, plan, rates, checks)


def _windows(plan: Plan) -> Iterator[Item]:
    """Let the short window of each pair tell of another time than the long one.

    First a burst of good events hides from the long windows what has been bad since; then a burst
    of bad ones shows in them what has long been good again.
    """
    told = {
        planned: pairs
        for planned in plan.objectives
        if (pairs := [each for each in planned.alerting_pairs if _short(each) <= _LONGEST])
    }
    if not told:
        return
    quiet = max(_short(pair) for pairs in told.values() for pair in pairs) + _SEEN
    rates, checks = _Rates(), list[Item]()
    for planned, pairs in told.items():
        little = _round_above((planned.min_bad_events + 1) / STEP)
        least, most = pairs[-1].threshold, pairs[0].threshold
        good = _round_above(4 * little * quiet / (least * _SPELL))
        bad = _round_above(4 * good / (1 - most))
        none_, rates[planned] = Decimal(0), []
        for seconds, failing, every in (
            (_SPELL, none_, good),
            (quiet, little, little),
            (_SPELL, bad, bad),
            (quiet, none_, little),
        ):
            rates[planned].append(_Spell(seconds, failing, every))
        over = 2 * _SPELL + quiet
        for pair in pairs:
            alert, seen = burning(plan, planned, pair), _short(pair) + _SEEN
            checks += [none(_SPELL + seen, alert), some(over, alert), none(over + seen, alert)]
    yield _test("every pair needs both of its windows", plan, rates, checks, _SPARSE)


def _guards(plan: Plan) -> Iterator[Item]:
    """Let everything be bad, of nearly as much as an alert waits for and then of more."""
    rates, checks = _Rates(), list[Item]()
    for planned in plan.objectives:
        if planned.min_bad_events <= 1:
            continue
        each = planned.min_bad_events * Decimal("0.9") / _SPELL
        rates[planned] = [_Spell(2 * _SPELL, each, each)]
        alerts = [burning(plan, planned, pair) for pair in planned.alerting_pairs]
        if planned.exhausted in planned.alerts:
            alerts.append(firing(plan, planned, planned.exhausted))
        if planned.policy in planned.alerts:
            steps = (_step(step.spent) for step in planned.policy_steps)
            alerts += [firing(plan, planned, planned.policy, **step) for step in steps]
        checks += [none(_SPELL, alert) for alert in alerts]
        checks += [some(2 * _SPELL, alert) for alert in alerts]
    if checks:
        yield _test("few bad events raise nothing until there are enough", plan, rates, checks)


def _trickles(plan: Plan) -> Iterator[Item]:
    """Let just enough be bad, and a hair more or less of all than the alert on a trickle wants."""
    for part, word in ((_ABOVE, "above"), (_BELOW, "below")):
        rates, checks = _Rates(), list[Item]()
        for planned in plan.objectives:
            if planned.trickle is None or planned.failing_trickle not in planned.alerts:
                continue
            most = planned.trickle.threshold
            share = min(most * part, (most + 1) / 2)
            bad = planned.trickle.events / _SPELL
            rates[planned] = [_Spell(_SPELL, bad, bad / share)]
            alert = firing(plan, planned, planned.failing_trickle)
            checks.append(fires(_SPELL, alert, does=share > most))
        if checks:
            yield _test(f"a hair {word} the share that a trickle is told at", plan, rates, checks)


def _spent(plan: Plan) -> Iterator[Item]:
    """Spend a hair more and a hair less of each budget than a step of the policy asks for."""
    all_ = Decimal(1)
    for share in sorted({all_, *(step.spent for step in plan.service.policy)}):
        for part, word in ((_ABOVE, "more"), (_BELOW, "less")):
            rates, checks = _Rates(), list[Item]()
            for planned in plan.objectives:
                budget = 1 - planned.objective.target
                spent = min(share * part, 1 / budget)
                rates[planned] = [_steadily(planned, spent * budget)]
                if planned.exhausted in planned.alerts:
                    alert = firing(plan, planned, planned.exhausted)
                    checks.append(fires(_SPELL, alert, does=spent > 1))
                if planned.policy in planned.alerts:
                    checks += [
                        fires(
                            _SPELL,
                            firing(plan, planned, planned.policy, **_step(step.spent)),
                            does=spent > step.spent,
                        )
                        for step in planned.policy_steps
                    ]
            if checks:
                story = f"a little {word} than {names.policy_step(share)} of each budget is spent"
                yield _test(story, plan, rates, checks)


def _step(spent: Decimal) -> Mapping[str, str]:
    return {names.STEP_LABEL: names.policy_step(spent)}


def _steadily(planned: PlannedObjective, ratio: Decimal) -> _Spell:
    """Return a share of bad events, so many of them that no alert waits for more."""
    total = _round_above(4 * max(planned.min_bad_events, 1) / (ratio * _SPELL))
    return _Spell(_SPELL, total * ratio, total)


def _round_above(value: Decimal) -> Decimal:
    return Decimal(1).scaleb(value.adjusted() + 1)


def _short(pair: Pair) -> Decimal:
    return parse_duration(pair.short)


def _test(
    name: str, plan: Plan, rates: _Rates, checks: Sequence[Item], step: Decimal = STEP
) -> Item:
    return {
        "name": name,
        "interval": format_duration(step),
        "input_series": [
            {"series": str(vector(recorded, _labels(plan, planned))), "values": _values(rate, step)}
            for planned, spells in rates.items()
            for recorded, rate in (
                (names.BAD_RATE, [(each.seconds, each.bad) for each in spells]),
                (names.TOTAL_RATE, [(each.seconds, each.total) for each in spells]),
            )
        ],
        "promql_expr_test": checks,
    }


def _labels(plan: Plan, planned: PlannedObjective) -> Mapping[str, str]:
    recorded = names.series_labels(plan.service.service, planned.objective.name)
    return {**recorded, **groups(planned, plan.service)[0]}


def _values(rate: Iterable[tuple[Decimal, Decimal]], step: Decimal) -> str:
    """Write a rate in promtool's notation, from a sample before its first second on."""
    words: list[str] = []
    for seconds, value in rate:
        # `x` is followed by the samples after the first one.
        more = int(seconds / step) - (1 if words else 0)
        words.append(f"{decimal_text(_DIGITS.plus(value))}+0x{more}")
    return " ".join(words)


_STORIES: Sequence[Callable[[Plan], Iterator[Item]]] = (
    _thresholds,
    _windows,
    _guards,
    _trickles,
    _spent,
)
