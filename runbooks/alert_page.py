"""The runbook page of an objective's alert: meaning, impact, diagnosis, mitigation."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from promql.expr import decimal_text
from runbooks.check_queries import Subject
from runbooks.markdown import (
    CAUSE_ALERTS,
    INDEX,
    about,
    anchor,
    dashboard,
    diagnosis,
    document,
    escalation,
    link,
    mitigation,
    owner_text,
    page_link,
    percent,
    plain,
    promql,
)
from runbooks.shared_pages import SharedPages
from runbooks.triage import IMPACT, causes, checks
from slos import names
from slos.burn import Pair
from slos.durations import format_duration, parse_duration
from slos.explain import FAILURES
from slos.plan import PlannedAlert, PlannedObjective


def alert_page(subject: Subject, alert: PlannedAlert, shared: SharedPages | None = None) -> str:
    """Write the page of an alert; with ``shared``, common steps and mitigations are links."""
    owner = subject.plan.service.owns(subject.planned.objective)
    return document(
        [
            f"# {alert.name}",
            "## Meaning",
            *_MEANING[alert.kind](subject),
            "## Impact",
            _impact(subject, alert),
            *_diagnosis_and_mitigation(subject, alert, shared),
            "## Verify",
            *_verify(subject, alert),
            "## Escalate",
            _decision(owner) if alert.kind in ("exhausted", "policy") else escalation(owner),
            "## Related",
            _related(subject, alert, shared),
        ]
    )


def objective_text(planned: PlannedObjective) -> str:
    """State an objective and its grouping."""
    by = " and ".join(planned.objective.group_by)
    groups = f" Each {by} has an objective of its own; an alert's labels name it." if by else ""
    return f"{planned.sentence}{groups}"


def _diagnosis_and_mitigation(
    subject: Subject, alert: PlannedAlert, shared: SharedPages | None
) -> Iterator[str]:
    """Yield both sections; at low traffic they are those of the burn-rate alert."""
    if alert.kind == "low_traffic":
        burn = page_link(subject.planned.burn)
        condition = subject.planned.low_traffic
        assert condition is not None  # noqa: S101  (else there is no such alert)
        yield "## Diagnosis"
        yield f"Take the steps of {burn}, with the range `[{condition.window}]` instead of `[5m]`."
        yield "## Mitigation"
        yield f"As on {burn}."
        return
    steps = tuple(checks(subject, alert))
    if shared:
        yield from shared.diagnosis(subject, alert, steps)
        return
    yield from diagnosis(steps, subject, link)
    yield from mitigation(causes(steps, alert))


def _budget(subject: Subject) -> str:
    lasts = about(subject.budget * subject.plan.service.window)
    return f"Error budget: {percent(subject.budget)}, which a total outage spends in {lasts}."


def _meaning(subject: Subject, state: str) -> str:
    """Open a page: the state in this objective's numbers, the objective, its budget."""
    planned, service = subject.planned, subject.plan.service
    opening = state.format(
        service=f"`{service.service}`",
        objective=f"`{planned.objective.name}`",
        window=format_duration(service.window),
        budget=percent(subject.budget),
        events=planned.indicator.events,
        absent=format_duration(planned.absent_seconds),
        least=planned.min_bad_events,
    )
    return f"{opening}\n\nObjective: {objective_text(planned)}"


def _burn_meaning(subject: Subject) -> Iterator[str]:
    planned, service = subject.planned, subject.plan.service
    state = "{service} burns the error budget of {objective} too fast to last {window}."
    yield f"{_meaning(subject, state)} {_budget(subject)}"
    guard = (
        f", and at least {planned.min_bad_events} {planned.indicator.events} were bad in the long "
        "one"
        if planned.min_bad_events
        else ""
    )
    yield (
        "The alert fires when the bad share is above the threshold in both windows of a "
        f"row{guard}. Its labels `window` and `burn_rate` name the row."
    )
    yield _pair_table(planned, service.window)
    if planned.objective.indicator == "ttft":
        yield "Requests that fail before their first token count as bad."


def _pair_table(planned: PlannedObjective, period: Decimal) -> str:
    head = (
        "| tier | windows | bad share | burn rate | budget spent | all bad | half bad "
        "| a fifth bad |\n|---|---|---|---|---|---|---|---|"
    )
    rows = (
        f"| {pair.tier} | {pair.long} and {pair.short} | {percent(pair.threshold)} "
        f"| {decimal_text(pair.burn_rate)} | {percent(_spent(pair, period))} "
        f"| {' | '.join(_about_or_never(planned.seconds_to_fire(pair, s)) for s in FAILURES)} |"
        for pair in planned.alerting_pairs
    )
    note = "Last three columns: time until the alert fires."
    if slices := planned.objective.slices:
        note += (
            f" They are shares within each slice; above {percent(1 - slices.target)}, the whole "
            "slice is bad."
        )
    return "\n".join([head, *rows]) + f"\n\n{note}"


