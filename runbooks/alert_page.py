"""The page on an alert of an objective: what it means here, and how to find out why it fires."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from promql.expr import decimal_text
from runbooks.markdown import (
    INDEX,
    about,
    call_owner,
    dashboard,
    diagnosis,
    document,
    mitigation,
    page_link,
    percent,
    plain,
    promql,
    whom,
)
from runbooks.pages import IMPACT, causes, checks
from runbooks.questions import Subject
from slos import names
from slos.burn import Pair
from slos.durations import format_duration, parse_duration
from slos.explain import FAILURES
from slos.indicators import good_sentence
from slos.plan import PlannedAlert, PlannedObjective


def alert_page(subject: Subject, alert: PlannedAlert) -> str:
    """Write the page on an alert of an objective."""
    return document(
        [
            f"# {alert.name}",
            _summary(subject, alert),
            "## Meaning",
            *_MEANING[alert.kind](subject),
            "## Impact",
            _impact(subject, alert),
            *_what_to_do(subject, alert),
            "## Verify",
            *_verify(subject, alert),
            "## Escalate",
            _escalate(subject, alert),
            "## Related",
            _related(subject, alert),
        ]
    )


def _what_to_do(subject: Subject, alert: PlannedAlert) -> Iterator[str]:
    """Yield diagnosis and mitigation; at low traffic they are those of the burn-rate alert."""
    if alert.kind == "trickle":
        burn = page_link(subject.planned.burn)
        yield "## Diagnosis"
        trickle = subject.planned.trickle
        assert trickle is not None  # noqa: S101  (else there is no such alert)
        yield f"Take the steps of {burn}, with the range `[{trickle.window}]` instead of `[5m]`."
        yield "## Mitigation"
        yield f"As on {burn}."
        return
    steps = tuple(checks(subject.planned, alert))
    yield from diagnosis(steps, subject)
    yield from mitigation(causes(steps, alert), subject.mitigations)


def promise(planned: PlannedObjective, window: Decimal) -> str:
    """Say what an objective promises over a window (seconds)."""
    objective = planned.objective
    return (
        f"Over any {format_duration(window)}, {percent(objective.target)} of "
        f"{planned.indicator.events} shall be good; each is good if {good_sentence(objective)}."
        f"{_groups(planned)}"
    )


def _groups(planned: PlannedObjective) -> str:
    by = " and ".join(planned.objective.group_by)
    return f" That is promised for each {by} by itself; an alert's labels say which." if by else ""


# What the alert says, in one sentence.


_SUMMARY = {
    "burn": (
        "`{service}` spends the error budget of `{objective}` too fast: at this pace it will not "
        "last the {window}."
    ),
    "trickle": "Nearly nothing happens at `{service}`, and most of it is bad for `{objective}`.",
    "exhausted": (
        "`{service}` has broken its promise `{objective}`: more than {budget} of {events} were bad "
        "over the last {window}."
    ),
    "policy": (
        "`{service}` has spent a share of the error budget of `{objective}` for which its team has "
        "agreed on what to do."
    ),
    "absent": (
        "Nobody knows how `{service}` does on `{objective}`: for {absent} its signal has been "
        "missing, on all servers or on some."
    ),
    "impossible": (
        "What `{service}` counts for `{objective}` cannot be: a part is more than the whole, or a "
        "share is not within 0 and 1."
    ),
}


def _summary(subject: Subject, alert: PlannedAlert) -> str:
    service, planned = subject.plan.service, subject.planned
    return _SUMMARY[alert.kind].format(
        service=service.service,
        objective=planned.objective.name,
        window=format_duration(service.window),
        budget=percent(subject.budget),
        events=planned.indicator.events,
        absent=format_duration(planned.absent_seconds),
    )


# What lies behind it, in this objective's numbers.


def _budget(subject: Subject) -> str:
    return (
        f"The error budget is the other {percent(subject.budget)}. If all were bad, it would last "
        f"{about(subject.budget * subject.plan.service.window)}."
    )


def _burn_meaning(subject: Subject) -> Iterator[str]:
    planned, service = subject.planned, subject.plan.service
    yield f"{promise(planned, service.window)} {_budget(subject)}"
    yield (
        "The alert fires when the share of bad ones is above a threshold over a long window (it "
        "matters) and over a short one (it still goes on). Each pair of windows is an alert of "
        "its own under this name, told apart by its labels window and burn_rate:"
    )
    yield _pair_table(planned, service.window)
    if planned.min_bad_events:
        why = "spike" if planned.indicator.in_slices else "unlucky night request"
        yield (
            f"A pair stays quiet until at least {planned.min_bad_events} "
            f"{planned.indicator.events} were bad in its long window, so that one {why} wakes "
            "nobody."
        )
    if planned.failing_trickle in planned.alerts:
        page = page_link(planned.failing_trickle)
        yield f"Where so little happens that it never comes to that, there is {page}."
    if planned.objective.indicator == "ttft":
        yield (
            "Requests that died before their first token count as bad: a latency histogram never "
            "sees them."
        )


def _pair_table(planned: PlannedObjective, period: Decimal) -> str:
    head = (
        "| tier | windows | bad share above | burn rate | budget spent by then "
        "| all bad | half bad | a fifth bad |\n|---|---|---|---|---|---|---|---|"
    )
    rows = (
        f"| {pair.tier} | {pair.long} and {pair.short} | {percent(pair.threshold)} "
        f"| {decimal_text(pair.burn_rate)} | {percent(_spent(pair, period))} "
        f"| {' | '.join(_about_or_never(planned.seconds_to_fire(pair, s)) for s in FAILURES)} |"
        for pair in planned.alerting_pairs
    )
    note = "The last three columns: how long until it fires, from a clean slate."
    if slices := planned.objective.slices:
        note += (
            " They are about what happens in each slice, of which more than "
            f"{percent(1 - slices.target)} makes all of it bad."
        )
    return "\n".join([head, *rows]) + f"\n\n{note}"


def _spent(pair: Pair, period: Decimal) -> Decimal:
    """Return the share of the budget that is gone when the pair fires, to a hundredth percent."""
    share = pair.burn_rate * parse_duration(pair.long) / period
    return share.quantize(Decimal("0.0001"))


def _about_or_never(seconds: Decimal | None) -> str:
    return "never" if seconds is None else about(seconds)


def _exhausted_meaning(subject: Subject) -> Iterator[str]:
    window = subject.plan.service.window
    yield f"{promise(subject.planned, window)} {_budget(subject)}"
    yield (
        "It is spent. This is not necessarily an outage now: the alert stays until enough of the "
        f"bad time is more than {format_duration(window)} ago. It asks for a decision rather than "
        "for haste: until the budget is back, reliability comes before new features and rollouts."
    )
    if subject.planned.policy_steps:
        yield "What is agreed on as the budget goes:"
        yield _policy_table(subject.planned)


def _trickle_meaning(subject: Subject) -> Iterator[str]:
    planned, trickle = subject.planned, subject.planned.trickle
    assert trickle is not None  # noqa: S101  (else there is no such alert)
    yield f"{promise(planned, subject.plan.service.window)} {_budget(subject)}"
    yield (
        f"More than {percent(trickle.threshold)} of the {planned.indicator.events} in the last "
        f"{trickle.window} were bad, and that was at least {trickle.events} of them. The burn-rate "
        f"alerts say nothing below {planned.min_bad_events}: at a request an hour, or a day, a "
        "total outage would never be told. One failure alone does not fire it."
    )


def _policy_meaning(subject: Subject) -> Iterator[str]:
    yield f"{promise(subject.planned, subject.plan.service.window)} {_budget(subject)}"
    yield "Each step is an alert of its own under this name, told apart by its label step:"
    yield _policy_table(subject.planned)
    yield "A later step silences those before it. All end when enough of the bad time is long ago."


def _policy_table(planned: PlannedObjective) -> str:
    rows = (
        f"| {names.policy_step(step.spent)} | {plain(step.do)} |" for step in planned.policy_steps
    )
    return "\n".join(["| budget spent | what is agreed |", "|---|---|", *rows])


def _impossible_meaning(subject: Subject) -> Iterator[str]:
    yield promise(subject.planned, subject.plan.service.window)
    yield (
        "A metric has changed its meaning, or two sources are added up on one side only. The alert "
        "fires when the query of the first step below has had a result for a while; a hundredth is "
        "tolerated."
    )


def _absent_meaning(subject: Subject) -> Iterator[str]:
    planned = subject.planned
    yield promise(planned, subject.plan.service.window)
    yield (
        "The signal that this is counted from is not there. A service without traffic still has "
        "it, so this is about the measurement, or about a server that is gone. The alert fires "
        f"when this has had a result for {format_duration(planned.absent_seconds)}:"
    )
    yield promql(planned.events.missing)
    if planned.events.uncovered:
        yield (
            "or this: some servers report in a way that leaves them out, and the objective speaks "
            "for the others only."
        )
        yield promql(planned.events.uncovered)


_MEANING = {
    "burn": _burn_meaning,
    "trickle": _trickle_meaning,
    "exhausted": _exhausted_meaning,
    "policy": _policy_meaning,
    "absent": _absent_meaning,
    "impossible": _impossible_meaning,
}


def _impact(subject: Subject, alert: PlannedAlert) -> str:
    if alert.kind == "absent":
        return (
            "None, unless the server is gone as well, or a sidecar that is a proxy "
            "(`--tap proxy=…`): then clients are refused. An incident that starts now is not "
            "noticed."
        )
    if alert.kind == "impossible":
        return (
            "Nobody is hurt by it. But the budget on the dashboard means nothing until it is put "
            "right, and alerts may be late, or false."
        )
    impact = IMPACT[subject.planned.objective.indicator]
    return (
        f"This happened more often than promised. {impact}"
        if alert.kind in ("exhausted", "policy")
        else impact
    )


def _verify(subject: Subject, alert: PlannedAlert) -> Iterator[str]:
    shortest = subject.planned.windows[0]
    if alert.kind == "absent":
        yield "Events are counted again, or there is a 0 while nobody calls:"
        yield promql(subject.recorded(names.TOTAL))
        return
    if alert.kind == "impossible":
        yield "The numbers agree when the query of the first step has no result any more."
        return
    if alert.kind == "trickle":
        yield "The next requests are good: the share of bad ones falls as they come."
        yield promql(subject.recorded(names.error_ratio(subject.planned.windows[-1])))
        return
    if alert.kind == "burn":
        yield (
            f"The burn rate over {shortest} falls to 1 or less. The alert ends when the short "
            "window of its pair is below the threshold; the long window takes longer, so do not "
            "wait for it to judge a mitigation."
        )
        yield promql(subject.burn_rate(shortest))
        yield "What is left of the budget, as a share; below 0 the promise is broken:"
    elif alert.kind == "policy":
        yield "A step ends when less than its share is spent; this is what is left:"
    else:
        yield "The alert ends when this is above 0 again:"
    yield promql(subject.recorded(names.BUDGET_REMAINING))


def _escalate(subject: Subject, alert: PlannedAlert) -> str:
    owner = subject.plan.service.owns(subject.planned.objective)
    if alert.kind in ("exhausted", "policy"):
        return (
            f"Tell {whom(owner)} and those who rely on this promise. It is for them to decide "
            "what waits until the budget is back."
        )
    return call_owner(owner)


def _related(subject: Subject, alert: PlannedAlert) -> str:
    plan, planned = subject.plan, subject.planned
    same = [other for other in planned.alerts if other != alert]
    return "\n".join(
        [
            f"- [Dashboard of {plan.service.service}]({dashboard(plan)})",
            *(f"- {page_link(other)}" for other in same),
            *(
                f"- May be why: {page_link(cause.alert)} ({cause.cause.summary})"
                for cause in (subject.causes if alert.kind in ("burn", "trickle") else ())
            ),
            f"- [All pages of {plan.service.service}]({INDEX})",
        ]
    )
