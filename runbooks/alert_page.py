"""The runbook page of an objective's alert: triage on two screens, then the details."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

from promql.expr import decimal_text
from runbooks.check_queries import Subject
from runbooks.check_section import triage, triage_section
from runbooks.diagnosis_check import DiagnosisCheck
from runbooks.markdown import (
    DETAILS,
    INDEX,
    TRIAGE,
    about,
    bullets,
    dashboard,
    document,
    escalation,
    owner_text,
    page_link,
    percent,
    plain,
    playbook_link,
    promql,
)
from runbooks.playbook import Playbook
from runbooks.playbooks import PLAYBOOKS
from runbooks.triage import IMPACT, checks, playbooks
from slos import names
from slos.burn import Pair
from slos.durations import format_duration, parse_duration
from slos.explain import FAILURES
from slos.indicators import good_sentence
from slos.plan import PlannedAlert, PlannedObjective


def alert_page(subject: Subject, alert: PlannedAlert) -> str:
    """Write the page of an alert."""
    owner = subject.plan.service.owns(subject.planned.objective)
    found = checks(subject, alert)
    chosen = triage(subject, found)
    return document(
        [
            f"# {alert.name}",
            "## Meaning",
            *_MEANING[alert.kind](subject),
            "## Impact",
            _impact(subject, alert),
            f"## {TRIAGE}",
            *(_triage(subject, alert, chosen) if found else _triage_at_low_traffic(subject)),
            *_other_playbooks(playbooks(found, alert), chosen),
            *_details(subject, alert),
            "## Verify",
            *_verify(subject, alert),
            "## Escalate",
            _decision(owner) if alert.kind in ("exhausted", "policy") else escalation(owner),
            "## Related",
            bullets(_related(subject, alert)),
        ]
    )


def _triage(
    subject: Subject, alert: PlannedAlert, found: Sequence[DiagnosisCheck]
) -> Iterator[str]:
    planned = subject.planned
    latency = planned.measures_latency or planned.objective.indicator == "goodput"
    if alert.kind == "burn" and planned.indicator.signals and latency:
        procedure = playbook_link(PLAYBOOKS["latency_spike"])
        yield f"Open the playbook of the first unexpected result; without one, {procedure}."
    elif len(found) > 1:
        yield "Open the playbook of the first unexpected result."
    for number, check in enumerate(found, 1):
        yield from triage_section(number, check, subject)


def _triage_at_low_traffic(subject: Subject) -> Iterator[str]:
    planned, condition = subject.planned, subject.planned.low_traffic
    assert condition is not None  # noqa: S101  (else there is no such alert)
    yield f"### 1. Is the share of bad {planned.indicator.events} still too high?"
    yield promql(subject.recorded(names.error_ratio(condition.window)))
    yield (
        f"Expect at most {percent(condition.threshold)}. Otherwise read the server's log of the "
        f"bad {planned.indicator.events}: they are few. Then take the triage of "
        f"{page_link(planned.burn)}, with the range `[{condition.window}]` instead of "
        f"`[{names.BASE_WINDOW}]`."
    )


def _other_playbooks(every: Sequence[Playbook], chosen: Sequence[DiagnosisCheck]) -> Iterator[str]:
    """Yield the playbooks that the triage does not name."""
    linked = {check.points_to for check in chosen}
    if others := [each for each in every if each.key not in linked]:
        yield "## Other playbooks"
        yield " · ".join(map(playbook_link, others))


def _details(subject: Subject, alert: PlannedAlert) -> Iterator[str]:
    if blocks := [block for block in _DETAILS[alert.kind](subject) if block]:
        yield f"## {DETAILS}"
        yield from blocks


def _meaning(subject: Subject, state: str, then: str = "") -> str:
    """State the alert in the objective's numbers, then its objective or another sentence."""
    planned, service = subject.planned, subject.plan.service
    objective = planned.objective
    opening = state.format(
        service=f"`{service.service}`",
        objective=f"`{objective.name}`",
        window=format_duration(service.window),
        budget=percent(subject.budget),
        events=planned.indicator.events,
        absent=format_duration(planned.absent_seconds),
        least=planned.min_bad_events,
    )
    return f"{opening} " + (
        then
        or f"Objective: {percent(objective.target)} of {planned.indicator.events} in "
        f"{format_duration(service.window)} are good; one is good if {good_sentence(objective)}."
    )


