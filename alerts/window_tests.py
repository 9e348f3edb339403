"""Generate promtool tests of windows, thresholds and budgets on recorded increases.

:mod:`alerts.rule_tests` covers how events are counted; here the increases are given, and the rules
are evaluated once, after a whole period: so windows of any length are tested in seconds, each
objective with different numbers.  Samples are evenly spaced and the last comes a minute before the
evaluation, so that no sample is at the limit of a window: Prometheus 3 excludes the oldest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from itertools import product
from types import MappingProxyType

from alerts.checks import Item, fires, some
from alerts.rules import alert_labels
from alerts.traffic import groups
from promql.expr import decimal_text, number, vector
from slos import names
from slos.burn import Pair
from slos.durations import format_duration, parse_duration
from slos.events import MINUTE
from slos.generated_yaml import document
from slos.plan import Plan, PlannedAlert, PlannedObjective
from slos.yaml_text import Commented

_EVERY = Decimal(300)
"""Seconds between two samples; a multiple of it where a test needs samples of a long period."""
_MOST_SAMPLES = 9_000
"""promtool refuses queries that load more than 10,000 samples of a series."""
_LATE = Decimal(MINUTE)
_MIN_HISTORY = Decimal(300)
"""Samples of a history in which the two evaluations of the test are negligible."""
_ALL_UP_TO, _OF_EACH_KIND = 50, 5
"""Up to this number all objectives of a service are tested; of more, some of each kind."""
_DIGITS = Context(prec=12)
_ABOVE, _BELOW = Decimal("1.01"), Decimal("0.99")
_MANY = Decimal(1_000_000)
_MOST_EXACT = 10**9
"""Up to here, sums of a long window's samples are exact in floating point."""
_ALL, _NONE = Decimal(1), Decimal(0)


@dataclass(frozen=True, slots=True)
class _Spell:
    """A number of ``samples`` with the same events, and bad ones among them."""

    samples: int
    total: Decimal
    bad: Decimal


_Spells = Sequence[_Spell]
_Scenario = Mapping[PlannedObjective, _Spells]


def text(plan: Plan, rule_files: Sequence[str], *, source: str, version: str) -> str:
    """Return the promtool test file for windows, thresholds, guards and budgets of a service."""
    service, tested = plan.service.service, _tested(plan)
    few = len(tested.objectives) < len(plan.objectives)
    which = f"{len(tested.objectives)} of {len(plan.objectives):,} objectives" if few else service
    return document(
        f"Tests of the windows and budgets of {which}. "
        f"Run: promtool test rules {service}.windows.test.yaml",
        {
            "rule_files": rule_files,
            "evaluation_interval": format_duration(_end(plan)),
            "tests": [test for scenarios in _SCENARIOS for test in scenarios(tested)],
        },
        source=source,
        version=version,
    )


def _step(plan: Plan) -> Decimal:
    """Return the seconds between the samples of a whole period."""
    least = plan.service.window / (_EVERY * _MOST_SAMPLES)
    return _EVERY * max(least.to_integral_value(ROUND_CEILING), Decimal(1))


def _end(plan: Plan) -> Decimal:
    """Return the time of the evaluation."""
    step = _step(plan)
    return plan.service.window // step * step + _LATE


def _samples(window: Decimal, step: Decimal) -> int:
    """Return the number of samples of a window at the evaluation."""
    return int(((window - _LATE) / step).to_integral_value(ROUND_CEILING))


def _tested(plan: Plan) -> Plan:
    """Return a plan of the objectives to test: of many, some of each kind.

    These tests depend on an objective's target, windows, guard and policy, not on its events;
    promtool takes seconds for each objective.
    """
    if len(plan.objectives) <= _ALL_UP_TO:
        return plan
    kinds: dict[object, list[PlannedObjective]] = {}
    for planned in plan.objectives:
        kind = (
            planned.objective.target,
            planned.indicator.in_slices,
            planned.objective.slices,
            planned.min_bad_events,
            tuple(alert.kind for alert in planned.alerts),
            bool(planned.objective.group_by),
        )
        kinds.setdefault(kind, []).append(planned)
    chosen = {each.objective.name for same in kinds.values() for each in same[:_OF_EACH_KIND]}
    return replace(
        plan, objectives=tuple(each for each in plan.objectives if each.objective.name in chosen)
    )