def _spent(pair: Pair, period: Decimal) -> Decimal:
    """Return the share of the budget that is spent when the pair fires, to 0.01 %."""
    share = pair.burn_rate * parse_duration(pair.long) / period
    return share.quantize(Decimal("0.0001"))


def _about_or_never(seconds: Decimal | None) -> str:
    return "never" if seconds is None else about(seconds)


def _exhausted_meaning(subject: Subject) -> Iterator[str]:
    state = (
        "{service} has spent the error budget of {objective}: more than {budget} of {events} were "
        "bad over the last {window}."
    )
    yield _meaning(subject, state)
    yield (
        "This need not be an outage now. The alert ends when enough of the bad time is more than "
        f"{format_duration(subject.plan.service.window)} ago."
    )
    if subject.planned.policy_steps:
        yield "The budget policy:"
        yield _policy_table(subject.planned)


def _low_traffic_meaning(subject: Subject) -> Iterator[str]:
    condition = subject.planned.low_traffic
    assert condition is not None  # noqa: S101  (else there is no such alert)
    state = (
        f"Over {percent(condition.threshold)} of the {{events}} of {{service}} were bad for "
        f"{{objective}} in the last {condition.window}: at least {condition.events}, and "
        "fewer than the {least} that a burn-rate alert needs."
    )
    yield _meaning(subject, state)


def _policy_meaning(subject: Subject) -> Iterator[str]:
    state = "{service} has spent a share of the error budget of {objective} that requires action."
    yield _meaning(subject, state)
    yield "The budget policy; the label `step` of an alert names the row:"
    yield _policy_table(subject.planned)
    yield (
        "A later step inhibits those before it. A step ends when enough of the bad time has left "
        "the window."
    )


def _policy_table(planned: PlannedObjective) -> str:
    rows = (
        f"| {names.policy_step(step.spent)} | {plain(step.do)} |" for step in planned.policy_steps
    )
    return "\n".join(["| budget spent | action |", "|---|---|", *rows])


def _inconsistent_meaning(subject: Subject) -> Iterator[str]:
    state = (
        "The SLI of {objective} of {service} is inconsistent: bad exceeds total, or a ratio is "
        "outside 0 to 1."
    )
    yield _meaning(subject, state)
    yield (
        "A metric has changed its meaning, or only one of the two queries adds up two sources. The "
        "alert fires when the first query below keeps having a result; 1 % of error is tolerated."
    )


def _absent_meaning(subject: Subject) -> Iterator[str]:
    planned = subject.planned
    state = "For {absent}, Prometheus has had no data for {objective} of {service}."
    if planned.events.uncovered:
        state = state[:-1] + ", or not from all servers."
    yield _meaning(subject, state)
    yield (
        "Without traffic there is still data, so the measurement or the server is down. The alert "
        f"fires when this query has a result for {format_duration(planned.absent_seconds)}:"
    )
    yield promql(planned.events.missing)
    if planned.events.uncovered:
        yield "Or this one: some servers do not provide the signal, and are not counted."
        yield promql(planned.events.uncovered)


_MEANING = {
    "burn": _burn_meaning,
    "low_traffic": _low_traffic_meaning,
    "exhausted": _exhausted_meaning,
    "policy": _policy_meaning,
    "absent": _absent_meaning,
    "inconsistent": _inconsistent_meaning,
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
        yield "The bad share falls with each good request:"
        yield promql(subject.recorded(names.error_ratio(subject.planned.windows[-1])))
        return
    if alert.kind == "burn":
        yield (
            f"The bad share falls to {percent(subject.budget)}, the error budget. The alert ends "
            "with its short window."
        )
        yield promql(subject.recorded(names.error_ratio(shortest)))
        yield "Budget left, as a share:"
    elif alert.kind == "policy":
        yield "A step ends when less than its share is spent. Budget left, as a share:"
    else:
        yield "The alert ends when this is above 0:"
    yield promql(subject.recorded(names.BUDGET_REMAINING))


def _decision(owner: str) -> str:
    return (
        f"Notify {owner_text(owner)} and the users of this objective. They decide what waits until "
        "the budget is back."
    )


def _related(subject: Subject, alert: PlannedAlert, shared: SharedPages | None) -> str:
    plan, planned = subject.plan, subject.planned
    lines = [f"- [Dashboard of {plan.service.service}]({dashboard(plan)})"]
    others = (planned.burn,) if shared else planned.alerts
    lines += [f"- {page_link(each)}" for each in others if each != alert and each in planned.alerts]
    if alert.kind in ("burn", "low_traffic") and subject.causes:
        if shared:
            lines.append(f"- [{CAUSE_ALERTS}]({INDEX}#{anchor(CAUSE_ALERTS)})")
        else:
            lines += (
                f"- Possible cause: {page_link(cause.alert)} ({cause.cause.summary})"
                for cause in subject.causes
            )
    lines.append(f"- [All pages of {plan.service.service}]({INDEX})")
    return "\n".join(lines)
