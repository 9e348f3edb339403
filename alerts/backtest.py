"""What the generated alerts would have done on recorded history.

The rules are not run; what they compute is worked out from the same two rates at each step, so the
answer is theirs but for the step's length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from itertools import accumulate
from math import isfinite

from slos import names
from slos.burn import Pair, TierName, Trickle
from slos.durations import parse_duration
from slos.plan import Plan, PlannedAlert, PlannedObjective

Rates = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class History:
    """Bad and total events per second at every ``step`` seconds from ``start`` (epoch) on.

    None where Prometheus had no answer.
    """

    start: float
    step: float
    bad: Rates
    total: Rates

    def time(self, index: int) -> float:
        """Return when a step was."""
        return self.start + index * self.step


@dataclass(frozen=True, slots=True)
class Firing:
    """An alert from ``start`` to ``end`` (epoch seconds); ``end`` is None if it fires still."""

    alert: PlannedAlert
    tier: TierName
    pair: Pair | None
    start: float
    end: float | None


@dataclass(frozen=True, slots=True)
class Backtest:
    """What came of one objective.

    ``worst_ratio`` is the highest error ratio over the SLO's window, or over all of the history
    where that is shorter; ``budget`` the share of the budget that was left, by time.  Both are None
    and empty where nothing was measured.
    """

    planned: PlannedObjective
    history: History
    firings: tuple[Firing, ...]
    total_events: float
    bad_events: float
    worst_ratio: float | None
    budget: tuple[tuple[float, float], ...]
    measured_share: float

    @property
    def tightest_target(self) -> Decimal | None:
        """The highest target that history would have met, with two digits of budget."""
        if self.worst_ratio is None:
            return None
        if not self.worst_ratio:
            return Decimal(1)
        budget = Decimal(repr(self.worst_ratio))
        return 1 - budget.quantize(Decimal(1).scaleb(budget.adjusted() - 1), ROUND_CEILING)


class _Sums:
    """Sums of a rate over any window of steps, by running totals."""

    def __init__(self, rates: Rates) -> None:
        self._totals = [0.0, *accumulate(rate or 0.0 for rate in rates)]

    def over(self, index: int, steps: int) -> float:
        """Return the sum of the ``steps`` values up to and with ``index``."""
        return self._totals[index + 1] - self._totals[max(0, index + 1 - steps)]


def backtest(plan: Plan, planned: PlannedObjective, history: History) -> Backtest:
    """Work out what the alerts of an objective would have done."""
    return _Run(plan, planned, history).result()


class _Run:
    def __init__(self, plan: Plan, planned: PlannedObjective, history: History) -> None:
        self._planned = planned
        self._history = history
        self._period = plan.service.window
        self._bad, self._total = _Sums(history.bad), _Sums(history.total)
        self._budget_ratio = float(1 - planned.objective.target)

    def result(self) -> Backtest:
        history = self._history
        steps = range(len(history.total))
        period = self._steps(self._period)
        ratios = [self._ratio(index, period) for index in steps]
        complete = [ratio for ratio in ratios[period - 1 :] if ratio is not None]
        last = next((ratio for ratio in reversed(ratios) if ratio is not None), None)
        measured = sum(value is not None for value in history.total)
        return Backtest(
            self._planned,
            history,
            tuple(sorted(self._firings(ratios), key=lambda firing: firing.start)),
            total_events=self._total.over(len(steps) - 1, len(steps)) * history.step,
            bad_events=self._bad.over(len(steps) - 1, len(steps)) * history.step,
            worst_ratio=max(complete) if complete else last,
            budget=tuple(
                (history.time(index), 1 - ratio / self._budget_ratio)
                for index, ratio in enumerate(ratios)
                if ratio is not None
            ),
            measured_share=measured / len(steps) if steps else 0.0,
        )

    def _firings(self, period_ratios: Sequence[float | None]) -> Iterator[Firing]:
        planned, period = self._planned, self._steps(self._period)
        for pair in planned.alerting_pairs:
            yield from self._spells(planned.burn, pair.tier, pair, self._burning(pair))

        def spent(share: Decimal) -> Callable[[int], bool]:
            least = float(share) * self._budget_ratio

            def is_spent(index: int) -> bool:
                ratio = period_ratios[index]
                return ratio is not None and ratio >= least and self._enough(index, period)

            return is_spent

        if planned.exhausted in planned.alerts:
            yield from self._spells(planned.exhausted, "ticket", None, spent(Decimal(1)))
        if planned.policy in planned.alerts:
            for step in planned.policy_steps:
                yield from self._spells(planned.policy, "ticket", None, spent(step.spent))
        if planned.trickle is not None and planned.failing_trickle in planned.alerts:
            fails = self._trickling(planned.trickle)
            yield from self._spells(planned.failing_trickle, "ticket", None, fails)
        if planned.absent in planned.alerts:
            yield from self._unmeasured()

    def _unmeasured(self) -> Iterator[Firing]:
        planned = self._planned
        lasting = self._steps(planned.absent_seconds)
        silent = list(
            accumulate(
                (value is None for value in self._history.total),
                lambda before, gone: before + 1 if gone else 0,
                initial=0,
            )
        )
        yield from self._spells(
            planned.absent, planned.absent_tier, None, lambda index: silent[index + 1] > lasting
        )

    def _burning(self, pair: Pair) -> Callable[[int], bool]:
        long, short = (self._steps(parse_duration(window)) for window in (pair.long, pair.short))
        threshold = float(pair.threshold)

        def burns(index: int) -> bool:
            ratios = (
                self._ratio(index, long),
                self._base_ratio(index)
                if pair.short == names.BASE_WINDOW
                else self._ratio(index, short),
            )
            return all(
                ratio is not None and ratio > threshold for ratio in ratios
            ) and self._enough(index, long)

        return burns

    def _trickling(self, trickle: Trickle) -> Callable[[int], bool]:
        steps = self._steps(parse_duration(trickle.window))

        def trickles(index: int) -> bool:
            ratio = self._ratio(index, steps)
            bad = self._bad.over(index, steps) * self._history.step
            return ratio is not None and ratio > trickle.threshold and bad >= trickle.least

        return trickles

    def _spells(
        self,
        alert: PlannedAlert,
        tier: TierName,
        pair: Pair | None,
        fires: Callable[[int], bool],
    ) -> Iterator[Firing]:
        history, start = self._history, None
        for index in range(len(history.total)):
            if fires(index):
                start = history.time(index) if start is None else start
            elif start is not None:
                yield Firing(alert, tier, pair, start, history.time(index))
                start = None
        if start is not None:
            yield Firing(alert, tier, pair, start, None)

    def _steps(self, seconds: Decimal) -> int:
        return max(1, round(float(seconds) / self._history.step))

    def _ratio(self, index: int, steps: int) -> float | None:
        total = self._total.over(index, steps)
        # Running totals leave a trace of what has long gone by: less than any event.
        return self._bad.over(index, steps) / total if total > 1e-9 else None

    def _base_ratio(self, index: int) -> float | None:
        bad, total = self._history.bad[index], self._history.total[index]
        return bad / total if bad is not None and total else None

    def _enough(self, index: int, steps: int) -> bool:
        bad = self._bad.over(index, steps) * self._history.step
        return bad >= self._planned.min_bad_events * (1 - 1e-9)


def aligned(
    start: float, step: float, count: int, values: Iterable[tuple[float, float]]
) -> list[float | None]:
    """Put the points of a series where they belong; what is no number is as good as absent."""
    rates: list[float | None] = [None] * count
    for time, value in values:
        index = round((time - start) / step)
        if 0 <= index < count and isfinite(value):
            rates[index] = value
    return rates