def _ratios(plan: Plan) -> Iterator[Item]:
    """Let ratio and traffic grow with age, so that no two windows have the same of either."""
    scenario, checks = dict[PlannedObjective, _Spells](), list[Item]()
    whole, step = plan.service.window, _step(plan)
    for place, planned in enumerate(plan.objectives, 1):
        ends = [*map(parse_duration, planned.windows), whole]
        spells, before = [_Spell(1, Decimal(10_000), Decimal(place))], 0
        for position, end in enumerate(dict.fromkeys(ends), 1):
            samples = int(end / step) - before
            bad = Decimal(place + 2 ** min(position, 12)) * position
            if samples:
                spells.append(_Spell(samples, Decimal(10_000 * position), bad))
            before += samples
        scenario[planned] = spells[::-1]
        for window in planned.windows:
            checks.append(_is_near(plan, planned, names.error_ratio(window), scenario, window))
        checks.append(
            _is_near(plan, planned, names.PERIOD_ERROR_RATIO, scenario, format_duration(whole))
        )
    about = "Traffic and error ratio change at the begin of every window."
    name, recorded = "every window has its own error ratio", dict.fromkeys(scenario, whole)
    yield _test(name, about, plan, scenario, checks, recorded)


def _is_near(
    plan: Plan, planned: PlannedObjective, series: str, scenario: _Scenario, window: str
) -> Item:
    """Expect a ratio to be that of the samples of a window."""
    found = _ratio(scenario[planned], _samples(parse_duration(window), _step(plan)))
    recorded = vector(series, _labels(plan, planned))
    low, high = found * Decimal("0.998"), found * Decimal("1.002")
    between = recorded.compare(">", number(_DIGITS.plus(low)))
    return some(_end(plan), between.compare("<", number(_DIGITS.plus(high))))


def _ratio(spells: _Spells, last: int) -> Decimal:
    """Return the share of bad events in the last samples."""
    bad = total = _NONE
    for spell in reversed(spells):
        count = min(spell.samples, last)
        last -= count
        bad, total = bad + count * spell.bad, total + count * spell.total
    return bad / total


def _thresholds(plan: Plan) -> Iterator[Item]:
    """Burn a little above the threshold of each pair, and exactly at it."""
    alerting = {planned: planned.alerting_pairs for planned in plan.objectives}
    for place in range(max(map(len, alerting.values()), default=0)):
        for part, word in ((_ABOVE, "1 % above"), (_ALL, "at")):
            scenario, checks = dict[PlannedObjective, _Spells](), list[Item]()
            for planned, pairs in alerting.items():
                if place >= len(pairs):
                    continue
                threshold = pairs[place].threshold
                share = min(threshold * part, (threshold + 1) / 2)
                longest = max(parse_duration(pair.long) for pair in pairs)
                scenario[planned] = [_steady(planned, share, longest, _EVERY)]
                checks += [
                    _burns(plan, planned, pair, does=share > pair.threshold) for pair in pairs
                ]
            about = "A steady error ratio, for as long as the longest window."
            name = f"{word} the threshold of pair {place + 1}"
            yield _test(name, about, plan, scenario, checks)


def _steady(planned: PlannedObjective, share: Decimal, seconds: Decimal, step: Decimal) -> _Spell:
    """Return a share of bad events, enough of them for every guard in one sample.

    They are whole numbers where those stay exact in promtool, so that their ratio is the share.
    """
    least = 2 * max(planned.min_bad_events, 1)
    bad, total = map(Decimal, share.as_integer_ratio())
    if total > _MOST_EXACT:
        bad, total = share, _ALL
    times = (least / bad).to_integral_value(ROUND_CEILING)
    return _Spell(int(seconds / step) + 1, total * times, bad * times)


def _both_windows(plan: Plan) -> Iterator[Item]:
    """Let one window of each pair contradict the other, and every longer and shorter one."""
    alerting = {planned: planned.alerting_pairs for planned in plan.objectives}
    for place in range(max(map(len, alerting.values()), default=0)):
        for word in ("long", "short"):
            scenario, checks = dict[PlannedObjective, _Spells](), list[Item]()
            for planned, pairs in alerting.items():
                if place < len(pairs):
                    pair = pairs[place]
                    samples = {
                        "long": _samples(parse_duration(pair.long), _EVERY),
                        "short": _samples(parse_duration(pair.short), _EVERY),
                    }
                    scenario[planned] = [
                        _Spell(samples["long"], _MANY**4, _MANY**4),
                        _Spell(1, _MANY**3, _NONE),
                        _Spell(samples[word] - 1, _MANY, _MANY),
                    ]
                    checks.append(_burns(plan, planned, pair, does=False))
            about = f"The error ratio is 0 over the {word} window, and 1 over all others."
            name = f"pair {place + 1} is quiet when its {word} window does not burn"
            yield _test(name, about, plan, scenario, checks)


