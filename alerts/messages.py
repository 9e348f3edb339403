"""What the alerts say to people: their annotations, with Prometheus's templates for the numbers."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

from promql.expr import decimal_text, vector
from slos import names
from slos.burn import Pair, TierName, Trickle
from slos.durations import format_duration
from slos.indicators import good_sentence, threshold_text
from slos.model import PolicyStep
from slos.plan import Plan, PlannedAlert, PlannedObjective
from slos.signals import SIGNALS

_WHY_UNCOVERED = {
    "seconds": "Their exporter may not have read this SLO file.",
    None: "Their server or their tap does not give what every clause needs.",
}
_VALUE = "{{ $value | humanizePercentage }}"


class Message(NamedTuple):
    """What an alert says: what is wrong, and what else there is to know of it."""

    summary: str
    sentences: tuple[str, ...]

    @classmethod
    def of(cls, summary: str, *sentences: str) -> Message:
        """Return a message of so many sentences."""
        return cls(summary, sentences)


def annotated(
    plan: Plan, planned: PlannedObjective, alert: PlannedAlert, tier: TierName, message: Message
) -> dict[str, str]:
    """Return the annotations of an alert of a tier, with its links and those of the SLO file."""
    links = {"runbook_url": alert.runbook_url, "dashboard_url": plan.dashboard_url}
    about = f"{plan.service.service} {planned.objective.name}{_group(planned, alert)}"
    return {
        "summary": f"{about}: {message.summary}",
        "description": " ".join(message.sentences),
        **{name: url for name, url in links.items() if url},
        **getattr(planned.alerting, tier).annotations,
    }


def burning(plan: Plan, planned: PlannedObjective, pair: Pair) -> Message:
    """Describe a burn alert, whose value is the error ratio over the long window."""
    times = "" if pair.burn_rate == 1 else f"{decimal_text(pair.burn_rate)} times "
    return Message.of(
        f"the error budget burns at more than {times}the allowed rate",
        f"{_VALUE} of {planned.indicator.events} in the last {pair.long} were bad, and more than "
        f"{_percent(pair.threshold)} in the last {pair.short}.",
        _promise(plan, planned),
        f"Budget left: {_budget_left(plan, planned)}.",
    )


def exhausted(plan: Plan, planned: PlannedObjective) -> Message:
    """Describe the alert on a spent budget, whose value is the share of it that is left."""
    return Message.of(
        f"the error budget of {format_duration(plan.service.window)} is spent",
        f"Budget left: {_VALUE}.",
        _promise(plan, planned),
    )


def missing(planned: PlannedObjective) -> Message:
    """Describe the alert on an objective that nobody can measure."""
    return Message.of(
        "the objective cannot be measured",
        f"Prometheus has no {_needed(planned)}: the server or its exporter is gone, or it reports "
        "otherwise than the objective needs.",
        "Until that is back, no other alert of this objective can fire.",
    )


def uncovered(planned: PlannedObjective) -> Message:
    """Describe the alert on servers that are left out; its value is their number of series."""
    return Message.of(
        "some servers are left out of the objective",
        f"{{{{ $value }}}} series report without {_needed(planned)}, so what they count is taken "
        "as neither good nor bad.",
        _why_uncovered(planned),
    )


def missing_somewhere(planned: PlannedObjective) -> Message:
    """Describe the alert that says both, where nobody is to be paged."""
    return Message.of(
        "the objective cannot be measured, or not on all servers",
        f"From some servers or from all, Prometheus has no {_needed(planned)}.",
        "What those servers do is taken as neither good nor bad.",
    )


def impossible(planned: PlannedObjective) -> Message:
    """Describe the alert on numbers that contradict each other."""
    return Message.of(
        "the objective counts what cannot be",
        f"More {planned.indicator.events} are good, or bad, than there are at all, or a share is "
        "not within 0 and 1: a metric has changed its meaning, or two sources are added up.",
        "Until that is put right, the error ratio and the budget of this objective mean nothing.",
    )


def trickling(plan: Plan, planned: PlannedObjective, trickle: Trickle) -> Message:
    """Describe the alert on few events, whose value is the error ratio."""
    return Message.of(
        "most of what little happens is bad",
        f"{_VALUE} of {planned.indicator.events} in the last {trickle.window} were bad, at least "
        f"{trickle.events} of them. Fewer than {planned.min_bad_events} raise no other alert.",
        _promise(plan, planned),
    )


def policy(plan: Plan, planned: PlannedObjective, step: PolicyStep) -> Message:
    """Describe a step of the budget policy, whose value is the share of the budget that is left."""
    return Message.of(
        f"{names.policy_step(step.spent)} of the error budget of "
        f"{format_duration(plan.service.window)} is spent",
        f'The policy for this: "{step.do}".',
        f"Budget left: {_VALUE}.",
        _promise(plan, planned),
    )


def _promise(plan: Plan, planned: PlannedObjective) -> str:
    return (
        f"The objective: {_percent(planned.objective.target)} of {planned.indicator.events} in "
        f"{format_duration(plan.service.window)} are good. "
        f"Good means {good_sentence(planned.objective)}."
    )


def _group(planned: PlannedObjective, alert: PlannedAlert) -> str:
    """Name the group that an alert is about; what is missing has none."""
    by = planned.objective.group_by
    if not by or alert in (planned.absent, planned.impossible):
        return ""
    return f" ({', '.join(f'{label} {{{{ $labels.{label} }}}}' for label in by)})"


def _budget_left(plan: Plan, planned: PlannedObjective) -> str:
    labels = names.series_labels(plan.service.service, planned.objective.name)
    by = planned.objective.group_by
    query = str(vector(names.BUDGET_REMAINING, labels))
    asked = f"query `{query}`"
    if by:
        matchers = "".join(f",{label}=%q" for label in by)
        values = " ".join(f"$labels.{label}" for label in by)
        asked = f"printf `{query.removesuffix('}')}{matchers}}}` {values} | query"
    return (
        f"{{{{ with {asked} }}}}{{{{ . | first | value | humanizePercentage }}}}"
        "{{ else }}unknown{{ end }}"
    )


def _why_uncovered(planned: PlannedObjective) -> str:
    if planned.objective.queries:
        return "Their histogram has other buckets."
    return _WHY_UNCOVERED[planned.indicator.threshold]


def _needed(planned: PlannedObjective) -> str:
    if queries := planned.objective.queries:
        if metric := queries.get("histogram", "").partition("{")[0]:
            return f"{metric}_bucket with an edge at {threshold_text(planned.objective)}"
        return f"result for the objective's own queries ({', '.join(queries)})"
    metrics = list(dict.fromkeys(SIGNALS[key].metric for key in planned.indicator.signals))
    if planned.indicator.threshold == "seconds":
        return f"{metrics[0]}_bucket with an edge at {threshold_text(planned.objective)}"
    verdicts = planned.indicator.verdicts
    if verdicts and verdicts.unknown:
        return f"{metrics[0]} with {verdicts.label} {' or '.join((*verdicts.good, *verdicts.bad))}"
    return " or no ".join(metrics)


def _percent(ratio: Decimal) -> str:
    return f"{decimal_text(ratio * 100)}%"