def _grouping(subject: Subject) -> str:
    by = " and ".join(subject.planned.objective.group_by)
    return f"Each {by} has an objective of its own; an alert's labels name it." if by else ""


def _burn_meaning(subject: Subject) -> Iterator[str]:
    yield _meaning(
        subject, "{service} burns the error budget of {objective} too fast to last {window}."
    )


def _burn_details(subject: Subject) -> Iterator[str]:
    planned, service = subject.planned, subject.plan.service
    yield "### When the alert fires"
    lasts = about(subject.budget * service.window)
    yield f"Error budget: {percent(subject.budget)}, which a total outage spends in {lasts}."
    guard = (
        f", with at least {planned.min_bad_events} bad {planned.indicator.events} in the long one"
        if planned.min_bad_events
        else ""
    )
    yield (
        f"The alert fires above the bad share in both windows of a row{guard}. Its labels `window` "
        "and `burn_rate` name the row."
    )
    yield _pair_table(planned, service.window)
    if planned.objective.indicator == "ttft":
        yield "Requests that fail before their first token count as bad."
    yield _grouping(subject)


def _pair_table(planned: PlannedObjective, period: Decimal) -> str:
    head = (
        "| tier | windows | bad share | burn rate | budget spent | fires if all bad | half bad "
        "| a fifth bad |\n|---|---|---|---|---|---|---|---|"
    )
    rows = (
        f"| {pair.tier} | {pair.long} and {pair.short} | {percent(pair.threshold)} "
        f"| {decimal_text(pair.burn_rate)} | {percent(_spent(pair, period))} "
        f"| {' | '.join(_about_or_never(planned.seconds_to_fire(pair, s)) for s in FAILURES)} |"
        for pair in planned.alerting_pairs
    )
    table = "\n".join([head, *rows])
    if slices := planned.objective.slices:
        table += (
            "\n\nThe last three columns are shares within each slice; above "
            f"{percent(1 - slices.target)}, the whole slice is bad."
        )
    return table


def _spent(pair: Pair, period: Decimal) -> Decimal:
    """Return the share of the budget that is spent when the pair fires, to 0.01 %."""
    share = pair.burn_rate * parse_duration(pair.long) / period
    return share.quantize(Decimal("0.0001"))


def _about_or_never(seconds: Decimal | None) -> str:
    return "never" if seconds is None else about(seconds)


def _exhausted_meaning(subject: Subject) -> Iterator[str]:
    yield _meaning(
        subject,
        "{service} has spent the error budget of {objective}: more than {budget} of {events} were "
        "bad over the last {window}.",
        "This need not be an outage now: the alert ends when enough of the bad time has left the "
        "window.",
    )


def _exhausted_details(subject: Subject) -> Iterator[str]:
    if subject.planned.policy_steps:
        yield "The budget policy:"
        yield _policy_table(subject.planned)
    yield _grouping(subject)


def _low_traffic_meaning(subject: Subject) -> Iterator[str]:
    condition = subject.planned.low_traffic
    assert condition is not None  # noqa: S101  (else there is no such alert)
    yield _meaning(
        subject,
        f"Over {percent(condition.threshold)} of the {{events}} of {{service}} were bad for "
        f"{{objective}} in the last {condition.window}: at least {condition.events}, and "
        "fewer than the {least} that a burn-rate alert needs.",
    )


def _low_traffic_details(subject: Subject) -> Iterator[str]:
    yield _grouping(subject)


def _policy_meaning(subject: Subject) -> Iterator[str]:
    yield _meaning(
        subject,
        "{service} has spent a share of the error budget of {objective} that requires action.",
    )
    yield "The budget policy; the label `step` of an alert names the row:"
    yield _policy_table(subject.planned)


def _policy_details(subject: Subject) -> Iterator[str]:
    yield (
        "A later step inhibits those before it. A step ends when enough of the bad time has left "
        "the window."
    )
    yield _grouping(subject)


