"""What the generated alerts would have done on recorded history.

The rules are not run; what they compute is worked out from the same two rates at each step, so the
answer is theirs but for the step's length.
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

_MOST_POINTS = 11_000
"""How many points a budget is told with; that of a year by the minute would fill a disk."""


@dataclass(frozen=True, slots=True)
class History:
    """Bad and total events per second at every ``step`` seconds from ``start`` (epoch) on.

    None where Prometheus had no answer.  The flags say when the conditions of the other alerts
    held, as :class:`slos.events.Events` has them: ``missing``, which follows from ``total`` if it
    is empty, ``uncovered`` and ``impossible``, which hold never if they are; and ``down`` when
    nobody watched, as Prometheus had nothing of anybody.
    """

    start: float
    step: float
    bad: Rates
    total: Rates
    missing: Flags = ()
    uncovered: Flags = ()
    impossible: Flags = ()
    down: Flags = ()

    def time(self, index: int) -> float:
        """Return when a step was."""
        return self.start + index * self.step


@dataclass(frozen=True, slots=True)
class Firing:
    """An alert from ``start`` to ``end`` (epoch seconds); ``end`` is None if it fires still.

    ``pair`` is that of a burn alert, ``policy_step`` the name of a budget policy's step.
    """

    alert: PlannedAlert
    tier: TierName
    pair: Pair | None
    start: float
    end: float | None
    policy_step: str = ""


@dataclass(frozen=True, slots=True)
class Backtest:
    """What came of one objective, or of one ``group`` (labels) of it, from ``start`` to ``end``.

    ``worst_ratio`` is the highest error ratio over the SLO's window, or over all that was measured
    where that is shorter; ``budget`` the share of the budget that was left, by time.  Both are None
    and empty where there was no event.  ``measured_share`` is that of the time.

    ``groups`` is, for an objective that is kept by group, how many there are.  It is then about all
    of them together: their events, the alerts that are not by group, and no budget.
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
        """The highest target that history would have met, with two digits of budget.

        1 where nothing was bad, and 0 where everything was: those are no targets.
        """
        if self.worst_ratio is None:
            return None
        worst = Decimal(repr(self.worst_ratio))
        smaller = min(worst, 1 - worst)  # of which two digits are to be seen
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
    """Work out what the alerts of an objective would have done, or those of one of its groups."""
    run = _Run(plan, planned, history)
    firings = [*run.spending(), *run.contradicted()]
    if group is None:
        firings += run.unmeasured()
    return run.result(firings, group=group or {})


def of_all_groups(plan: Plan, planned: PlannedObjective, history: History, groups: int) -> Backtest:
    """Work out what the alerts that are not by group would have done, from the sums of all."""
    run = _Run(plan, planned, history)
    return run.result(run.unmeasured(), groups=groups)


class _Sums:
    """Sums of a rate over windows that end with each step, by running totals."""

    def __init__(self, rates: Rates) -> None:
        self._totals = list(accumulate(rate or 0.0 for rate in rates))

    def over(self, steps: int) -> list[float]:
        """Return the sum of the ``steps`` values up to and with each."""
        totals = self._totals
        before = [0.0] * min(steps, len(totals)) + totals[:-steps]
        return list(map(sub, totals, before))

    @property
    def all(self) -> float:
        """The sum of all values."""
        return self._totals[-1] if self._totals else 0.0


