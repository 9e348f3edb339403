"""The Prometheus rules of a service: what is recorded, and which alerts read it.

The increases of one minute are recorded, and everything else is summed from them: a long window
costs a few thousand samples whatever the metrics' cardinality, and is weighted by its traffic.  The
rules are valid from Prometheus 2.42 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from alerts import messages
from alerts.messages import Message
from promql.expr import Expr, Vector, call, decimal_text, number, pretty, vector
from slos import names
from slos.burn import Pair, Trickle
from slos.durations import format_duration
from slos.events import MINUTE
from slos.indicators import good_sentence, threshold_text
from slos.model import TierName
from slos.plan import Plan, PlannedAlert, PlannedObjective
from slos.yaml_text import Commented, Inline

Rule = dict[str, object]

INTERVAL = format_duration(Decimal(MINUTE))
"""How often groups are evaluated: as long as the increases that they record."""
INCONSISTENT_FOR = "15m"
"""Servers scraped at different times contradict each other for moments."""
_WIDTH = 155


def groups(plan: Plan) -> list[Rule]:
    """Return the rule groups of a service, one for each objective."""
    return [_Rules(plan, planned).group() for planned in plan.objectives]


def alert_labels(
    plan: Plan, planned: PlannedObjective, tier: str, **more: str
) -> Mapping[str, str]:
    """Return the labels of an alert of a tier."""
    return {
        **names.series_labels(plan.service.service, planned.objective.name),
        **planned.labels,
        **getattr(planned.alerting, tier).labels,
        **more,
    }


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of one objective."""

    plan: Plan
    planned: PlannedObjective

    def group(self) -> Rule:
        """Return the rules in reading order: events, error ratios, budget, alerts."""
        service, planned = self.plan.service, self.planned
        percent = f"{decimal_text(planned.objective.target * 100)}%"
        return Commented(
            f"{percent} of {planned.indicator.events} in {format_duration(service.window)} are "
            f"good. One is good if {good_sentence(planned.objective)}.",
            {
                "name": f"{service.service}/{planned.objective.name}",
                "interval": INTERVAL,
                "rules": [*self._events(), *self._ratios(), *self._budget(), *self._alerts()],
            },
        )

    def _events(self) -> Iterator[Rule]:
        target = call("vector", number(self.planned.objective.target))
        yield self._record(names.TARGET, target, **self._info())
        yield self._record(names.TOTAL, self.planned.recorded.total)
        yield self._record(names.BAD, self.planned.recorded.bad)

    def _ratios(self) -> Iterator[Rule]:
        for window in self.planned.windows:
            yield self._record(names.error_ratio(window), self._error_ratio(window))

    def _budget(self) -> Iterator[Rule]:
        period = self.plan.service.window
        window = format_duration(period)
        yield self._record(names.PERIOD_BAD, self._count(names.BAD, window))
        total = self._count(names.TOTAL, window).compare(">", number(0))
        recorded = messages.minutes_recorded(self.plan, self.planned)
        # The ratio is of the events of the whole period, of which some are still to come.
        spent = self._series(names.PERIOD_BAD) / total * call("scalar", recorded)
        yield self._record(names.PERIOD_ERROR_RATIO, spent / number(period / MINUTE))
        yield self._record(names.BUDGET_REMAINING, self._budget_remaining())

    def _alerts(self) -> Iterator[Rule]:
        planned, alerts = self.planned, self.planned.alerts
        for pair in planned.alerting_pairs:
            yield self._alert(
                planned.burn,
                self._burns(pair),
                pair.tier,
                messages.burning(self.plan, planned, pair),
                window=pair.long,
                burn_rate=decimal_text(pair.burn_rate),
            )
        if planned.trickle is not None and planned.failing_trickle in alerts:
            yield self._low_traffic_alert(planned.trickle)
        if planned.exhausted in alerts:
            message = messages.exhausted(self.plan, planned)
            yield self._alert(planned.exhausted, self._spent(Decimal(1)), "ticket", message)
        if planned.policy in alerts:
            for step in planned.policy_steps:
                yield self._alert(
                    planned.policy,
                    self._spent(step.spent),
                    "ticket",
                    messages.policy(self.plan, planned, step),
                    **{names.STEP_LABEL: names.policy_step(step.spent)},
                )
        if planned.absent in alerts:
            yield from self._absent_alerts()
        inconsistent = planned.recorded.impossible
        if inconsistent is not None and planned.impossible in alerts:
            message = messages.inconsistent(planned)
            yield self._alert(
                planned.impossible, inconsistent, "ticket", message, lasting=INCONSISTENT_FOR
            )

    def _absent_alerts(self) -> Iterator[Rule]:
        events = self.planned.events
        absent, lasting = self.planned.absent, format_duration(self.planned.absent_seconds)
        missing, uncovered, tier = events.missing, events.uncovered, self.planned.absent_tier
        message = messages.missing(self.planned)
        if uncovered is not None and tier == "ticket":  # two of a tier would be the same alert
            message = messages.missing_somewhere(self.planned)
            missing, uncovered = missing.or_(uncovered), None
        yield self._alert(absent, missing, tier, message, lasting=lasting)
        if uncovered is not None:
            message = messages.uncovered(self.planned)
            yield self._alert(absent, uncovered, "ticket", message, lasting=lasting)

    def _low_traffic_alert(self, trickle: Trickle) -> Rule:
        ratio = self._series(names.error_ratio(trickle.window))
        bad = self._count(names.BAD, trickle.window)
        some = bad.compare(">", number(trickle.events - 1))
        few = bad.compare("<", number(self.planned.min_bad_events))
        return self._alert(
            self.planned.failing_trickle,
            ratio.compare(">", number(trickle.threshold)).and_(some).and_(few),
            "ticket",
            messages.low_traffic(self.plan, self.planned, trickle),
        )

    def _spent(self, share: Decimal) -> Expr:
        """At least this share of the budget is spent."""
        left = self._series(names.BUDGET_REMAINING).compare("<=", number(1 - share))
        return self._unless_few(left, self._series(names.PERIOD_BAD))

    def _error_ratio(self, window: str) -> Expr:
        """Bad / all events over ``window``; no element, instead of 0/0, where there were none."""
        total = self._count(names.TOTAL, window).compare(">", number(0))
        return self._count(names.BAD, window) / total

    def _budget_remaining(self) -> Expr:
        """Return 1 for an untouched budget, 0 for a spent one, less for an overspent one.

        A service that is measured and had no traffic all period has spent nothing; one that is not
        measured has no element.
        """
        budget = number(1 - self.planned.objective.target)
        idle = self._series(names.TOTAL).compare("==", number(0))
        return (number(1) - self._series(names.PERIOD_ERROR_RATIO) / budget).or_(idle + number(1))

    def _burns(self, pair: Pair) -> Expr:
        threshold = number(pair.threshold)
        long, short = (
            self._series(names.error_ratio(window)).compare(">", threshold)
            for window in (pair.long, pair.short)
        )
        return self._unless_few(long.and_(short), self._count(names.BAD, pair.long))

    def _unless_few(self, expr: Expr, bad: Expr) -> Expr:
        """At low traffic a single failure is a large ratio, and yet no reason to wake somebody."""
        least = self.planned.min_bad_events
        if least <= 1:
            return expr
        return expr.and_(bad.compare(">=", number(least)))

    def _count(self, name: str, window: str) -> Expr:
        return call("sum_over_time", self._series(name, window))

    def _info(self) -> dict[str, str]:
        service, objective = self.plan.service, self.planned.objective
        about = {
            "indicator": objective.indicator,
            "threshold": threshold_text(objective),
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
        labels = Inline({**self._labels(), **more})
        return {"record": name, "expr": pretty(expr, _WIDTH), "labels": labels}

    def _alert(
        self,
        alert: PlannedAlert,
        expr: Expr,
        tier: TierName,
        message: Message,
        *,
        lasting: str = "",
        **more: str,
    ) -> Rule:
        labels = alert_labels(self.plan, self.planned, tier, **more)
        return {
            "alert": alert.name,
            "expr": pretty(expr, 100),
            **({"for": lasting} if lasting else {}),
            "labels": Inline(labels),
            "annotations": messages.annotated(self.plan, self.planned, alert, tier, message),
        }
