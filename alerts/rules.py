"""Generate the Prometheus rules of a service: recording rules and alerts.

The increases of one minute are recorded, and everything else is summed from them: a long window
costs a few thousand samples whatever the metrics' cardinality, and is weighted by its traffic.  The
rules are valid from Prometheus 2.42 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from alerts import messages, quota_rules
from alerts.messages import Message
from promql.expr import (
    Expr,
    Text,
    call,
    decimal_text,
    equal,
    for_matchers,
    number,
    pretty,
    selector_text,
)
from slos import names
from slos.burn import LowTrafficCondition, Pair
from slos.durations import format_duration
from slos.events import MINUTE
from slos.indicator_events import unavailable_signals
from slos.indicators import threshold_text
from slos.model import TierName
from slos.plan import Plan, PlannedAlert, PlannedObjective
from slos.yaml_text import Commented, Inline

Rule = dict[str, object]

INTERVAL = format_duration(Decimal(MINUTE))
"""The evaluation interval of groups: the window of the increases that they record."""
INCONSISTENT_FOR = "15m"
"""Servers scraped at different times contradict each other for moments."""
_WIDTH, _ALERT_WIDTH = 175, 120


def groups(plan: Plan) -> list[Rule]:
    """Return the rule groups of a service: shared series, one for each objective, quotas."""
    objectives = (_Rules(plan, planned).group() for planned in plan.objectives)
    return [*_shared(plan), *objectives, *quota_rules.groups(plan)]


def _shared(plan: Plan) -> Iterator[Rule]:
    """Yield the group of series that alerts of several objectives read, if any."""
    service = plan.service.service
    unavailable = unavailable_signals(plan.service)
    if unavailable is None:
        return
    record = {
        "record": names.UNAVAILABLE,
        "expr": pretty(unavailable, _ALERT_WIDTH),
        "labels": Inline({"service": service}),
    }
    yield Commented(
        "Signals that the sidecar reports as unavailable: alerts on absent metrics exclude them.",
        {"name": f"{service}/signals", "interval": INTERVAL, "rules": [record]},
    )


def alert_labels(
    plan: Plan, planned: PlannedObjective, tier: str, **more: str
) -> Mapping[str, str]:
    """Return the labels of an alert of a tier."""
    return {
        **names.series_labels(plan.service.service, planned.objective.name),
        **planned.labels,
        **_compat_labels(plan, planned, tier),
        **getattr(planned.alerting, tier).labels,
        **more,
    }


def _compat_labels(plan: Plan, planned: PlannedObjective, tier: str) -> dict[str, str]:
    if "sloth" not in plan.compat:
        return {}
    ids = names.sloth_labels(plan.service.service, planned.objective.name)
    return {**ids, "sloth_severity": tier}


def target_labels(plan: Plan, planned: PlannedObjective) -> dict[str, str]:
    """Return the labels of an objective's recorded target."""
    service, objective = plan.service, planned.objective
    about = {
        "indicator": objective.indicator,
        "threshold": threshold_text(objective),
        "window": format_duration(service.window),
        "owner": service.owns(objective),
        names.SELECTOR_LABEL: selector_text("", equal(service.selects(objective))) or "{}",
        names.HISTOGRAMS_LABEL: "native" if service.native(objective) else "",
    }
    known = {name: value for name, value in about.items() if value}
    return {**planned.labels, **known}


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of one objective."""

    plan: Plan
    planned: PlannedObjective

    def group(self) -> Rule:
        """Return the rules in reading order: events, error ratios, budget, alerts."""
        service, planned = self.plan.service, self.planned
        return Commented(
            planned.sentence,
            {
                "name": f"{service.service}/{planned.objective.name}",
                "interval": INTERVAL,
                "rules": [*self._events(), *self._ratios(), *self._budget(), *self._alerts()],
            },
        )

    def _events(self) -> Iterator[Rule]:
        target = f"vector({decimal_text(self.planned.objective.target)})"
        recorded = self.planned.recorded
        yield self._record(names.TARGET, target, **target_labels(self.plan, self.planned))
        yield self._record(names.TOTAL, pretty(recorded.total, _WIDTH))
        yield self._record(names.BAD, pretty(recorded.bad, _WIDTH))

    def _ratios(self) -> Iterator[Rule]:
        for window in self.planned.windows:
            yield self._record(
                names.error_ratio(window), _error_ratio(self.planned.matchers, window)
            )

    def _budget(self) -> Iterator[Rule]:
        period, target = self.plan.service.window, self.planned.objective.target
        yield self._record(names.PERIOD_BAD, _period_bad(self.planned.matchers, period))
        yield self._record(
            names.PERIOD_ERROR_RATIO, _period_error_ratio(self.planned.matchers, period)
        )
        yield self._record(names.BUDGET_REMAINING, _budget_remaining(self.planned.matchers, target))

    def _alerts(self) -> Iterator[Rule]:
        planned, alerts = self.planned, self.planned.alerts
        for pair in planned.alerting_pairs:
            yield self._alert(
                planned.burn,
                _burns(self.planned.matchers, pair, planned.min_bad_events),
                pair.tier,
                messages.burning(self.plan, planned, pair),
                window=pair.long,
                burn_rate=decimal_text(pair.burn_rate),
            )
        if planned.low_traffic is not None and planned.low_traffic_errors in alerts:
            yield self._low_traffic_alert(planned.low_traffic)
        if planned.exhausted in alerts:
            message = messages.exhausted(self.plan, planned)
            spent = _spent(self.planned.matchers, Decimal(1), planned.min_bad_events)
            yield self._alert(planned.exhausted, spent, "ticket", message)
        if planned.policy in alerts:
            for step in planned.policy_steps:
                yield self._alert(
                    planned.policy,
                    _spent(self.planned.matchers, step.spent, planned.min_bad_events),
                    "ticket",
                    messages.policy(self.plan, planned, step),
                    **{names.STEP_LABEL: names.policy_step(step.spent)},
                )
        if planned.absent in alerts:
            yield from self._absent_alerts()
        inconsistent = planned.recorded.inconsistent
        if inconsistent is not None and planned.inconsistent in alerts:
            message = messages.inconsistent(planned)
            expr = pretty(inconsistent, _ALERT_WIDTH)
            yield self._alert(
                planned.inconsistent, expr, "ticket", message, lasting=INCONSISTENT_FOR
            )

    def _absent_alerts(self) -> Iterator[Rule]:
        planned, lasting = self.planned, format_duration(self.planned.absent_seconds)
        for tier, expr, message in self._absences():
            text = pretty(expr, _ALERT_WIDTH)
            yield self._alert(planned.absent, text, tier, message, lasting=lasting)

    def _absences(self) -> tuple[tuple[TierName, Expr, Message], ...]:
        """Return conditions and messages by tier, at most one each: alerts must be distinct."""
        planned = self.planned
        missing, uncovered = planned.recorded.missing, planned.recorded.uncovered
        if uncovered is None:
            return ((planned.absent_tier, missing, messages.missing(self.plan, planned)),)
        if planned.absent_tier == "ticket":
            return (
                ("ticket", missing.or_(uncovered), messages.missing_somewhere(self.plan, planned)),
            )
        return (
            ("page", missing, messages.missing(self.plan, planned)),
            ("ticket", uncovered, messages.uncovered(self.plan, planned)),
        )

    def _low_traffic_alert(self, condition: LowTrafficCondition) -> Rule:
        return self._alert(
            self.planned.low_traffic_errors,
            _low_traffic(self.planned.matchers, condition, self.planned.min_bad_events),
            "ticket",
            messages.low_traffic(self.plan, self.planned, condition),
        )

    def _labels(self) -> dict[str, str]:
        return names.series_labels(self.plan.service.service, self.planned.objective.name)

    def _record(self, name: str, expr: str, **more: str) -> Rule:
        labels = Inline({**self._labels(), **more})
        return {"record": name, "expr": expr, "labels": labels}

    def _alert(
        self,
        alert: PlannedAlert,
        expr: str,
        tier: TierName,
        message: Message,
        *,
        lasting: str = "",
        **more: str,
    ) -> Rule:
        labels = alert_labels(self.plan, self.planned, tier, **more)
        return {
            "alert": alert.name,
            "expr": expr,
            **({"for": lasting} if lasting else {}),
            "labels": Inline(labels),
            "annotations": messages.annotated(self.plan, self.planned, alert, tier, message),
        }


# Queries on the recorded series of an objective, which `matchers` select.


@for_matchers
def _error_ratio(matchers: str, window: str) -> str:
    """Return bad / all events over ``window``; no element, instead of 0/0, without events."""
    total = _count(names.TOTAL, matchers, window).compare(">", number(0))
    return pretty(_count(names.BAD, matchers, window) / total, _WIDTH)


@for_matchers
def _period_bad(matchers: str, period: Decimal) -> str:
    return pretty(_count(names.BAD, matchers, format_duration(period)), _WIDTH)


@for_matchers
def _period_error_ratio(matchers: str, period: Decimal) -> str:
    """Return the error ratio of the period: that so far times the recorded share of it."""
    total = _count(names.TOTAL, matchers, format_duration(period)).compare(">", number(0))
    recorded = call("scalar", messages.minutes_recorded(matchers, period))
    spent = _series(names.PERIOD_BAD, matchers) / total * recorded
    return pretty(spent / number(period / MINUTE), _WIDTH)


@for_matchers
def _budget_remaining(matchers: str, target: Decimal) -> str:
    """Return 1 for an untouched budget, 0 for a spent one, less for an overspent one.

    A measured service without traffic has an untouched budget; one that is not measured has no
    element.
    """
    idle = _series(names.TOTAL, matchers).compare("==", number(0))
    spent = _series(names.PERIOD_ERROR_RATIO, matchers) / number(1 - target)
    return pretty((number(1) - spent).or_(idle + number(1)), _WIDTH)


@for_matchers
def _burns(matchers: str, pair: Pair, least_bad: int) -> str:
    """Return where the error ratio exceeds the threshold over both windows."""
    threshold = number(pair.threshold)
    long, short = (
        _series(names.error_ratio(window), matchers).compare(">", threshold)
        for window in (pair.long, pair.short)
    )
    bad = _count(names.BAD, matchers, pair.long)
    return pretty(_unless_few(long.and_(short), bad, least_bad), _ALERT_WIDTH)


@for_matchers
def _low_traffic(matchers: str, condition: LowTrafficCondition, least_bad: int) -> str:
    """Return where most events are bad, and those are too few for a burn-rate alert."""
    ratio = _series(names.error_ratio(condition.window), matchers)
    bad = _count(names.BAD, matchers, condition.window)
    some = bad.compare(">", number(condition.events - 1))
    few = bad.compare("<", number(least_bad))
    most = ratio.compare(">", number(condition.threshold))
    return pretty(most.and_(some).and_(few), _ALERT_WIDTH)


@for_matchers
def _spent(matchers: str, share: Decimal, least_bad: int) -> str:
    """Return where at least this share of the budget is spent."""
    left = _series(names.BUDGET_REMAINING, matchers).compare("<=", number(1 - share))
    bad = _series(names.PERIOD_BAD, matchers)
    return pretty(_unless_few(left, bad, least_bad), _ALERT_WIDTH)


def _unless_few(expr: Expr, bad: Expr, least: int) -> Expr:
    """Add the guard for low traffic, at which a single failure is a large ratio."""
    return expr.and_(bad.compare(">=", number(least))) if least > 1 else expr


def _count(name: str, matchers: str, window: str) -> Expr:
    return call("sum_over_time", _series(name, matchers, window))


def _series(name: str, matchers: str, window: str = "") -> Expr:
    return Text(f"{name}{matchers}[{window}]" if window else name + matchers, whole=True)
