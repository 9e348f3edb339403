"""Expectations of generated promtool tests: which alerts fire when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import ROUND_FLOOR, Decimal

from alerts.rules import alert_labels
from alerts.traffic import STEP, groups
from promql.expr import Expr, Vector, aggregate, equal, vector
from slos import names
from slos.burn import Pair
from slos.durations import format_duration
from slos.plan import Plan, PlannedAlert, PlannedObjective

Item = dict[str, object]


def firing(plan: Plan, planned: PlannedObjective, alert: PlannedAlert, **more: str) -> Vector:
    """Select an alert while it fires, of the group under test."""
    of_group = alert not in (planned.absent, planned.inconsistent)
    labels = {
        "alertname": alert.name,
        "alertstate": "firing",
        **names.series_labels(plan.service.service, planned.objective.name),
        **(groups(planned, plan.service)[0] if of_group else {}),
        **more,
    }
    return vector("ALERTS", labels)


def labelled(plan: Plan, planned: PlannedObjective, alert: Vector, tier: str) -> Vector:
    """Select an alert with all labels of its tier except templates."""
    known = {matcher.label for matcher in alert.matchers}
    labels = alert_labels(plan, planned, tier).items()
    more = {name: text for name, text in labels if name not in known and "{{" not in text}
    return replace(alert, matchers=(*alert.matchers, *equal(more)))


def burning(plan: Plan, planned: PlannedObjective, pair: Pair) -> Vector:
    """Select the burn alert of ``pair`` while it fires."""
    return firing(plan, planned, planned.burn, window=pair.long)


def none(seconds: Decimal, expr: Expr) -> Item:
    """Expect no series, ``seconds`` after the start."""
    return _check(seconds, expr, [])


def some(seconds: Decimal, expr: Expr, count: int = 1) -> Item:
    """Expect ``count`` series, ``seconds`` after the start."""
    return _check(seconds, aggregate("count", expr), [{"labels": "{}", "value": count}])


def fires(seconds: Decimal, expr: Expr, *, does: bool) -> Item:
    """Expect that an alert fires, or not, ``seconds`` after the start."""
    return (some if does else none)(seconds, expr)


def _check(seconds: Decimal, expr: Expr, samples: Sequence[Item]) -> Item:
    steps = (seconds / STEP).to_integral_value(ROUND_FLOOR)
    return {
        "expr": str(expr),
        "eval_time": format_duration(steps * STEP),
        "exp_samples": samples,
    }
