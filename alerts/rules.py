"""The Prometheus rules of a service: what is recorded, and when somebody is told.

Everything is summed from two recorded rates, bad and total events per second, so a long window
costs a few thousand samples whatever the metrics' cardinality, and is weighted by the traffic it
saw.  The rules are valid from Prometheus 2.42 on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain

from alerts import cause_rules, messages
from promql.expr import Expr, Vector, call, decimal_text, number, pretty, vector
from slos import names
from slos.burn import Pair, TierName, Trickle
from slos.durations import format_duration, parse_duration
from slos.indicators import threshold_text
from slos.plan import Plan, PlannedAlert, PlannedObjective

Rule = dict[str, object]

_FAST_SECONDS = 30
"""How often the base rates are recorded; a sum of them times this is a number of events."""

# Whatever looks back a day or more moves slowly and is evaluated less often; but often enough for
# a lookup, which sees five minutes back, to find a value although one evaluation was missed.
_SLOW_WINDOW = Decimal(86_400)
_SLOW_SECONDS = 120

IMPOSSIBLE_FOR = "15m"
"""Servers scraped at different times contradict each other for moments."""


def groups(plan: Plan) -> list[Rule]:
    """Return every rule group of a service: two for each objective, and one for causes."""
    of_objectives = (_Rules(plan, planned).groups() for planned in plan.objectives)
    return [*chain.from_iterable(of_objectives), *cause_rules.groups(plan)]


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of one objective."""

    plan: Plan
    planned: PlannedObjective

    def groups(self) -> Iterator[Rule]:
        for name, seconds, rules in (
            ("fast", _FAST_SECONDS, self._fast()),
            ("slow", _SLOW_SECONDS, self._slow()),
        ):
            yield {
                "name": f"{self.plan.service.service}/{self.planned.objective.name}/{name}",
                "interval": format_duration(Decimal(seconds)),
                "rules": list(rules),
            }

    def _fast(self) -> Iterator[Rule]:
        target, events = self.planned.objective.target, self.planned.events
        yield self._record(names.OBJECTIVE, call("vector", number(target)))
        yield self._record(names.INFO, call("vector", number(1)), **self._info())
        yield self._record(names.TOTAL_RATE, events.total)
        yield self._record(names.BAD_RATE, events.bad)
        yield from self._error_ratios(slow=False)
        yield from self._burn_alerts(slow=False)
        if self.planned.absent in self.planned.alerts:
            yield from self._absent_alerts()
        if events.impossible is not None and self.planned.impossible in self.planned.alerts:
            told = messages.impossible(self.planned)
            alert = self.planned.impossible
            yield self._alert(alert, events.impossible, "ticket", told, lasting=IMPOSSIBLE_FOR)

    def _absent_alerts(self) -> Iterator[Rule]:
        events = self.planned.events
        absent, lasting = self.planned.absent, format_duration(self.planned.absent_seconds)
        missing, uncovered, tier = events.missing, events.uncovered, self.planned.absent_tier
        told = messages.missing(self.planned)
        if uncovered is not None and tier == "ticket":  # two of a tier would be the same alert
            told, missing, uncovered = (
                messages.missing_somewhere(self.planned),
                missing.or_(uncovered),
                None,
            )
        yield self._alert(absent, missing, tier, told, lasting=lasting)
        if uncovered is not None:
            told = messages.uncovered(self.planned)
            yield self._alert(absent, uncovered, "ticket", told, lasting=lasting)

    def _slow(self) -> Iterator[Rule]:
        yield from self._error_ratios(slow=True)
        period = format_duration(self.plan.service.window)
        yield self._record(names.PERIOD_ERROR_RATIO, self._error_ratio(period))
        yield self._record(names.BUDGET_REMAINING, self._budget_remaining())
        yield from self._burn_alerts(slow=True)
        if self.planned.exhausted in self.planned.alerts:
            yield self._exhausted_alert(period)
        trickle = self.planned.trickle
        if trickle is not None and self.planned.failing_trickle in self.planned.alerts:
            yield self._trickle_alert(trickle)
        if self.planned.policy in self.planned.alerts:
            yield from self._policy_alerts(period)

    def _trickle_alert(self, trickle: Trickle) -> Rule:
        ratio = self._series(names.error_ratio(trickle.window))
        most = ratio.compare(">", number(trickle.threshold))
        return self._alert(
            self.planned.failing_trickle,
            most.and_(self._bad_events(trickle.window).compare(">=", number(trickle.least))),
            "ticket",
            messages.trickling(self.plan, self.planned, trickle),
        )

    def _policy_alerts(self, period: str) -> Iterator[Rule]:
        for step in self.planned.policy_steps:
            yield self._alert(
                self.planned.policy,
                self._spent(step.spent, period),
                "ticket",
                messages.policy(self.plan, self.planned, step),
                **{names.STEP_LABEL: names.policy_step(step.spent)},
            )

    def _exhausted_alert(self, period: str) -> Rule:
        return self._alert(
            self.planned.exhausted,
            self._spent(Decimal(1), period),
            "ticket",
            messages.exhausted(self.plan, self.planned),
        )

    def _spent(self, share: Decimal, period: str) -> Expr:
        """At least this share of the budget is gone."""
        left = self._series(names.BUDGET_REMAINING).compare("<=", number(1 - share))
        return self._unless_few(left, period)

    def _error_ratios(self, *, slow: bool) -> Iterator[Rule]:
        for window in self.planned.windows:
            if _is_slow(window) is slow:
                yield self._record(names.error_ratio(window), self._error_ratio(window))

    def _burn_alerts(self, *, slow: bool) -> Iterator[Rule]:
        for pair in self.planned.alerting_pairs:
            if _is_slow(pair.long) is slow:
                yield self._alert(
                    self.planned.burn,
                    self._burns(pair),
                    pair.tier,
                    messages.burning(self.plan, self.planned, pair),
                    window=pair.long,
                    burn_rate=decimal_text(pair.burn_rate),
                )

    def _error_ratio(self, window: str) -> Expr:
        """Bad / all events over ``window``; no element, instead of 0/0, where none happened."""

        def events(rate: str) -> Expr:
            if window == names.BASE_WINDOW:
                return self._series(rate)
            return call("sum_over_time", self._series(rate, window))

        return events(names.BAD_RATE) / events(names.TOTAL_RATE).compare(">", number(0))

    def _budget_remaining(self) -> Expr:
        """Return 1 for an untouched budget, 0 for a spent one, less for an overspent one.

        A service that is measured and had no traffic all period has spent nothing; one that is not
        measured has no element.
        """
        budget = number(1 - self.planned.objective.target)
        idle = self._series(names.TOTAL_RATE).compare("==", number(0))
        return (number(1) - self._series(names.PERIOD_ERROR_RATIO) / budget).or_(idle + number(1))

    def _burns(self, pair: Pair) -> Expr:
        threshold = number(pair.threshold)
        long, short = (
            self._series(names.error_ratio(window)).compare(">", threshold)
            for window in (pair.long, pair.short)
        )
        return self._unless_few(long.and_(short), pair.long)

    def _unless_few(self, expr: Expr, window: str) -> Expr:
        """At low traffic a single failure is a large ratio, and yet no reason to wake somebody."""
        least = self.planned.min_bad_events
        if least <= 1:
            return expr
        return expr.and_(self._bad_events(window).compare(">=", number(least)))

    def _bad_events(self, window: str) -> Expr:
        return call("sum_over_time", self._series(names.BAD_RATE, window)) * number(_FAST_SECONDS)

    def _info(self) -> dict[str, str]:
        service, objective = self.plan.service, self.planned.objective
        about = {
            "indicator": objective.indicator,
            "threshold": threshold_text(objective),
            "target": f"{decimal_text(objective.target * 100)}%",
            "window": format_duration(service.window),
            "owner": service.owns(objective),
        }
        known = {name: value for name, value in about.items() if value}
        return {**self.planned.labels, **known}

    def _series(self, name: str, window: str | None = None) -> Vector:
        return vector(name, self._labels(), window)

    def _labels(self) -> dict[str, str]:
        return names.series_labels(self.plan.service.service, self.planned.objective.name)

    def _record(self, name: str, expr: Expr, **more: str) -> Rule:
        return {"record": name, "expr": pretty(expr), "labels": {**self._labels(), **more}}

    def _alert(
        self,
        alert: PlannedAlert,
        expr: Expr,
        tier: TierName,
        message: messages.Message,
        *,
        lasting: str = "",
        **more: str,
    ) -> Rule:
        labels = {
            **self._labels(),
            **self.planned.labels,
            **getattr(self.planned.alerting, tier).labels,
            **more,
        }
        return {
            "alert": alert.name,
            "expr": pretty(expr),
            **({"for": lasting} if lasting else {}),
            "labels": labels,
            "annotations": messages.annotated(self.plan, self.planned, alert, tier, message),
        }


def _is_slow(window: str) -> bool:
    return parse_duration(window) >= _SLOW_WINDOW
