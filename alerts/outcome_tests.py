"""Generate promtool tests of outcomes: which series an objective counts.

Every series rises by a different number, so the recorded increases show which ones count.  All
restart once and miss scrapes twice: for less than the longest gap that rules bridge, and for more.
Gauges have several servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import product

from alerts.checks import Item, some
from alerts.traffic import GAUGES, inputs
from promql.expr import Expr, call, decimal_text, number, vector
from slos import names
from slos.events import MINUTE
from slos.indicators import bad_results, sidecar_evaluates_slices, verdicts_of
from slos.names import goodput_objective
from slos.outcomes import OUTCOMES, REFUSALS
from slos.plan import Plan, PlannedObjective
from slos.queries import INSTANCE
from slos.signals import (
    PHASES,
    RESULTS,
    SIGNALS,
    event_results,
    metric_with,
    slo_events,
    threshold_label,
)
from slos.yaml_text import Commented

Labels = Mapping[str, str]

_PIECES = ((0, 4), (0, 4), (None, 19), (23, 3))
"""First value and number of samples, of a series that rises by 1 a minute; None: no samples."""
_COUNTED = 3 + 3 + 20 + 2
"""The recorded increases: all except that in the minute of the restart."""
_MINUTES = sum(samples for _, samples in _PIECES) - 1
_PLAIN_MINUTES = 15
"""Evaluation time of plain rules, on steady series: their windows are full."""
_FIRST, _STEP = 100, 7
_WITHIN = Decimal("0.0005")
_OTHER = "other"
_SERVERS = {"a": True, "b": True, "c": False}
"""Servers, and whether a gauge is beyond its threshold there."""


def tests(plan: Plan) -> Iterator[Item]:
    """Yield the tests of the counters and gauges that the sidecar serves."""
    yield from _counters(plan)
    for planned in plan.objectives:
        objective = planned.objective
        is_fixed = INSTANCE in plan.service.selects(objective)
        if objective.indicator in GAUGES and not (objective.group_by or is_fixed):
            yield _gauges(plan, planned)


def _gauges(plan: Plan, planned: PlannedObjective) -> Item:
    """Return the test of an objective on a gauge, which counts each server once a minute."""
    series = [
        {
            "series": str(vector(made.metric, {**dict(made.labels), INSTANCE: server})),
            "values": f"{decimal_text(made.bad if is_bad else made.good)}x{_PLAIN_MINUTES}",
        }
        for made in inputs(planned, plan.service)
        for server, is_bad in _SERVERS.items()
    ]
    own = names.series_labels(plan.service.service, planned.objective.name)
    counts = {names.TOTAL: len(_SERVERS), names.BAD: sum(_SERVERS.values())}
    return {
        "name": f"every server counts for {planned.objective.name}",
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            some(
                Decimal(_PLAIN_MINUTES * MINUTE),
                vector(recorded, own).compare("==", number(Decimal(count))),
            )
            for recorded, count in counts.items()
        ],
    }


def _counters(plan: Plan) -> Iterator[Item]:
    """Yield the test of the objectives whose events the sidecar counts, if any."""
    counted = [each for each in plan.objectives if _is_counted(plan, each)]
    if not counted:
        return
    series = dict[tuple[str, tuple[tuple[str, str], ...]], int]()
    for planned in counted:
        for metric, labels in _series(plan, planned):
            key = metric, tuple(sorted(labels.items()))
            series.setdefault(key, _FIRST + _STEP * len(series))
    is_plain = plan.service.rules == "plain"
    breaks = "" if is_plain else " All restart after 4m, and miss scrapes from 8m to 26m."
    yield Commented(
        f"One series of each outcome, and of another selection.{breaks}",
        {
            "name": "only the outcomes of the objective count, and only those of its servers",
            "interval": "1m",
            "input_series": [
                {
                    "series": str(vector(metric, dict(labels))),
                    "values": f"0+{rise}x{_PLAIN_MINUTES + 1}" if is_plain else _values(rise),
                }
                for (metric, labels), rise in series.items()
            ],
            "promql_expr_test": [
                check for planned in counted for check in _checks(plan, planned, series)
            ],
        },
    )


def _values(rise: int) -> str:
    return " ".join(
        f"_x{samples}" if first is None else f"{first * rise}+{rise}x{samples - 1}"
        for first, samples in _PIECES
    )


def _is_counted(plan: Plan, planned: PlannedObjective) -> bool:
    objective = planned.objective
    if objective.queries or objective.group_by:
        return False
    return sidecar_evaluates_slices(objective, plan.service) or not planned.indicator.in_slices


def _series(plan: Plan, planned: PlannedObjective) -> Iterator[tuple[str, Labels]]:
    """Yield series of every outcome, and of other servers those that would count."""
    selected = plan.service.selects(planned.objective)
    others = [{**selected, name: f"{_OTHER}-{text}"} for name, text in selected.items()]
    for metric, labels in _outcomes(plan, planned):
        own = {**selected, **labels}
        counts, _ = _counts(plan, planned, own)
        for series in (own, *({**other, **labels} for other in others[:1] if counts)):
            yield metric_with(metric, series), series


def _outcomes(plan: Plan, planned: PlannedObjective) -> Iterator[tuple[str, Labels]]:
    objective = planned.objective
    if sidecar_evaluates_slices(objective, plan.service):
        own_name = goodput_objective(plan.service.service, objective.name)
        for name, result in product((own_name, f"{own_name}-{_OTHER}"), RESULTS):
            yield SIGNALS["slo_slices"].metric, {"objective": name, "result": result}
        return
    verdicts = verdicts_of(objective, plan.service)
    if verdicts is None:
        assert objective.threshold is not None  # noqa: S101  (load.py requires it)
        own = SIGNALS[slo_events(objective.indicator)]
        signal, threshold = own.fixed["signal"], threshold_label(objective.threshold)
        for others, results in (
            ({}, event_results(objective.indicator)),
            ({"signal": _OTHER}, RESULTS),
            ({"threshold": f"{threshold}1"}, RESULTS),
        ):
            for result in results:
                labels = {"signal": signal, "threshold": threshold, "result": result}
                yield own.metric, labels | others
        return
    metric = SIGNALS[verdicts.signal].metric
    if verdicts.signal == "requests":
        yield from ((metric, {"outcome": outcome}) for outcome in OUTCOMES)
    elif verdicts.signal == "streams":
        for outcome, phase in product(OUTCOMES, PHASES):
            yield metric, {"outcome": outcome, "phase": phase}
    else:
        own_name = goodput_objective(plan.service.service, objective.name)
        for name, results in (
            (own_name, (*RESULTS, *REFUSALS, verdicts.unknown)),
            (f"{own_name}-{_OTHER}", RESULTS),
        ):
            for result in results:
                clause = next(iter(objective.clauses)) if result == "bad" else ""
                yield metric, {"objective": name, "result": result, "clause": clause}


def _counts(plan: Plan, planned: PlannedObjective, labels: Labels) -> tuple[bool, bool]:
    """Whether a series counts at all, and as bad."""
    objective = planned.objective
    if any(labels.get(k) != v for k, v in plan.service.selects(objective).items()):
        return False, False
    own_name = goodput_objective(plan.service.service, objective.name)
    if sidecar_evaluates_slices(objective, plan.service):
        return labels["objective"] == own_name, labels["result"] == "bad"
    verdicts = verdicts_of(objective, plan.service)
    if verdicts is None:
        assert objective.threshold is not None  # noqa: S101  (load.py requires it)
        own = {
            **SIGNALS[slo_events(objective.indicator)].fixed,
            "threshold": threshold_label(objective.threshold),
        }
        bad = bad_results(objective, plan.service)
        counts = own.items() <= labels.items() and labels["result"] in ("good", *bad)
        return counts, labels["result"] in bad
    if verdicts.signal == "goodput":
        counts = labels["objective"] == own_name
        counts &= labels["result"] in (*verdicts.good, *verdicts.bad)
        return counts, labels["result"] in verdicts.bad
    among = all(matcher.accepts(labels.get(matcher.label, "")) for matcher in verdicts.among)
    outcome = labels[verdicts.label]
    return among and outcome in verdicts.good + verdicts.bad, outcome in verdicts.bad


def _checks(
    plan: Plan,
    planned: PlannedObjective,
    series: Mapping[tuple[str, tuple[tuple[str, str], ...]], int],
) -> Iterator[Item]:
    own = names.series_labels(plan.service.service, planned.objective.name)
    metrics = {metric for metric, _ in _series(plan, planned)}
    rises = [
        (rise, *_counts(plan, planned, dict(labels)))
        for (metric, labels), rise in series.items()
        if metric in metrics
    ]
    for recorded, rise in (
        (names.TOTAL, sum(rise for rise, counts, _ in rises if counts)),
        (names.BAD, sum(rise for rise, counts, bad in rises if counts and bad)),
    ):
        if plan.service.rules == "plain":
            found = _near(vector(recorded, own), Decimal(rise))
            yield some(Decimal(_PLAIN_MINUTES * MINUTE), found)
        else:
            every = call("sum_over_time", vector(recorded, own, f"{_MINUTES + 1}m"))
            yield some(Decimal(_MINUTES * MINUTE), _near(every, Decimal(rise * _COUNTED)))


def _near(value: Expr, wanted: Decimal) -> Expr:
    above = value.compare(">", number(wanted * (1 - _WITHIN)))
    return above.compare("<", number(wanted * (1 + _WITHIN)))
