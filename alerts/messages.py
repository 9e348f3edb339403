"""What the alerts say to people: their annotations, with Prometheus's templates for the numbers."""

from __future__ import annotations

from decimal import Decimal

from promql.expr import decimal_text, vector
from slos import names
from slos.burn import Pair, TierName
from slos.durations import format_duration
from slos.indicators import good_sentence, threshold_text
from slos.plan import Plan, PlannedAlert, PlannedObjective
from slos.signals import SIGNALS

Annotations = dict[str, str]

_VALUE = "{{ $value | humanizePercentage }}"


def burning(plan: Plan, planned: PlannedObjective, pair: Pair) -> Annotations:
    """Describe a burn alert, whose value is the error ratio over the long window."""
    times = "" if pair.burn_rate == 1 else f"{decimal_text(pair.burn_rate)} times "
    return _annotations(
        plan,
        planned,
        planned.burn,
        pair.tier,
        f"the error budget burns at more than {times}the allowed rate",
        f"{_VALUE} of {planned.indicator.events} in the last {pair.long} were bad, and more than "
        f"{_percent(pair.threshold)} in the last {pair.short}.",
        _promise(plan, planned),
        f"Budget left: {_budget_left(plan, planned)}.",
    )


def exhausted(plan: Plan, planned: PlannedObjective) -> Annotations:
    """Describe the alert on a spent budget, whose value is the share of it that is left."""
    return _annotations(
        plan,
        planned,
        planned.exhausted,
        "ticket",
        f"the error budget of {format_duration(plan.service.window)} is spent",
        f"Budget left: {_VALUE}.",
        _promise(plan, planned),
    )


def missing(plan: Plan, planned: PlannedObjective) -> Annotations:
    """Describe the alert on an objective that nobody can measure."""
    return _annotations(
        plan,
        planned,
        planned.absent,
        "page",
        "the objective cannot be measured",
        f"Prometheus has no {_needed(planned)}: the server or its exporter is gone, or it reports "
        "otherwise than the objective needs.",
        "Until that is back, no other alert of this objective can fire.",
    )


def uncovered(plan: Plan, planned: PlannedObjective) -> Annotations:
    """Describe the alert on servers that are left out; its value is their number of series."""
    return _annotations(
        plan,
        planned,
        planned.absent,
        "ticket",
        "some servers are left out of the objective",
        f"{{{{ $value }}}} series report without {_needed(planned)}, so what they count is taken "
        "as neither good nor bad.",
        "Their exporter may not have read this SLO file.",
    )


def _annotations(
    plan: Plan,
    planned: PlannedObjective,
    alert: PlannedAlert,
    tier: TierName,
    summary: str,
    *sentences: str,
) -> Annotations:
    links = {"runbook_url": alert.runbook_url, "dashboard_url": plan.dashboard_url}
    return {
        "summary": f"{plan.service.service} {planned.objective.name}: {summary}",
        "description": " ".join(sentences),
        **{name: url for name, url in links.items() if url},
        **getattr(plan.service.alerting, tier).annotations,
    }


def _promise(plan: Plan, planned: PlannedObjective) -> str:
    return (
        f"The objective: {_percent(planned.objective.target)} of {planned.indicator.events} in "
        f"{format_duration(plan.service.window)} are good. "
        f"Good means {good_sentence(planned.objective)}."
    )


def _budget_left(plan: Plan, planned: PlannedObjective) -> str:
    labels = names.series_labels(plan.service.service, planned.objective.name)
    query = vector(names.BUDGET_REMAINING, labels)
    return (
        f"{{{{ with query `{query}` }}}}{{{{ . | first | value | humanizePercentage }}}}"
        "{{ else }}unknown{{ end }}"
    )


def _needed(planned: PlannedObjective) -> str:
    metrics = list(dict.fromkeys(SIGNALS[key].metric for key in planned.indicator.signals))
    if planned.indicator.threshold == "seconds":
        return f"{metrics[0]}_bucket with an edge at {threshold_text(planned.objective)}"
    return " or no ".join(metrics)


def _percent(ratio: Decimal) -> str:
    return f"{decimal_text(ratio * 100)}%"
