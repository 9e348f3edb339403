"""Answers of Prometheus to the queries of a diagnosis, by which checks are sick."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from fake_prometheus import Result

from alerts.rules import groups
from diagnosis.check_results import PlannedCheck
from diagnosis.check_selection import planned_checks
from diagnosis.evidence import default_evidence
from promql.client import Sample
from runbooks.diagnosis_check import HealthyResult
from slos import names
from slos.causes import CAUSE_ALERTS
from slos.plan import Plan

CAUSES = [cause.name for cause in CAUSE_ALERTS]
WHERE = {"instance": "10.0.0.1:9464"}


def recorded_targets(plan: Plan) -> list[Sample]:
    """Return the series of targets that a plan's rules record."""
    rules = [rule for group in groups(plan) for rule in group["rules"]]  # type: ignore[attr-defined]
    return [
        Sample({"__name__": names.TARGET, **rule["labels"]}, float(rule["expr"][7:-1]))
        for rule in rules
        if rule.get("record") == names.TARGET
    ]


def fires(plan: Plan, *alerts: str) -> list[Sample]:
    """Return samples of ALERTS for alerts of objectives and causes."""
    objective = {alert.name: planned.objective.name for planned, alert in plan.alerts()}
    return [
        Sample(
            {
                "alertname": alert,
                "alertstate": "firing",
                "service": plan.service.service,
                **({"slo": objective[alert]} if alert in objective else {"cause": alert}),
            },
            1,
        )
        for alert in alerts
    ]


def answers(
    plan: Plan,
    sick: Mapping[str, float] | None = None,
    *,
    missing: Collection[str] = (),
    failing: Mapping[str, str] | None = None,
    firing: tuple[str, ...] = (),
    burn_rate: float = 0.0,
    present: Callable[[str], bool] = lambda _: True,
) -> Callable[[str], Result]:
    """Evaluate queries so that these checks are sick with these values, and the others healthy.

    ``missing`` checks have an empty result, ``failing`` ones an error.  ``present`` are the metrics
    that have series.
    """
    found: dict[str, Result] = {}
    wrong = {**(failing or {})}
    unhealthy = {**(sick or {})}
    evidence = default_evidence()
    planned = [
        each
        for objective in plan.objectives
        for each in planned_checks(plan, [objective], "", evidence)
    ]
    for each in sorted(planned, key=lambda each: each.check.key in unhealthy):
        key = each.check.key
        if key == "cause_alerts":
            found[str(each.expr)] = fires(plan, *(set(firing) & {*CAUSES}))
        elif key in missing:
            found[str(each.expr)] = []
        elif key in wrong:
            found[str(each.expr)] = wrong[key]
        elif key in unhealthy:
            found[str(each.expr)] = [Sample(WHERE, unhealthy[key])]
        else:
            found[str(each.expr)] = _healthy(each)

    def evaluate(expr: str) -> Result:
        if expr == names.TARGET:
            return recorded_targets(plan)
        if expr.startswith("ALERTS{service="):
            return fires(plan, *firing)
        if expr.startswith("slo:error_ratio:") and "group_left" in expr:
            labels = {"service": plan.service.service}
            return [
                Sample({**labels, "slo": each.objective.name}, burn_rate)
                for each in plan.objectives
            ]
        if expr.startswith("count by (__name__)"):
            metrics = re.findall(r"\b(?:llm|tokenslo|nv)_\w+", expr)
            return [Sample({"__name__": each}, 1) for each in metrics if present(each)]
        return found[expr]

    return evaluate


def _healthy(planned: PlannedCheck) -> list[Sample]:
    healthy: HealthyResult = planned.check.healthy(planned.subject)
    if healthy.value is None:
        return []
    value = float(healthy.value)
    by = {"<": value / 2, "<=": value / 2, ">": (value + 1) / 2, ">=": value, "==": value}
    return [Sample(WHERE, by[healthy.op])]