def _guards(plan: Plan) -> Iterator[Item]:
    """Let all events be bad: as many as the guard of an alert requires, and one less.

    All but one are the oldest in the alert's window, and the same number is older.
    """
    guarded = [each for each in plan.objectives if each.min_bad_events > 1]
    about = "All events are bad: the newest, and at both sides of the begin of the window."
    places = range(max((len(each.alerting_pairs) for each in guarded), default=0))
    for place, (less, word) in product(places, _GUARDED):
        scenario, checks = dict[PlannedObjective, _Spells](), list[Item]()
        for planned in guarded:
            if place < len(planned.alerting_pairs):
                pair = planned.alerting_pairs[place]
                scenario[planned] = _just(
                    planned, less, _samples(parse_duration(pair.long), _EVERY)
                )
                checks.append(_burns(plan, planned, pair, does=not less))
        yield _test(f"pair {place + 1} has {word} bad events", about, plan, scenario, checks)
    samples = _samples(plan.service.window, _step(plan))
    for less, word in _GUARDED:
        scenario = {planned: _just(planned, less, samples) for planned in guarded}
        checks = [check for each in guarded for check in _spends(plan, each, does=not less)]
        if checks:
            recorded = {planned: _history(plan, planned) for planned in scenario}
            name = f"the budget has {word} bad events"
            yield _test(name, about, plan, scenario, checks, recorded)


_GUARDED = ((0, "the least number of"), (1, "one less than the least number of"))


def _just(planned: PlannedObjective, less: int, samples: int) -> _Spells:
    """Return as many bad events as the guard requires, or less, in ``samples`` samples."""
    least = planned.min_bad_events
    bad = [least, least - less] if samples == 1 else [least, least - less - 1, 0, 1]
    counts = [1, 1] if samples == 1 else [1, 1, samples - 2, 1]
    total = [bad[0], bad[1] + less, *bad[2:]]  # the same number of events, if not all are bad
    spells = zip(counts, total, bad, strict=True)
    return [_Spell(count, Decimal(all_), Decimal(some)) for count, all_, some in spells]


def _spends(plan: Plan, planned: PlannedObjective, *, does: bool) -> Iterator[Item]:
    """Expect all alerts on the budget, or none."""
    if planned.exhausted in planned.alerts:
        yield _fires(plan, planned, planned.exhausted, does=does)
    for step in planned.policy_steps if planned.policy in planned.alerts else ():
        labels = {names.STEP_LABEL: names.policy_step(step.spent)}
        yield _fires(plan, planned, planned.policy, does=does, **labels)


def _low_traffic(plan: Plan) -> Iterator[Item]:
    """Let few events be bad: enough, too few, too many, and too small a share of them."""
    about = "All events are the oldest in the window; still older ones are bad."
    chosen = [each for each in plan.objectives if each.low_traffic_errors in each.alerts]
    for case in ("enough", "too few", "too many", "too small a share"):
        scenario, checks = dict[PlannedObjective, _Spells](), list[Item]()
        for planned in chosen:
            condition, most = planned.low_traffic, planned.min_bad_events
            assert condition is not None  # noqa: S101  (else there is no such alert)
            bad = {
                "enough": condition.events,
                "too few": condition.events - 1,
                "too many": most,
            }.get(case, most - 1)
            part = _BELOW if case.endswith("share") else _ABOVE
            share = min(condition.threshold * part, (condition.threshold + 1) / 2)
            rest = _samples(parse_duration(condition.window), _EVERY) - 1
            scenario[planned] = [
                _Spell(1, Decimal(most), Decimal(most)),
                _Spell(1, bad / share, Decimal(bad)),
                _Spell(rest, _NONE, _NONE),
            ]
            does = case == "enough"
            checks.append(_fires(plan, planned, planned.low_traffic_errors, does=does))
        if scenario:
            yield _test(f"bad events at low traffic: {case}", about, plan, scenario, checks)


def _spent(plan: Plan) -> Iterator[Item]:
    """Spend a little more and a little less of each budget than each step of the policy."""
    whole = plan.service.window
    recorded = {planned: _history(plan, planned) for planned in plan.objectives}
    about = "A steady error ratio; recorded for long enough to spend the budget."
    for share in sorted({_ALL, *(step.spent for step in plan.service.policy)}):
        for part, word in ((_ABOVE, "more"), (_BELOW, "less")):
            scenario, checks = dict[PlannedObjective, _Spells](), list[Item]()
            for planned, seconds in recorded.items():
                budget = 1 - planned.objective.target
                spent = min(share * part, 1 / budget)
                ratio = spent * budget * whole / seconds
                scenario[planned] = [_steady(planned, ratio, whole, _step(plan))]
                if planned.exhausted in planned.alerts:
                    checks.append(_fires(plan, planned, planned.exhausted, does=spent > 1))
                for step in planned.policy_steps if planned.policy in planned.alerts else ():
                    labels = {names.STEP_LABEL: names.policy_step(step.spent)}
                    does = spent > step.spent
                    checks.append(_fires(plan, planned, planned.policy, does=does, **labels))
            if checks:
                name = f"a little {word} than {names.policy_step(share)} of each budget is spent"
                yield _test(name, about, plan, scenario, checks, recorded)


