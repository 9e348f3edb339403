"""Generate promtool tests of a service's alerts.

Each test is a scenario for all objectives of the service at once, so that promtool evaluates the
rule file once per scenario and needs seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal

from alerts import hang_tests, outcome_tests
from alerts.checks import Item, burning, firing, labelled, none, some
from alerts.rules import INCONSISTENT_FOR, INTERVAL, target_labels
from alerts.traffic import (
    DELAY,
    GAUGES,
    STEP,
    Phase,
    apart,
    busy_pace,
    contradiction,
    groups,
    inputs,
    values,
)
from promql.expr import (
    Expr,
    Matcher,
    Vector,
    call,
    decimal_text,
    equal,
    number,
    one_of,
    vector,
)
from slos import names
from slos.burn import Pair
from slos.durations import format_duration, parse_duration
from slos.events import LONGEST_GAP
from slos.generated_yaml import document
from slos.indicator_events import needed_signals
from slos.plan import Plan, PlannedObjective
from slos.queries import INSTANCE
from slos.signals import MODEL_LABELS, PROMPT_CLASS, TENANT
from slos.yaml_text import Commented

OTHER = "other"
"""A label value that no selector of a service matches."""
_SETTLED = Decimal(600)
_LONGEST_GAP = parse_duration(LONGEST_GAP)
_SLOW = Decimal(120)
_ALL = Decimal(1)
_HALF = Decimal("0.5")
_AMPLE = Decimal("1.25")
_LONG = Decimal(3 * 3600)


def text(plan: Plan, rule_files: Sequence[str], *, source: str, version: str) -> str:
    """Return the promtool test file for the rule file of a service."""
    service = plan.service.service
    return document(
        f"Tests of the alerts of {service}. Run: promtool test rules {service}.test.yaml",
        {
            "rule_files": rule_files,
            "evaluation_interval": INTERVAL,
            "tests": [*_tests(plan), *hang_tests.tests(plan), *outcome_tests.tests(plan)],
        },
        source=source,
        version=version,
    )


def _tests(plan: Plan) -> Iterator[Item]:
    for group in apart(plan):
        yield from _scenarios(replace(plan, objectives=group))


def _scenarios(plan: Plan) -> Iterator[Item]:
    if any(planned.alerting_pairs for planned in plan.objectives):
        yield _outage(plan)
    yield _idle(plan)
    if any(planned.absent in planned.alerts for planned in plan.objectives):
        yield _vanished(plan)
    yield from _unavailable(plan)
    yield from _contradictions(plan)


def _outage(plan: Plan) -> Item:
    firsts = {
        planned: planned.alerting_pairs[0] for planned in plan.objectives if planned.alerting_pairs
    }
    waits = {planned: _outage_seconds(planned, first) for planned, first in firsts.items()}
    good = max(parse_duration(first.long) for first in firsts.values())
    # Plain rules read rates, which look back over the base window.
    smoothed = parse_duration(names.BASE_WINDOW) if plan.service.rules == "plain" else Decimal(0)
    bad = max(waits.values()) + DELAY + smoothed
    shorts = (parse_duration(first.short) for first in firsts.values())
    slices = (planned.indicator.slice or Decimal(0) for planned in firsts)
    good_again = max(shorts) + max(slices) + DELAY + smoothed
    busy = busy_pace(plan)
    checks = [none(good, _alerted(plan, good))]
    quiet = _Quiet(plan, names.BURN)
    for planned, wait in waits.items():
        window = firsts[planned].long
        quiet.at(good + max(wait / 2 - STEP, Decimal(0)), planned, window=window)
        checks.append(some(good + wait + DELAY + smoothed, burning(plan, planned, firsts[planned])))
        quiet.at(good + bad + good_again, planned, window=window)
        checks += [none(good + bad, other) for other in _healthy(plan, planned)]
    checks += quiet.checks()
    phases = [Phase(good, busy), Phase(bad, busy, bad=_ALL), Phase(good_again, busy)]
    about = (
        "Healthy traffic, then only bad events until every objective pages, then healthy traffic."
    )
    name = "a total outage pages in time, and only while it lasts"
    return _test(name, about, plan, phases, checks)


def _healthy(plan: Plan, planned: PlannedObjective) -> Iterator[Vector]:
    """Select every alert of an objective's other groups, in which nothing is bad."""
    for group in groups(planned, plan.service)[1:]:
        labels = names.series_labels(plan.service.service, planned.objective.name)
        yield vector("ALERTS", {**labels, **group})


