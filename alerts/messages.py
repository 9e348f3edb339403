"""Annotations of the alerts, with Prometheus templates for the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from promql.expr import (
    Aggregate,
    Expr,
    Matcher,
    Text,
    aggregate,
    call,
    decimal_text,
    equal,
    for_matchers,
    number,
    vector,
)
from slos import names
from slos.burn import LowTrafficCondition, Pair
from slos.causes import cause_labels
from slos.durations import format_duration
from slos.events import MINUTE
from slos.indicator_events import counters
from slos.indicators import threshold_text
from slos.model import PolicyStep, TierName
from slos.plan import Plan, PlannedAlert, PlannedObjective
from slos.signals import SIGNALS

_VALUE = "{{ $value | humanizePercentage }}"


class Message(NamedTuple):
    """Texts of an alert: its summary, the sentences of its description, more annotations."""

    summary: str
    sentences: tuple[str, ...]
    more: Mapping[str, str] = {}

    @classmethod
    def of(cls, summary: str, *sentences: str) -> Message:
        """Return a message of these sentences."""
        return cls(summary, sentences)


def annotated(
    plan: Plan, planned: PlannedObjective, alert: PlannedAlert, tier: TierName, message: Message
) -> dict[str, str]:
    """Return the annotations of an alert, its links and those of its tier in the SLO file."""
    links = {"runbook_url": alert.runbook_url, "dashboard_url": dashboard_link(plan)}
    about = f"{plan.service.service} {planned.objective.name}{_group(planned, alert)}"
    return {
        "summary": f"{about}: {message.summary}",
        "description": " ".join(message.sentences),
        **message.more,
        **{name: url for name, url in links.items() if url},
        **getattr(planned.alerting, tier).annotations,
    }


def dashboard_link(plan: Plan) -> str:
    """Return the URL of the dashboard over the last six hours."""
    return f"{plan.dashboard_url}?from=now-6h&to=now" if plan.dashboard_url else ""


def burning(plan: Plan, planned: PlannedObjective, pair: Pair) -> Message:
    """Describe a burn alert, whose value is the error ratio over the long window."""
    message = Message.of(
        f"error budget burns over {decimal_text(pair.burn_rate)}x, {_VALUE} bad in {pair.long}",
        f"Over {_percent(pair.threshold)} of {planned.indicator.events} were bad in {pair.long} "
        f"and in {pair.short}.",
        f"Objective: {planned.sentence}",
    )
    if pair.tier == "ticket":  # a ticket leaves time to open the dashboard
        return message
    return message._replace(
        sentences=(*message.sentences, f"Budget left: {_budget_left(plan, planned)}."),
        more={"causes": _causes(*plan.service.selector.items()), **_worst(plan, planned)},
    )


@lru_cache
def _causes(*selector: tuple[str, str]) -> str:
    """List the cause alerts that fire on the same servers."""
    firing = {"alertstate": "firing", **cause_labels(dict(selector))}
    query = vector("ALERTS", (*equal(firing), Matcher(names.CAUSE_LABEL, "!=", "")))
    return (
        f"{{{{ range query `{query}` }}}}{{{{ .Labels.alertname }}}} {{{{ .Labels.instance }}}}; "
        "{{ else }}none fires{{ end }}"
    )


def _worst(plan: Plan, planned: PlannedObjective) -> dict[str, str]:
    """Name the instance with the most bad events, where the objective counts events."""
    service, objective = plan.service, planned.objective
    if planned.indicator.in_slices or objective.queries:
        return {}
    bad, _ = counters(objective, service)
    rate = aggregate("sum", call("rate", replace(bad, window=names.BASE_WINDOW)), ("instance",))
    worst = Aggregate("topk", rate, parameter=number(1))
    text = (
        f"{{{{ with query `{worst}` }}}}{{{{ . | first | label `instance` }}}}, "
        "{{ . | first | value | humanize }} bad per second{{ else }}unknown{{ end }}"
    )
    return {"worst_instance": text}


def exhausted(plan: Plan, planned: PlannedObjective) -> Message:
    """Describe the alert on a spent budget, whose value is the remaining share."""
    return Message.of(
        f"error budget of {format_duration(plan.service.window)} is spent",
        f"Budget left: {_VALUE}{_history(planned.matchers, plan.service.window)}.",
        f"Objective: {planned.sentence}",
    )


def missing(plan: Plan, planned: PlannedObjective) -> Message:
    """Describe the alert on absent metrics."""
    return Message.of(
        "metrics are absent",
        f"Prometheus has no {_needed(plan, planned)}: the sidecar is not scraped, or it runs "
        "without this SLO file (--slo), or the server does not provide the signal.",
        "Until then no other alert of this objective can fire.",
    )


def uncovered(plan: Plan, planned: PlannedObjective) -> Message:
    """Describe the alert on servers without measurements; its value is their number of series."""
    if not planned.objective.queries:
        return Message.of(
            "some servers are not measured",
            f"{{{{ $value }}}} signals of {_needed(plan, planned)} are reported as unavailable: "
            "their requests count as neither good nor bad. `tokenslo doctor` and the sidecar's "
            "status page give the reason and the fix.",
        )
    return Message.of(
        "some servers are not measured",
        f"{{{{ $value }}}} series report without {_needed(plan, planned)}: their histogram has "
        "other buckets, and their events count as neither good nor bad.",
    )


def missing_somewhere(plan: Plan, planned: PlannedObjective) -> Message:
    """Describe the alert on absent metrics of all servers or some, where it is a ticket."""
    return Message.of(
        "the objective cannot be measured, or not on all servers",
        f"Prometheus has no {_needed(plan, planned)} of some servers or of all.",
        "The events of those servers count as neither good nor bad.",
    )


def inconsistent(planned: PlannedObjective) -> Message:
    """Describe the alert on an inconsistent SLI."""
    return Message.of(
        "SLI is inconsistent",
        f"More {planned.indicator.events} are good, or bad, than there are, or a ratio is outside "
        "0 to 1: a metric has changed its meaning, or two sources are summed.",
        "Until this is fixed, the error ratio and the budget are wrong.",
    )


def low_traffic(plan: Plan, planned: PlannedObjective, condition: LowTrafficCondition) -> Message:
    """Describe the alert on errors at low traffic, whose value is the error ratio."""
    return Message.of(
        f"errors at low traffic, {_VALUE} bad in {condition.window}",
        f"At least {condition.events} and fewer than {planned.min_bad_events} "
        f"{planned.indicator.events} were bad, too few for a burn-rate alert.",
        f"Objective: {planned.sentence}",
    )


def policy(plan: Plan, planned: PlannedObjective, step: PolicyStep) -> Message:
    """Describe a step of the budget policy, whose value is the remaining share of the budget."""
    return Message.of(
        f"{names.policy_step(step.spent)} of the error budget of "
        f"{format_duration(plan.service.window)} is spent",
        f'Budget policy: "{step.do}".',
        f"Budget left: {_VALUE}{_history(planned.matchers, plan.service.window)}.",
        f"Objective: {planned.sentence}",
    )


def minutes_recorded(matchers: str, period: Decimal) -> Expr:
    """Return the number of minutes of the period in which the rules were evaluated."""
    target = Text(f"{names.TARGET}{matchers}[{format_duration(period)}]", whole=True)
    return aggregate("sum", call("count_over_time", target))


@for_matchers
def _history(matchers: str, period: Decimal) -> str:
    """Return a template for the recorded share of the period, empty once it is complete."""
    share = minutes_recorded(matchers, period) / number(period / MINUTE)
    young = share.compare("<", number(Decimal("0.99")))
    return (
        f"{{{{ with query `{young}` }}}}, from the {{{{ . | first | value | humanizePercentage }}}}"
        f" of {format_duration(period)} recorded so far{{{{ end }}}}"
    )


def _group(planned: PlannedObjective, alert: PlannedAlert) -> str:
    """Return a template for the group of an alert; alerts on absent metrics have none."""
    by = planned.objective.group_by
    if not by or alert in (planned.absent, planned.inconsistent):
        return ""
    return f" ({', '.join(f'{label} {{{{ $labels.{label} }}}}' for label in by)})"


def _budget_left(plan: Plan, planned: PlannedObjective) -> str:
    by = planned.objective.group_by
    query = f"{names.BUDGET_REMAINING}{planned.matchers}"
    pipeline = f"query `{query}`"
    if by:
        more = "".join(f",{label}=%q" for label in by)
        values = " ".join(f"$labels.{label}" for label in by)
        pipeline = f"printf `{query.removesuffix('}')}{more}}}` {values} | query"
    return (
        f"{{{{ with {pipeline} }}}}{{{{ . | first | value | humanizePercentage }}}}"
        f"{{{{ else }}}}unknown{{{{ end }}}}{_history(planned.matchers, plan.service.window)}"
    )


def _needed(plan: Plan, planned: PlannedObjective) -> str:
    if queries := planned.objective.queries:
        if metric := queries.get("histogram", "").partition("{")[0]:
            return f"{metric}_bucket with a boundary at {threshold_text(planned.objective)}"
        return f"result for the objective's own queries ({', '.join(queries)})"
    if planned.indicator.in_slices:
        metrics = dict.fromkeys(SIGNALS[key].metric for key in planned.indicator.signals)
        return " or no ".join(metrics)
    # Without the selector of the service: it is in the query.
    _, total = counters(planned.objective, replace(plan.service, selector={}))
    return str(total)


def _percent(ratio: Decimal) -> str:
    return f"{decimal_text(ratio * 100)}%"