def _policy_table(planned: PlannedObjective) -> str:
    rows = (
        f"| {names.policy_step(step.spent)} | {plain(step.do)} |" for step in planned.policy_steps
    )
    return "\n".join(["| budget spent | action |", "|---|---|", *rows])


def _inconsistent_meaning(subject: Subject) -> Iterator[str]:
    yield _meaning(
        subject,
        "The SLI of {objective} of {service} is inconsistent: bad exceeds total, or a ratio is "
        "outside 0 to 1.",
    )


def _inconsistent_details(subject: Subject) -> Iterator[str]:
    yield (
        "A metric has changed its meaning, or only one of the two queries adds up two sources. The "
        "alert fires when the first query above keeps having a result; 1 % of error is tolerated."
    )
    yield _grouping(subject)


def _absent_meaning(subject: Subject) -> Iterator[str]:
    state = "For {absent}, Prometheus has had no data for {objective} of {service}"
    servers = ", or not from all servers" if subject.planned.events.uncovered else ""
    yield _meaning(
        subject,
        f"{state}{servers}.",
        "Without traffic there is still data, so the measurement or the server is down.",
    )


def _absent_details(subject: Subject) -> Iterator[str]:
    planned = subject.planned
    lasting = format_duration(planned.absent_seconds)
    yield f"The alert fires when this query has a result for {lasting}:"
    yield promql(planned.events.missing)
    if planned.events.uncovered:
        yield "Or this one: some servers do not provide the signal, and are not counted."
        yield promql(planned.events.uncovered)
    yield _grouping(subject)


_MEANING = {
    "burn": _burn_meaning,
    "low_traffic": _low_traffic_meaning,
    "exhausted": _exhausted_meaning,
    "policy": _policy_meaning,
    "absent": _absent_meaning,
    "inconsistent": _inconsistent_meaning,
}
_DETAILS = {
    "burn": _burn_details,
    "low_traffic": _low_traffic_details,
    "exhausted": _exhausted_details,
    "policy": _policy_details,
    "absent": _absent_details,
    "inconsistent": _inconsistent_details,
}


def _impact(subject: Subject, alert: PlannedAlert) -> str:
    if alert.kind == "absent":
        return (
            "Other alerts of this objective cannot fire. Users notice nothing, unless the server "
            "is down too, or a sidecar that is a proxy (`--tap proxy=…`)."
        )
    if alert.kind == "inconsistent":
        return "Users notice nothing. Error ratio, budget and alerts are wrong until it is fixed."
    if alert.kind in ("exhausted", "policy"):
        return (
            f"Users have had more bad {subject.planned.indicator.events} than the objective allows."
        )
    return IMPACT[subject.planned.objective.indicator]


def _verify(subject: Subject, alert: PlannedAlert) -> Iterator[str]:
    shortest = subject.planned.windows[0]
    if alert.kind == "absent":
        yield "This query has a result again, 0 without traffic:"
        yield promql(subject.recorded(names.TOTAL))
        return
    if alert.kind == "inconsistent":
        yield "The query of the first step has no result."
        return
    if alert.kind == "low_traffic":
        yield "The share above falls with each good request."
        return
    if alert.kind == "burn":
        yield (
            f"The bad share falls to {percent(subject.budget)}, the error budget. The alert ends "
            "with its short window."
        )
        yield promql(subject.recorded(names.error_ratio(shortest)))
        return
    if alert.kind == "policy":
        yield "A step ends when less than its share is spent. Budget left, as a share:"
    else:
        yield "The alert ends when this is above 0:"
    yield promql(subject.recorded(names.BUDGET_REMAINING))


def _decision(owner: str) -> str:
    return (
        f"Notify {owner_text(owner)} and the users of this objective. They decide what waits until "
        "the budget is back."
    )


def _related(subject: Subject, alert: PlannedAlert) -> Iterator[str]:
    planned = subject.planned
    if alert.kind == "burn":
        yield dashboard(subject.plan)
    elif planned.burn in planned.alerts and alert.kind != "low_traffic":
        yield page_link(planned.burn)
    yield f"[All pages of {subject.plan.service.service}]({INDEX})"