def _idle(plan: Plan) -> Item:
    lasting = _longest_absence(plan) + _SETTLED
    ratios = Matcher("__name__", "=~", "slo:(period_)?error_ratio:.+")
    # NaN is not equal to anything, zero included.
    not_zero = Vector("", (ratios, *_service(plan))).compare("!=", number(0))
    untouched = vector(names.BUDGET_REMAINING, _service(plan)).compare("==", number(1))
    checks = [
        none(lasting, _alerted(plan, lasting)),
        none(lasting, not_zero),
        some(lasting, untouched, sum(len(groups(each, plan.service)) for each in plan.objectives)),
    ]
    for planned in plan.objectives:
        own = names.series_labels(plan.service.service, planned.objective.name)
        target = vector(names.TARGET, {**own, **target_labels(plan, planned)})
        checks.append(some(lasting, target.compare("==", number(planned.objective.target))))
        if planned.objective.indicator in GAUGES and not planned.objective.group_by:
            slices = vector(names.TOTAL, own)
            checks.append(some(lasting, slices.compare("==", number(1))))
    others = [
        *_others(plan, [Phase(lasting, busy_pace(plan), bad=_ALL)]),
        *_other_signals(plan, int(lasting / STEP)),
    ]
    about = "No traffic. All of another selection's events are bad, and its signals unavailable."
    name = "an idle service fires no alert and spends no budget"
    return _test(name, about, plan, [Phase(lasting, Decimal(0))], checks, others=others)


def _vanished(plan: Plan) -> Item:
    busy, gone = busy_pace(plan), DELAY + max(_longest_absence(plan), _LONGEST_GAP)
    checks = []
    quiet = _Quiet(plan, names.ABSENT)
    for planned in plan.objectives:
        if planned.absent not in planned.alerts:
            continue
        absent = firing(plan, planned, planned.absent)
        quiet.at(_SETTLED + planned.absent_seconds / 2, planned)
        checks.append(
            some(
                _SETTLED + planned.absent_seconds + DELAY,
                labelled(plan, planned, absent, planned.absent_tier),
            )
        )
        quiet.at(_SETTLED + gone + _SETTLED, planned)
    checks += quiet.checks()
    lasting = _SETTLED + gone + _SETTLED
    # Half of the traffic in the gap is far more than that of a minute.
    most = busy * gone / STEP / 2
    for recorded in (names.TOTAL, names.BAD):
        increases = vector(recorded, _service(plan), format_duration(lasting))
        checks.append(none(lasting, call("max_over_time", increases).compare(">", number(most))))
    phases = [Phase(_SETTLED, busy), Phase(gone, None, unseen=busy), Phase(_SETTLED, busy)]
    others = [
        *_others(plan, [Phase(lasting, busy)]),
        *_other_signals(plan, int(lasting / STEP)),
        *_down(plan, int(lasting / STEP)),
    ]
    about = (
        "All series end for a while, and those of another selection go on. "
        "Signals are unavailable elsewhere, and on a server that is down."
    )
    name = "absent metrics fire an alert until they are back"
    return _test(name, about, plan, phases, checks, others=others)


def _unavailable(plan: Plan) -> Iterator[Item]:
    declared = _declared(plan)
    if not declared:
        return
    lasting = DELAY + max(planned.absent_seconds for planned in declared)
    checks = []
    for planned in declared:
        absent = firing(plan, planned, planned.absent)
        checks.append(none(planned.absent_seconds / 2, absent))
        if planned.recorded.uncovered is None:  # a cause alert is about it
            checks.append(none(lasting, absent))
        else:
            ticket = labelled(plan, planned, absent, "ticket")
            checks += [some(lasting, ticket), some(lasting, absent)]
    yield Commented(
        "The sidecar reports the signals as unavailable instead of serving their metrics.",
        {
            "name": "signals that the sidecar reports as unavailable do not page",
            "interval": format_duration(STEP),
            "input_series": [
                _constant(series, int(lasting / STEP))
                for series in dict.fromkeys(declared.values())
            ],
            "promql_expr_test": checks,
        },
    )


def _declared(plan: Plan) -> dict[PlannedObjective, Vector]:
    """Return the series that declares an objective's signal unavailable."""
    declared = {}
    for planned in plan.objectives:
        if planned.absent in planned.alerts and not planned.objective.queries:
            selector = plan.service.selects(planned.objective)
            of_requests = (TENANT, PROMPT_CLASS)
            chosen = {name: value for name, value in selector.items() if name not in of_requests}
            first, *_ = needed_signals(planned.objective, plan.service)
            labels = {**chosen, "signal": first, "quality": "unavailable"}
            declared[planned] = vector("tokenslo_signal_info", labels)
    return declared


def _other_signals(plan: Plan, steps: int) -> Iterator[Item]:
    """Yield series that report all signals of a service as measured, and others as unavailable."""
    for series in dict.fromkeys(_declared(plan).values()):
        changes = [{"quality": "exact"}, {"signal": OTHER}]
        own = {matcher.label for matcher in series.matchers} - {"quality", "signal"}
        changes += [{label: OTHER} for label in sorted(own)[:1]]
        for change in changes:
            labels = {matcher.label: matcher.value for matcher in series.matchers}
            yield _constant(vector(series.metric, labels | change), steps)


def _down(plan: Plan, steps: int) -> Iterator[Item]:
    """Yield the series of a server that is down, and whose signals are unavailable."""
    for series in dict.fromkeys(_declared(plan).values()):
        labels = {matcher.label: matcher.value for matcher in series.matchers}
        labels.setdefault(INSTANCE, "down")
        yield _constant(vector(series.metric, labels), steps)
        about_model = {"signal", "quality", *MODEL_LABELS}
        source = {name: value for name, value in labels.items() if name not in about_model}
        yield _constant(vector("tokenslo_source_up", source), steps, 0)