def _history(plan: Plan, planned: PlannedObjective) -> Decimal:
    """Return the recorded seconds of an objective in which its budget can be spent."""
    step, whole = _step(plan), plan.service.window
    steps = 2 * (1 - planned.objective.target) * whole / step
    return min(max(steps.to_integral_value(ROUND_CEILING), _MIN_HISTORY), whole // step) * step


def _young(plan: Plan) -> Iterator[Item]:
    """Let a young history be all bad: it has spent almost none of the budget."""
    scenario = {
        planned: [_Spell(1, _MANY, _MANY)]
        for planned in plan.objectives
        # Two evaluations are two minutes, which may be all of a short period's budget.
        if planned.exhausted in planned.alerts
        and (1 - planned.objective.target) * plan.service.window > 3 * MINUTE
    }
    checks = [_fires(plan, planned, planned.exhausted, does=False) for planned in scenario]
    if scenario:
        about = "Rules that are evaluated for the second time, and 5m of bad events."
        yield _test("a blip in a young history spends no budget", about, plan, scenario, checks)


def _burns(plan: Plan, planned: PlannedObjective, pair: Pair, *, does: bool) -> Item:
    labels = {"window": pair.long, "burn_rate": decimal_text(pair.burn_rate)}
    return _fires(plan, planned, planned.burn, does=does, tier=pair.tier, **labels)


def _fires(
    plan: Plan,
    planned: PlannedObjective,
    alert: PlannedAlert,
    *,
    does: bool,
    tier: str = "ticket",
    **more: str,
) -> Item:
    """Expect that an alert fires with all of its labels, or does not fire at all."""
    labels = {"alertname": alert.name, "alertstate": "firing", **_labels(plan, planned), **more}
    if does:
        labels |= alert_labels(plan, planned, tier, **more)
    plain = {name: text for name, text in labels.items() if "{{" not in text}
    return fires(_end(plan), vector("ALERTS", plain), does=does)


def _test(
    name: str,
    about: str,
    plan: Plan,
    scenario: _Scenario,
    checks: Iterable[Item],
    recorded: Mapping[PlannedObjective, Decimal] = MappingProxyType({}),
) -> Item:
    """Return a test of rules evaluated for the ``recorded`` seconds, or only twice."""
    step = _step(plan) if recorded else _EVERY
    end = int(_end(plan) / step)
    series = []
    for planned, spells in scenario.items():
        labels = _labels(plan, planned)
        for metric, values in (
            (names.TOTAL, [(each.samples, each.total) for each in spells]),
            (names.BAD, [(each.samples, each.bad) for each in spells]),
        ):
            series.append({"series": str(vector(metric, labels)), "values": _values(values, end)})
        if planned in recorded:
            # The target is recorded each minute; here, each minute of a step has its own series.
            samples = int(recorded[planned] / step)
            own = names.series_labels(plan.service.service, planned.objective.name)
            series += [
                {
                    "series": str(vector(names.TARGET, {**own, "minute": str(minute)})),
                    "values": _values([(samples, _ALL)], end),
                }
                for minute in range(int(step / MINUTE))
            ]
    return Commented(
        about,
        {
            "name": name,
            "interval": format_duration(step),
            "input_series": series,
            "promql_expr_test": [*checks],
        },
    )


def _values(spells: Iterable[tuple[int, Decimal]], end: int) -> str:
    """Write values in promtool's notation so that the last one is at the step ``end``."""
    kept, free = list[tuple[int, Decimal]](), end + 1
    for samples, value in reversed([*spells]):
        count = min(samples, free)
        free -= count
        if count and kept and kept[-1][1] == value:
            kept[-1] = (kept[-1][0] + count, value)
        elif count:
            kept.append((count, value))
    items = [f"{decimal_text(_DIGITS.plus(value))}+0x{count - 1}" for count, value in kept[::-1]]
    return " ".join([f"_x{free}", *items] if free else items)


def _labels(plan: Plan, planned: PlannedObjective) -> Mapping[str, str]:
    recorded = names.series_labels(plan.service.service, planned.objective.name)
    return {**recorded, **groups(planned, plan.service)[0]}


_SCENARIOS: Sequence[Callable[[Plan], Iterator[Item]]] = (
    _ratios,
    _thresholds,
    _both_windows,
    _guards,
    _low_traffic,
    _spent,
    _young,
)