class _Run:
    """One history, against the alerts of one objective."""

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
        # A window is complete if its begin was measured; there is no other with a short history.
        first = measured[0] if measured else 0
        complete = _numbers(ratios[first + self._steps(self._period) - 1 :])
        known = _numbers(ratios)
        return Backtest(
            self._planned,
            history.start,
            history.time(max(0, len(history.total) - 1)),
            history.step,
            tuple(sorted(firings, key=lambda firing: firing.start)),
            total_events=self._total.all * history.step,
            bad_events=self._bad.all * history.step,
            worst_ratio=max(complete, default=known[-1] if known else None),
            budget=tuple(self._budget(spent)),
            measured_share=len(measured) / len(history.total) if measured else 0.0,
            group=group or {},
            groups=groups,
        )

    def _budget(self, ratios: Sequence[float]) -> Iterator[tuple[float, float]]:
        """Yield what was left by time: at each step, or as often as is bearable; and at the end."""
        every = -(-len(ratios) // _MOST_POINTS) or 1
        for index in range((len(ratios) - 1) % every, len(ratios), every):
            if ratios[index] == ratios[index]:  # else it is no number
                yield self._history.time(index), 1 - ratios[index] / self._budget_ratio

    def spending(self) -> Iterator[Firing]:
        """Yield when alerts on the budget fired."""
        planned = self._planned
        for pair in planned.alerting_pairs:
            yield from self._spells(planned.burn, pair.tier, self._burning(pair), pair=pair)
        if planned.exhausted in planned.alerts:
            spent = self._spent(Decimal(1))
            yield from self._spells(planned.exhausted, "ticket", spent)
        if planned.policy in planned.alerts:
            for step in planned.policy_steps:
                yield from self._spells(
                    planned.policy,
                    "ticket",
                    self._spent(step.spent),
                    policy_step=names.policy_step(step.spent),
                )
        trickle = planned.trickle
        if trickle is not None and planned.failing_trickle in planned.alerts:
            window = parse_duration(trickle.window)
            # Rates smear events over minutes: the last of them counts when half of it is seen.
            most, some = float(trickle.threshold), trickle.events - 0.5
            few = planned.min_bad_events * (1 - 1e-9)
            ratios = zip(self._ratios(window), self._bad_events(window), strict=True)
            fails = [ratio > most and some < bad < few for ratio, bad in ratios]
            yield from self._spells(planned.failing_trickle, "ticket", fails)

    def contradicted(self) -> Iterator[Firing]:
        """Yield when the numbers had contradicted each other for long enough."""
        planned, history = self._planned, self._history
        if planned.impossible in planned.alerts:
            lasting = self._held(history.impossible, parse_duration(INCONSISTENT_FOR))
            yield from self._spells(planned.impossible, "ticket", lasting)

    def unmeasured(self) -> Iterator[Firing]:
        """Yield when signals had been missing for long enough, on all servers or on some."""
        planned, history = self._planned, self._history
        if planned.absent not in planned.alerts:
            return
        missing = history.missing or [value is None for value in history.total]
        uncovered = history.uncovered
        tier = planned.absent_tier
        if uncovered and tier == "ticket":  # then the rules have one alert for both
            missing = [any(both) for both in zip(missing, uncovered, strict=True)]
            uncovered = ()
        for name, flags in ((tier, missing), ("ticket", uncovered)):
            lasting = self._held(flags, planned.absent_seconds)
            yield from self._spells(planned.absent, name, lasting)

    def _burning(self, pair: Pair) -> list[bool]:
        long, short = parse_duration(pair.long), parse_duration(pair.short)
        recent = self._base_ratios() if pair.short == names.BASE_WINDOW else self._ratios(short)
        most, least = float(pair.threshold), self._least
        together = zip(self._ratios(long), recent, self._bad_events(long), strict=True)
        return [ratio > most and now > most and bad >= least for ratio, now, bad in together]

    def _spent(self, share: Decimal) -> list[bool]:
        """Return when at least this share of the budget was spent."""
        ratio_then, least = float(share) * self._budget_ratio, self._least
        together = zip(self._period_ratios(), self._bad_events(self._period), strict=True)
        return [ratio >= ratio_then and bad >= least for ratio, bad in together]

    @property
    def _least(self) -> float:
        """How many bad events there must be; the rules do not ask for a single one."""
        least = self._planned.min_bad_events
        return least * (1 - 1e-9) if least > 1 else 0.0

    def _held(self, flags: Flags, seconds: Decimal) -> list[bool]:
        """Return when a condition had held for so long while somebody watched."""
        steps = self._steps(seconds)
        down = self._history.down if flags and self._history.down else [False] * len(flags)
        watched = (flag and not gone for flag, gone in zip(flags, down, strict=True))
        held = accumulate(watched, lambda before, flag: before + 1 if flag else 0, initial=0)
        return [count > steps for count in held][1:]

    def _spells(
        self,
        alert: PlannedAlert,
        tier: TierName,
        fires: Flags,
        *,
        pair: Pair | None = None,
        policy_step: str = "",
    ) -> Iterator[Firing]:
        at = 0
        for firing, spell in groupby(fires):
            first, at = at, at + sum(1 for _ in spell)
            if firing:
                end = self._history.time(at) if at < len(fires) else None
                yield Firing(alert, tier, pair, self._history.time(first), end, policy_step)

    def _steps(self, seconds: Decimal) -> int:
        return max(1, round(float(seconds) / self._history.step))

    def _ratios(self, seconds: Decimal) -> list[float]:
        """Return the error ratio over a window at each step; no number where nothing happened."""
        steps = self._steps(seconds)
        both = zip(self._bad.over(steps), self._total.over(steps), strict=True)
        return [bad / total if total > 0 else nan for bad, total in both]

    def _period_ratios(self) -> list[float]:
        """Return the error ratio of the period at each step: that so far times the recorded share.

        The history counts as recorded from its start, but for when Prometheus was down.
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


def _numbers(values: Iterable[float]) -> list[float]:
    return [value for value in values if value == value]


def aligned(
    start: float, step: float, count: int, values: Iterable[tuple[float, float]]
) -> list[float | None]:
    """Put the points of a series where they belong; what is no number is as good as absent."""
    rates: list[float | None] = [None] * count
    for time, value in values:
        index = round((time - start) / step)
        if 0 <= index < count and isfinite(value):
            rates[index] = value or 0.0  # one zero for all of them: most rates of bad events are
    return rates