def _constant(series: Vector, steps: int, value: int = 1) -> Item:
    return {"series": str(series), "values": f"{value}x{steps}"}


def _others(plan: Plan, phases: Sequence[Phase]) -> Iterator[Item]:
    """Yield series of another selection, which differ in one label of the selector."""
    for planned in plan.objectives:
        first = next(iter(plan.service.selects(planned.objective)), None)
        if first is not None and not planned.objective.queries:
            for made in inputs(planned, plan.service):
                labels = tuple((k, OTHER if k == first else v) for k, v in made.labels)
                other = replace(made, labels=labels)
                yield {"series": other.series, "values": values(other, phases)}


def _contradictions(plan: Plan) -> Iterator[Item]:
    scenarios: dict[Decimal, list[PlannedObjective]] = {}
    for planned in plan.objectives:
        bad = contradiction(planned, plan.service)
        if planned.inconsistent in planned.alerts and bad is not None:
            scenarios.setdefault(bad, []).append(planned)
    lasting = parse_duration(INCONSISTENT_FOR)
    firing_after = lasting + parse_duration(names.BASE_WINDOW) + DELAY
    for bad, objectives in scenarios.items():
        checks = []
        for planned in objectives:
            alert = firing(plan, planned, planned.inconsistent)
            checks += [
                none(_SETTLED, replace(alert, matchers=_in_any_state(alert))),
                none(_SETTLED + lasting - STEP, alert),
                some(_SETTLED + firing_after, labelled(plan, planned, alert, "ticket")),
                none(2 * _SETTLED + firing_after, alert),
            ]
        busy = busy_pace(plan)
        phases = [Phase(_SETTLED, busy), Phase(firing_after, busy, bad), Phase(_SETTLED, busy)]
        about = f"For a while the counters report {decimal_text(bad * 100)} % bad events."
        name = f"an inconsistent SLI ({decimal_text(bad * 100)} % bad) opens a ticket"
        yield _test(name, about, plan, phases, checks, objectives=objectives)


def _outage_seconds(planned: PlannedObjective, first: Pair) -> Decimal:
    """Return the seconds from a total outage to the first alert, in whole steps."""
    seconds = planned.seconds_to_fire(first, _ALL)
    assert seconds is not None  # noqa: S101  (every threshold is below 1)
    return _steps(seconds, ROUND_CEILING) * STEP


def _longest_absence(plan: Plan) -> Decimal:
    return max(planned.absent_seconds for planned in plan.objectives)


class _Quiet:
    """Checks that alerts of one kind do not fire, one check for all objectives at a moment."""

    def __init__(self, plan: Plan, kind: str) -> None:
        self._plan, self._kind = plan, kind
        self._moments: dict[tuple[Decimal, tuple[tuple[str, str], ...]], list[PlannedObjective]]
        self._moments = defaultdict(list)

    def at(self, seconds: Decimal, planned: PlannedObjective, **labels: str) -> None:
        """Expect that no alert of an objective with these labels fires at a moment."""
        self._moments[seconds, tuple(labels.items())].append(planned)

    def checks(self) -> Iterator[Item]:
        """Yield the checks."""
        for (seconds, labels), objectives in self._moments.items():
            alerts = (
                Matcher("alertname", "=~", f".+{self._kind}"),
                Matcher("alertstate", "=", "firing"),
                *_service(replace(self._plan, objectives=tuple(objectives))),
                *equal(dict(labels)),
            )
            yield none(seconds, Vector("ALERTS", alerts))


def _service(plan: Plan) -> tuple[Matcher, ...]:
    """Match series of these objectives, which are all of the service or some."""
    service = Matcher("service", "=", plan.service.service)
    if len(plan.objectives) == len(plan.service.objectives):
        return (service,)
    return (service, one_of("slo", (planned.objective.name for planned in plan.objectives)))


def _alerted(plan: Plan, seconds: Decimal) -> Expr:
    """Select alerts that were pending or firing in the first ``seconds``."""
    return call("count_over_time", vector("ALERTS", _service(plan), format_duration(seconds)))


def _in_any_state(alert: Vector) -> tuple[Matcher, ...]:
    return tuple(matcher for matcher in alert.matchers if matcher.label != "alertstate")


def _steps(seconds: Decimal, rounding: str) -> Decimal:
    return (seconds / STEP).to_integral_value(rounding)


def _test(
    name: str,
    about: str,
    plan: Plan,
    phases: Sequence[Phase],
    checks: Sequence[Item],
    *,
    objectives: Iterable[PlannedObjective] | None = None,
    others: Iterable[Item] = (),
) -> Item:
    series = dict.fromkeys(
        made
        for planned in (objectives or plan.objectives)
        for made in inputs(planned, plan.service)
    )
    own = [{"series": made.series, "values": values(made, phases)} for made in series]
    # Objectives may read the same series.
    more = {str(each["series"]): each for each in others}
    return Commented(
        about,
        {
            "name": name,
            "interval": format_duration(STEP),
            "input_series": [*own, *more.values()],
            "promql_expr_test": checks,
        },
    )
