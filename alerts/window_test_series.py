"""Write scenarios of recorded increases, and what is expected of them, as promtool tests.

Samples are evenly spaced and the last comes a minute before the evaluation, so that no sample is at
the limit of a window: Prometheus 3 excludes the oldest one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from types import MappingProxyType

from alerts.checks import Item, fires, some
from alerts.rules import alert_labels
from alerts.traffic import groups
from promql.expr import decimal_text, number, vector
from slos import names
from slos.burn import Pair
from slos.durations import format_duration, parse_duration
from slos.events import MINUTE
from slos.plan import Plan, PlannedAlert, PlannedObjective
from slos.yaml_text import Commented

INTERVAL = Decimal(300)
"""Seconds between two samples; a multiple of it where a test needs samples of a long period."""
_MOST_SAMPLES = 9_000
"""promtool refuses queries that load more than 10,000 samples of a series."""
_EVALUATION_DELAY = Decimal(MINUTE)
MIN_HISTORY = Decimal(300)
"""Samples of a history in which the two evaluations of the test are negligible."""
_DIGITS = Context(prec=12)
MANY = Decimal(1_000_000)
_MOST_EXACT = 10**9
"""Up to here, sums of a long window's samples are exact in floating point."""
ALL, NONE = Decimal(1), Decimal(0)


@dataclass(frozen=True, slots=True)
class SampleRun:
    """A run of ``samples`` consecutive samples with the same total and bad events."""

    samples: int
    total: Decimal
    bad: Decimal


SampleRuns = Sequence[SampleRun]
Scenario = Mapping[PlannedObjective, SampleRuns]


def interval_of(plan: Plan) -> Decimal:
    """Return the seconds between the samples of a whole period."""
    least = plan.service.window / (INTERVAL * _MOST_SAMPLES)
    return INTERVAL * max(least.to_integral_value(ROUND_CEILING), Decimal(1))


def evaluated_at(plan: Plan) -> Decimal:
    """Return the time of the evaluation."""
    step = interval_of(plan)
    return plan.service.window // step * step + _EVALUATION_DELAY


def sample_count(window: Decimal, step: Decimal) -> int:
    """Return the number of samples of a window at the evaluation."""
    return int(((window - _EVALUATION_DELAY) / step).to_integral_value(ROUND_CEILING))


def steady(planned: PlannedObjective, share: Decimal, seconds: Decimal, step: Decimal) -> SampleRun:
    """Return a run with an error ratio of ``share`` and enough bad events for every guard.

    Counts are whole numbers where those stay exact in promtool, so that the ratio is exact.
    """
    least = 2 * max(planned.min_bad_events, 1)
    bad, total = map(Decimal, share.as_integer_ratio())
    if total > _MOST_EXACT:
        bad, total = share, ALL
    times = (least / bad).to_integral_value(ROUND_CEILING)
    return SampleRun(int(seconds / step) + 1, total * times, bad * times)


def expect_ratio(
    plan: Plan, planned: PlannedObjective, series: str, scenario: Scenario, window: str
) -> Item:
    """Expect a recorded error ratio to match the samples of its window."""
    found = _ratio(scenario[planned], sample_count(parse_duration(window), interval_of(plan)))
    recorded = vector(series, _labels(plan, planned))
    low, high = found * Decimal("0.998"), found * Decimal("1.002")
    between = recorded.compare(">", number(_DIGITS.plus(low)))
    return some(evaluated_at(plan), between.compare("<", number(_DIGITS.plus(high))))


def _ratio(runs: SampleRuns, last: int) -> Decimal:
    """Return the error ratio of the last samples."""
    bad = total = NONE
    for run in reversed(runs):
        count = min(run.samples, last)
        last -= count
        bad, total = bad + count * run.bad, total + count * run.total
    return bad / total


def expect_burn(plan: Plan, planned: PlannedObjective, pair: Pair, *, does: bool) -> Item:
    """Expect that the burn-rate alert of a pair fires, or that it does not."""
    labels = {"window": pair.long, "burn_rate": decimal_text(pair.burn_rate)}
    return expect_alert(plan, planned, planned.burn, does=does, tier=pair.tier, **labels)


def expect_alert(
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
    return fires(evaluated_at(plan), vector("ALERTS", plain), does=does)


def promtool_test(
    name: str,
    about: str,
    plan: Plan,
    scenario: Scenario,
    checks: Iterable[Item],
    recorded: Mapping[PlannedObjective, Decimal] = MappingProxyType({}),
) -> Item:
    """Return a test of rules evaluated for the ``recorded`` seconds, or only twice."""
    step = interval_of(plan) if recorded else INTERVAL
    end = int(evaluated_at(plan) / step)
    series = []
    for planned, runs in scenario.items():
        labels = _labels(plan, planned)
        for metric, values in (
            (names.TOTAL, [(each.samples, each.total) for each in runs]),
            (names.BAD, [(each.samples, each.bad) for each in runs]),
        ):
            series.append(
                {"series": str(vector(metric, labels)), "values": promtool_values(values, end)}
            )
        if planned in recorded:
            # The target is recorded each minute; here, each minute of a step has its own series.
            samples = int(recorded[planned] / step)
            own = names.series_labels(plan.service.service, planned.objective.name)
            series += [
                {
                    "series": str(vector(names.TARGET, {**own, "minute": str(minute)})),
                    "values": promtool_values([(samples, ALL)], end),
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


def promtool_values(runs: Iterable[tuple[int, Decimal]], end: int) -> str:
    """Write values in promtool's notation so that the last one is at the step ``end``."""
    kept, free = list[tuple[int, Decimal]](), end + 1
    for samples, value in reversed([*runs]):
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
