"""Generate promtool tests of windows, thresholds and budgets on recorded increases.

:mod:`alerts.rule_tests` covers how events are counted; here the increases are given, and the rules
are evaluated once, after a whole period: so windows of any length are tested in seconds, each
objective with different numbers.  :mod:`alerts.window_test_series` writes the series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal
from itertools import product

from alerts.checks import Item
from alerts.window_test_series import (
    ALL,
    INTERVAL,
    MANY,
    MIN_HISTORY,
    NONE,
    SampleRun,
    SampleRuns,
    evaluated_at,
    expect_alert,
    expect_burn,
    expect_ratio,
    interval_of,
    promtool_test,
    sample_count,
    steady,
)
from slos import names
from slos.durations import format_duration, parse_duration
from slos.events import MINUTE
from slos.generated_yaml import document
from slos.plan import Plan, PlannedObjective

_ALL_UP_TO, _OF_EACH_KIND = 50, 5
"""Up to this number all objectives of a service are tested; of more, some of each kind."""
_ABOVE, _BELOW = Decimal("1.01"), Decimal("0.99")


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
            "evaluation_interval": format_duration(evaluated_at(plan)),
            "tests": [test for scenarios in _SCENARIOS for test in scenarios(tested)],
        },
        source=source,
        version=version,
    )


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
    """Test recorded ratios; error ratio and traffic grow with age and differ in every window."""
    scenario, checks = dict[PlannedObjective, SampleRuns](), list[Item]()
    whole, step = plan.service.window, interval_of(plan)
    for place, planned in enumerate(plan.objectives, 1):
        ends = [*map(parse_duration, planned.windows), whole]
        runs, before = [SampleRun(1, Decimal(10_000), Decimal(place))], 0
        for position, end in enumerate(dict.fromkeys(ends), 1):
            samples = int(end / step) - before
            bad = Decimal(place + 2 ** min(position, 12)) * position
            if samples:
                runs.append(SampleRun(samples, Decimal(10_000 * position), bad))
            before += samples
        scenario[planned] = runs[::-1]
        for window in planned.windows:
            checks.append(expect_ratio(plan, planned, names.error_ratio(window), scenario, window))
        checks.append(
            expect_ratio(plan, planned, names.PERIOD_ERROR_RATIO, scenario, format_duration(whole))
        )
    about = "Traffic and error ratio change at the begin of every window."
    name, recorded = "every window has its own error ratio", dict.fromkeys(scenario, whole)
    yield promtool_test(name, about, plan, scenario, checks, recorded)


def _thresholds(plan: Plan) -> Iterator[Item]:
    """Test error ratios a little above the threshold of each pair, and exactly at it."""
    alerting = {planned: planned.alerting_pairs for planned in plan.objectives}
    for place in range(max(map(len, alerting.values()), default=0)):
        for part, word in ((_ABOVE, "1 % above"), (ALL, "at")):
            scenario, checks = dict[PlannedObjective, SampleRuns](), list[Item]()
            for planned, pairs in alerting.items():
                if place >= len(pairs):
                    continue
                threshold = pairs[place].threshold
                share = min(threshold * part, (threshold + 1) / 2)
                longest = max(parse_duration(pair.long) for pair in pairs)
                scenario[planned] = [steady(planned, share, longest, INTERVAL)]
                checks += [
                    expect_burn(plan, planned, pair, does=share > pair.threshold) for pair in pairs
                ]
            about = "A steady error ratio, for as long as the longest window."
            name = f"{word} the threshold of pair {place + 1}"
            yield promtool_test(name, about, plan, scenario, checks)


def _both_windows(plan: Plan) -> Iterator[Item]:
    """Test that a pair does not fire if one of its windows has no errors."""
    alerting = {planned: planned.alerting_pairs for planned in plan.objectives}
    for place in range(max(map(len, alerting.values()), default=0)):
        for word in ("long", "short"):
            scenario, checks = dict[PlannedObjective, SampleRuns](), list[Item]()
            for planned, pairs in alerting.items():
                if place < len(pairs):
                    pair = pairs[place]
                    samples = {
                        "long": sample_count(parse_duration(pair.long), INTERVAL),
                        "short": sample_count(parse_duration(pair.short), INTERVAL),
                    }
                    scenario[planned] = [
                        SampleRun(samples["long"], MANY**4, MANY**4),
                        SampleRun(1, MANY**3, NONE),
                        SampleRun(samples[word] - 1, MANY, MANY),
                    ]
                    checks.append(expect_burn(plan, planned, pair, does=False))
            about = f"The error ratio is 0 over the {word} window, and 1 over all others."
            name = f"pair {place + 1} is quiet when its {word} window does not burn"
            yield promtool_test(name, about, plan, scenario, checks)


def _guards(plan: Plan) -> Iterator[Item]:
    """Test guards: as many bad events as an alert requires, and one less; all events are bad.

    All but one are the oldest in the alert's window, and the same number is older.
    """
    guarded = [each for each in plan.objectives if each.min_bad_events > 1]
    about = "All events are bad: the newest, and at both sides of the begin of the window."
    places = range(max((len(each.alerting_pairs) for each in guarded), default=0))
    for place, (less, word) in product(places, _GUARDED):
        scenario, checks = dict[PlannedObjective, SampleRuns](), list[Item]()
        for planned in guarded:
            if place < len(planned.alerting_pairs):
                pair = planned.alerting_pairs[place]
                scenario[planned] = _guard_runs(
                    planned, less, sample_count(parse_duration(pair.long), INTERVAL)
                )
                checks.append(expect_burn(plan, planned, pair, does=not less))
        yield promtool_test(
            f"pair {place + 1} has {word} bad events", about, plan, scenario, checks
        )
    samples = sample_count(plan.service.window, interval_of(plan))
    for less, word in _GUARDED:
        scenario = {planned: _guard_runs(planned, less, samples) for planned in guarded}
        checks = [
            check for each in guarded for check in _expect_budget_alerts(plan, each, does=not less)
        ]
        if checks:
            recorded = {planned: _history(plan, planned) for planned in scenario}
            name = f"the budget has {word} bad events"
            yield promtool_test(name, about, plan, scenario, checks, recorded)


_GUARDED = ((0, "the least number of"), (1, "one less than the least number of"))


def _guard_runs(planned: PlannedObjective, less: int, samples: int) -> SampleRuns:
    """Return the bad events that the guard requires, less ``less``, in ``samples`` samples."""
    least = planned.min_bad_events
    bad = [least, least - less] if samples == 1 else [least, least - less - 1, 0, 1]
    counts = [1, 1] if samples == 1 else [1, 1, samples - 2, 1]
    total = [bad[0], bad[1] + less, *bad[2:]]  # the same number of events, if not all are bad
    runs = zip(counts, total, bad, strict=True)
    return [SampleRun(count, Decimal(all_), Decimal(some)) for count, all_, some in runs]


def _expect_budget_alerts(plan: Plan, planned: PlannedObjective, *, does: bool) -> Iterator[Item]:
    """Expect that all alerts on the budget fire, or none."""
    if planned.exhausted in planned.alerts:
        yield expect_alert(plan, planned, planned.exhausted, does=does)
    for step in planned.policy_steps if planned.policy in planned.alerts else ():
        labels = {names.STEP_LABEL: names.policy_step(step.spent)}
        yield expect_alert(plan, planned, planned.policy, does=does, **labels)


def _low_traffic(plan: Plan) -> Iterator[Item]:
    """Test errors at low traffic: enough, too few, too many, and too small a share of events."""
    about = "All events are the oldest in the window; still older ones are bad."
    chosen = [each for each in plan.objectives if each.low_traffic_errors in each.alerts]
    for case in ("enough", "too few", "too many", "too small a share"):
        scenario, checks = dict[PlannedObjective, SampleRuns](), list[Item]()
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
            rest = sample_count(parse_duration(condition.window), INTERVAL) - 1
            scenario[planned] = [
                SampleRun(1, Decimal(most), Decimal(most)),
                SampleRun(1, bad / share, Decimal(bad)),
                SampleRun(rest, NONE, NONE),
            ]
            does = case == "enough"
            checks.append(expect_alert(plan, planned, planned.low_traffic_errors, does=does))
        if scenario:
            yield promtool_test(f"bad events at low traffic: {case}", about, plan, scenario, checks)


def _spent_budgets(plan: Plan) -> Iterator[Item]:
    """Test spent budgets: a little more and a little less than each step of the policy."""
    whole = plan.service.window
    recorded = {planned: _history(plan, planned) for planned in plan.objectives}
    about = "A steady error ratio; recorded for long enough to spend the budget."
    for share in sorted({ALL, *(step.spent for step in plan.service.policy)}):
        for part, word in ((_ABOVE, "more"), (_BELOW, "less")):
            scenario, checks = dict[PlannedObjective, SampleRuns](), list[Item]()
            for planned, seconds in recorded.items():
                budget = 1 - planned.objective.target
                spent = min(share * part, 1 / budget)
                ratio = spent * budget * whole / seconds
                scenario[planned] = [steady(planned, ratio, whole, interval_of(plan))]
                if planned.exhausted in planned.alerts:
                    checks.append(expect_alert(plan, planned, planned.exhausted, does=spent > 1))
                for step in planned.policy_steps if planned.policy in planned.alerts else ():
                    labels = {names.STEP_LABEL: names.policy_step(step.spent)}
                    does = spent > step.spent
                    checks.append(expect_alert(plan, planned, planned.policy, does=does, **labels))
            if checks:
                name = f"a little {word} than {names.policy_step(share)} of each budget is spent"
                yield promtool_test(name, about, plan, scenario, checks, recorded)


def _history(plan: Plan, planned: PlannedObjective) -> Decimal:
    """Return the recorded seconds of an objective in which its budget can be spent."""
    step, whole = interval_of(plan), plan.service.window
    steps = 2 * (1 - planned.objective.target) * whole / step
    return min(max(steps.to_integral_value(ROUND_CEILING), MIN_HISTORY), whole // step) * step


def _short_history(plan: Plan) -> Iterator[Item]:
    """Test that a short history of bad events spends almost none of the budget."""
    scenario = {
        planned: [SampleRun(1, MANY, MANY)]
        for planned in plan.objectives
        # Two evaluations are two minutes, which may be all of a short period's budget.
        if planned.exhausted in planned.alerts
        and (1 - planned.objective.target) * plan.service.window > 3 * MINUTE
    }
    checks = [expect_alert(plan, planned, planned.exhausted, does=False) for planned in scenario]
    if scenario:
        about = "Rules that are evaluated for the second time, and 5m of bad events."
        yield promtool_test(
            "a blip in a young history spends no budget", about, plan, scenario, checks
        )


_SCENARIOS: Sequence[Callable[[Plan], Iterator[Item]]] = (
    _ratios,
    _thresholds,
    _both_windows,
    _guards,
    _low_traffic,
    _spent_budgets,
    _short_history,
)
