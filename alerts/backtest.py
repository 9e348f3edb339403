"""Backtest the alerts of an objective against recorded history.

Prometheus does not evaluate the rules: the same conditions are computed here from the same two
rates at each step.  Results differ from the rules' only by the length of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from itertools import accumulate, groupby
from math import isfinite, nan
from operator import sub

from alerts.rules import INCONSISTENT_FOR
from slos import names
from slos.burn import Pair
from slos.durations import parse_duration
from slos.model import TierName
from slos.plan import Plan, PlannedAlert, PlannedObjective

Rates = Sequence[float | None]
Flags = Sequence[bool]

_MAX_POINTS = 11_000
"""The maximum number of points of a reported budget: a year by the minute would fill a disk."""


@dataclass(frozen=True, slots=True)
class History:
    """Bad and total events per second at every ``step`` seconds from ``start`` (epoch) on.

    A rate is None where Prometheus has no value.  The flags are the conditions of the other alerts
    (see :class:`slos.events.Events`) at each step: ``missing``, by default where ``total`` is
    None, ``uncovered`` and ``inconsistent``, by default never.  ``down`` is true where Prometheus
    stored no series at all.
    """

    start: float
    step: float
    bad: Rates
    total: Rates
    missing: Flags = ()
    uncovered: Flags = ()
    inconsistent: Flags = ()
    down: Flags = ()

    def time(self, index: int) -> float:
        """Return the time of a step, in epoch seconds."""
        return self.start + index * self.step


@dataclass(frozen=True, slots=True)
class Firing:
    """An alert from ``start`` to ``end`` (epoch seconds); ``end`` is None if it still fires.

    ``pair`` is set for burn-rate alerts, ``policy_step`` for steps of the budget policy.
    """

    alert: PlannedAlert
    tier: TierName
    pair: Pair | None
    start: float
    end: float | None
    policy_step: str = ""


@dataclass(frozen=True, slots=True)
class Backtest:
    """The result for one objective, or for one ``group`` (labels) of it, from ``start`` to ``end``.

    ``worst_ratio`` is the highest error ratio over the SLO's window, or over the measured time if
    that is shorter.  ``budget`` is the remaining share of the budget by time.  Without events, they
    are None and empty.  ``measured_share`` is the measured share of the time.

    ``groups`` is the number of groups of an objective with ``group_by``.  The result is then for
    all groups together: their events, the alerts without group labels, and no budget.
    """

    planned: PlannedObjective
    start: float
    end: float
    step: float
    firings: tuple[Firing, ...]
    total_events: float
    bad_events: float
    worst_ratio: float | None
    budget: tuple[tuple[float, float], ...]
    measured_share: float
    group: Mapping[str, str] = field(default_factory=dict, hash=False)
    groups: int | None = None

    @property
    def tightest_target(self) -> Decimal | None:
        """The highest target that this history meets, with two digits of budget.

        1 if no event was bad, and 0 if every event was: neither is a valid target.
        """
        if self.worst_ratio is None:
            return None
        worst = Decimal(repr(self.worst_ratio))
        smaller = min(worst, 1 - worst)  # whose first two digits are kept
        if smaller <= 0:
            return Decimal(worst <= 0)
        return 1 - worst.quantize(Decimal(1).scaleb(smaller.adjusted() - 1), ROUND_CEILING)


def backtest(
    plan: Plan,
    planned: PlannedObjective,
    history: History,
    *,
    group: Mapping[str, str] | None = None,
) -> Backtest:
    """Backtest the alerts of an objective, or those of one of its groups."""
    evaluation = _Evaluation(plan, planned, history)
    firings = [*evaluation.budget_alerts(), *evaluation.inconsistency_alerts()]
    if group is None:
        firings += evaluation.absence_alerts()
    return evaluation.result(firings, group=group or {})


def backtest_all_groups(
    plan: Plan, planned: PlannedObjective, history: History, groups: int
) -> Backtest:
    """Backtest the alerts without group labels, on the sums of all groups."""
    evaluation = _Evaluation(plan, planned, history)
    return evaluation.result(evaluation.absence_alerts(), groups=groups)


class _Sums:
    """Sums of a rate over windows that end at each step, from running totals."""

    def __init__(self, rates: Rates) -> None:
        self._totals = list(accumulate(rate or 0.0 for rate in rates))

    def over(self, steps: int) -> list[float]:
        """Return, for each step, the sum of the ``steps`` values that end there."""
        totals = self._totals
        before = [0.0] * min(steps, len(totals)) + totals[:-steps]
        return list(map(sub, totals, before))

    @property
    def all(self) -> float:
        """The sum of all values."""
        return self._totals[-1] if self._totals else 0.0


class _Evaluation:
    """The alerts of one objective, evaluated on one history."""

    def __init__(self, plan: Plan, planned: PlannedObjective, history: History) -> None:
        self._planned = planned
        self._history = history
        self._period = plan.service.window
        self._bad, self._total = _Sums(history.bad), _Sums(history.total)
        self._budget_ratio = float(1 - planned.objective.target)

    def result(
        self,
        firings: Iterable[Firing],
        *,
        group: Mapping[str, str] | None = None,
        groups: int | None = None,
    ) -> Backtest:
        history = self._history
        ratios = self._ratios(self._period) if groups is None else []
        spent = self._period_ratios() if groups is None else []
        measured = [index for index, value in enumerate(history.total) if value is not None]
        # Prefer windows whose start was measured; a short history has none.
        first = measured[0] if measured else 0
        complete = _without_nan(ratios[first + self._steps(self._period) - 1 :])
        partial = _without_nan(ratios)
        return Backtest(
            self._planned,
            history.start,
            history.time(max(0, len(history.total) - 1)),
            history.step,
            tuple(sorted(firings, key=lambda firing: firing.start)),
            total_events=self._total.all * history.step,
            bad_events=self._bad.all * history.step,
            worst_ratio=max(complete, default=partial[-1] if partial else None),
            budget=tuple(self._budget(spent)),
            measured_share=len(measured) / len(history.total) if measured else 0.0,
            group=group or {},
            groups=groups,
        )

    def _budget(self, ratios: Sequence[float]) -> Iterator[tuple[float, float]]:
        """Yield time and remaining budget, at most ``_MAX_POINTS`` of them, and the last one."""
        every = -(-len(ratios) // _MAX_POINTS) or 1
        for index in range((len(ratios) - 1) % every, len(ratios), every):
            if ratios[index] == ratios[index]:  # not NaN
                yield self._history.time(index), 1 - ratios[index] / self._budget_ratio

    def budget_alerts(self) -> Iterator[Firing]:
        """Yield firings of the alerts on the error budget."""
        planned = self._planned
        for pair in planned.alerting_pairs:
            yield from self._firings(planned.burn, pair.tier, self._burning(pair), pair=pair)
        if planned.exhausted in planned.alerts:
            spent = self._spent(Decimal(1))
            yield from self._firings(planned.exhausted, "ticket", spent)
        if planned.policy in planned.alerts:
            for step in planned.policy_steps:
                yield from self._firings(
                    planned.policy,
                    "ticket",
                    self._spent(step.spent),
                    policy_step=names.policy_step(step.spent),
                )
        condition = planned.low_traffic
        if condition is not None and planned.low_traffic_errors in planned.alerts:
            window = parse_duration(condition.window)
            # Rates spread an event over minutes: the last one counts when half of it is visible.
            most, some = float(condition.threshold), condition.events - 0.5
            few = planned.min_bad_events * (1 - 1e-9)
            ratios = zip(self._ratios(window), self._bad_events(window), strict=True)
            fails = [ratio > most and some < bad < few for ratio, bad in ratios]
            yield from self._firings(planned.low_traffic_errors, "ticket", fails)

    def inconsistency_alerts(self) -> Iterator[Firing]:
        """Yield firings of the alert on an inconsistent SLI."""
        planned, history = self._planned, self._history
        if planned.inconsistent in planned.alerts:
            lasting = self._held(history.inconsistent, parse_duration(INCONSISTENT_FOR))
            yield from self._firings(planned.inconsistent, "ticket", lasting)

    def absence_alerts(self) -> Iterator[Firing]:
        """Yield firings of the alerts on absent metrics, of all servers or of some."""
        planned, history = self._planned, self._history
        if planned.absent not in planned.alerts:
            return
        missing = history.missing or [value is None for value in history.total]
        uncovered = history.uncovered
        tier = planned.absent_tier
        if uncovered and tier == "ticket":  # the rules then have one alert for both
            missing = [any(both) for both in zip(missing, uncovered, strict=True)]
            uncovered = ()
        for name, flags in ((tier, missing), ("ticket", uncovered)):
            lasting = self._held(flags, planned.absent_seconds)
            yield from self._firings(planned.absent, name, lasting)

    def _burning(self, pair: Pair) -> list[bool]:
        long, short = parse_duration(pair.long), parse_duration(pair.short)
        recent = self._base_ratios() if pair.short == names.BASE_WINDOW else self._ratios(short)
        most, least = float(pair.threshold), self._min_bad_events
        together = zip(self._ratios(long), recent, self._bad_events(long), strict=True)
        return [ratio > most and now > most and bad >= least for ratio, now, bad in together]

    def _spent(self, share: Decimal) -> list[bool]:
        """Return, for each step, whether at least this share of the budget was spent."""
        limit, least = float(share) * self._budget_ratio, self._min_bad_events
        together = zip(self._period_ratios(), self._bad_events(self._period), strict=True)
        return [ratio >= limit and bad >= least for ratio, bad in together]

    @property
    def _min_bad_events(self) -> float:
        """The minimum number of bad events for an alert; the rules omit a guard of one."""
        least = self._planned.min_bad_events
        return least * (1 - 1e-9) if least > 1 else 0.0

    def _held(self, flags: Flags, seconds: Decimal) -> list[bool]:
        """Return, for each step, whether a condition held for ``seconds`` with Prometheus up."""
        steps = self._steps(seconds)
        down = self._history.down if flags and self._history.down else [False] * len(flags)
        recorded = (flag and not gone for flag, gone in zip(flags, down, strict=True))
        held = accumulate(recorded, lambda before, flag: before + 1 if flag else 0, initial=0)
        return [count > steps for count in held][1:]

    def _firings(
        self,
        alert: PlannedAlert,
        tier: TierName,
        fires: Flags,
        *,
        pair: Pair | None = None,
        policy_step: str = "",
    ) -> Iterator[Firing]:
        at = 0
        for firing, run in groupby(fires):
            first, at = at, at + sum(1 for _ in run)
            if firing:
                end = self._history.time(at) if at < len(fires) else None
                yield Firing(alert, tier, pair, self._history.time(first), end, policy_step)

    def _steps(self, seconds: Decimal) -> int:
        return max(1, round(float(seconds) / self._history.step))

    def _ratios(self, seconds: Decimal) -> list[float]:
        """Return the error ratio over a window at each step, NaN without events."""
        steps = self._steps(seconds)
        both = zip(self._bad.over(steps), self._total.over(steps), strict=True)
        return [bad / total if total > 0 else nan for bad, total in both]

    def _period_ratios(self) -> list[float]:
        """Return the error ratio of the period at each step: that so far * recorded share.

        Every step of the history counts as recorded, except while Prometheus was down.
        """
        down = self._history.down or [False] * len(self._history.total)
        steps = self._steps(self._period)
        recorded = _Sums([float(not gone) for gone in down]).over(steps)
        ratios = zip(self._ratios(self._period), recorded, strict=True)
        return [ratio * share / steps for ratio, share in ratios]

    def _base_ratios(self) -> list[float]:
        both = zip(self._history.bad, self._history.total, strict=True)
        return [bad / total if bad is not None and total else nan for bad, total in both]

    def _bad_events(self, seconds: Decimal) -> list[float]:
        step = self._history.step
        return [rate * step for rate in self._bad.over(self._steps(seconds))]


def _without_nan(values: Iterable[float]) -> list[float]:
    return [value for value in values if value == value]


def aligned(
    start: float, step: float, count: int, values: Iterable[tuple[float, float]]
) -> list[float | None]:
    """Return the points of a series by step; steps without a finite value are None."""
    rates: list[float | None] = [None] * count
    for time, value in values:
        index = round((time - start) / step)
        if 0 <= index < count and isfinite(value):
            rates[index] = value or 0.0  # share one 0.0: most rates of bad events are zero
    return rates
