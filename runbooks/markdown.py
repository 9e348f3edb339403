"""Runbook pages as Markdown: one per alert, and an index per service."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_HALF_UP, Decimal

from promql.expr import Expr, decimal_text, pretty
from runbooks.causes import CAUSES, Action, Cause
from runbooks.checks import CHECKS, Check, Subject
from runbooks.pages import CAUSE_CHECKS, IMPACT, causes, checks, with_what_is_behind
from slos import names
from slos.burn import Pair
from slos.causes import conditions
from slos.durations import format_duration, parse_duration
from slos.indicators import good_sentence
from slos.plan import Plan, PlannedAlert, PlannedCause, PlannedObjective
from slos.queries import burn_rate

HEADER = "<!-- Made by tokenslo "
"""How every generated page begins; one that begins otherwise was written by somebody."""

INDEX = "README.md"


def folder(service: str) -> str:
    """Return where a service's pages are below the output folder."""
    return f"runbooks/{service}"


def files(plan: Plan, *, source: str, version: str) -> dict[str, str]:
    """Return every page of a service under its path below the output folder."""
    header = f"{HEADER}{version} from {source}. Do not edit. -->"
    pages = {INDEX: _index(plan)} | {
        names.runbook_file(alert.name): _page(Subject(plan, planned), alert)
        for planned, alert in plan.alerts()
    }
    pages |= {
        names.runbook_file(planned.alert.name): _cause_page(plan, planned)
        for planned in plan.causes
    }
    home = folder(plan.service.service)
    return {f"{home}/{name}": f"{header}\n\n{text}" for name, text in pages.items()}


def _document(blocks: Iterable[str]) -> str:
    return "\n\n".join(block for block in blocks if block) + "\n"


_HOW = (
    "The steps go from what is checked fastest to what takes thought. Stop at the first one that "
    "answers otherwise than expected, mitigate, and come back if it did not help."
)


def _page(subject: Subject, alert: PlannedAlert) -> str:
    steps = tuple(checks(subject.planned, alert))
    return _document(
        [
            f"# {alert.name}",
            _SUMMARY[alert.kind](subject),
            "## Meaning",
            *_MEANING[alert.kind](subject),
            "## Impact",
            _impact(subject, alert),
            "## Diagnosis",
            _HOW,
            *(block for i, step in enumerate(steps, 1) for block in _step(i, step, subject)),
            "## Mitigation",
            *(block for cause in causes(steps, alert) for block in _cause(cause)),
            "## Verify",
            *_verify(subject, alert),
            "## Escalate",
            _escalate(subject, alert),
            "## Related",
            _related(subject, alert),
        ]
    )


def _promise(planned: PlannedObjective, window: Decimal) -> str:
    objective = planned.objective
    return (
        f"Over any {format_duration(window)}, {_percent(objective.target)} of "
        f"{planned.indicator.events} shall be good; each is good if {good_sentence(objective)}."
        f"{_groups(planned)}"
    )


def _groups(planned: PlannedObjective) -> str:
    by = " and ".join(planned.objective.group_by)
    return f" That is promised for each {by} by itself; an alert's labels say which." if by else ""


# What the alert says, in one sentence.


def _burn_summary(subject: Subject) -> str:
    objective, service = subject.planned.objective, subject.plan.service
    return (
        f"`{service.service}` spends the error budget of `{objective.name}` too fast: at this pace "
        f"it will not last the {format_duration(service.window)}."
    )


def _exhausted_summary(subject: Subject) -> str:
    objective, service = subject.planned.objective, subject.plan.service
    return (
        f"`{service.service}` has broken its promise `{objective.name}`: more than "
        f"{_percent(subject.budget)} of {subject.planned.indicator.events} were bad over the last "
        f"{format_duration(service.window)}."
    )


def _absent_summary(subject: Subject) -> str:
    objective, service = subject.planned.objective, subject.plan.service
    return (
        f"Nobody knows how `{service.service}` does on `{objective.name}`: for "
        f"{format_duration(subject.planned.absent_seconds)} its signal has been missing, on all "
        "servers or on some."
    )


def _impossible_summary(subject: Subject) -> str:
    objective, service = subject.planned.objective, subject.plan.service
    return (
        f"What `{service.service}` counts for `{objective.name}` cannot be: a part is more than "
        "the whole, or a share is not within 0 and 1."
    )


def _trickle_summary(subject: Subject) -> str:
    objective, service = subject.planned.objective, subject.plan.service
    return (
        f"Nearly nothing happens at `{service.service}`, and most of it is bad for "
        f"`{objective.name}`."
    )


def _policy_summary(subject: Subject) -> str:
    objective, service = subject.planned.objective, subject.plan.service
    return (
        f"`{service.service}` has spent a share of the error budget of `{objective.name}` for "
        "which its team has agreed on what to do."
    )


_SHARES = (Decimal(1), Decimal("0.5"), Decimal("0.2"))
"""The shares of bad events in the last columns of the table of pairs."""

_SUMMARY = {
    "burn": _burn_summary,
    "trickle": _trickle_summary,
    "exhausted": _exhausted_summary,
    "policy": _policy_summary,
    "absent": _absent_summary,
    "impossible": _impossible_summary,
}


# What lies behind it, in this objective's numbers.


def _budget(subject: Subject) -> str:
    return (
        f"The error budget is the other {_percent(subject.budget)}. If all were bad, it would last "
        f"{_about(subject.budget * subject.plan.service.window)}."
    )


def _burn_meaning(subject: Subject) -> Iterator[str]:
    planned, service = subject.planned, subject.plan.service
    yield f"{_promise(planned, service.window)} {_budget(subject)}"
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
        page = _page_link(planned.failing_trickle)
        yield f"Where so little happens that it never comes to that, there is {page}."
    if "requests_without_first_token" in planned.indicator.signals:
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
        f"| {pair.tier} | {pair.long} and {pair.short} | {_percent(pair.threshold)} "
        f"| {decimal_text(pair.burn_rate)} | {_percent(_spent(pair, period))} "
        f"| {' | '.join(_about_or_never(planned.seconds_to_fire(pair, s)) for s in _SHARES)} |"
        for pair in planned.alerting_pairs
    )
    note = "The last three columns: how long until it fires, from a clean slate."
    return "\n".join([head, *rows]) + f"\n\n{note}"


def _spent(pair: Pair, period: Decimal) -> Decimal:
    """Return the share of the budget that is gone when the pair fires, to a hundredth percent."""
    share = pair.burn_rate * parse_duration(pair.long) / period
    return share.quantize(Decimal("0.0001"))


def _about_or_never(seconds: Decimal | None) -> str:
    return "never" if seconds is None else _about(seconds)


def _exhausted_meaning(subject: Subject) -> Iterator[str]:
    window = subject.plan.service.window
    yield f"{_promise(subject.planned, window)} {_budget(subject)}"
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
    yield f"{_promise(planned, subject.plan.service.window)} {_budget(subject)}"
    yield (
        f"More than {_percent(trickle.threshold)} of the {planned.indicator.events} in the last "
        f"{trickle.window} were bad, and that was at least {trickle.events} of them. The burn-rate "
        f"alerts say nothing below {planned.min_bad_events}: at a request an hour, or a day, a "
        "total outage would never be told. One failure alone does not fire it."
    )


def _steps(subject: Subject) -> Iterator[str]:
    """Show what is agreed for when the budget goes, if anything is."""
    rows = [
        f"| {names.policy_step(step.spent)} | {_cell(step.do)} |"
        for step in subject.planned.policy_steps
    ]
    if rows:
        yield "\n".join(["| budget spent | what is agreed |", "|---|---|", *rows])


def _policy_meaning(subject: Subject) -> Iterator[str]:
    yield f"{_promise(subject.planned, subject.plan.service.window)} {_budget(subject)}"
    yield "Each step is an alert of its own under this name, told apart by its label step:"
    yield from _steps(subject)
    yield "A later step silences those before it. All end when enough of the bad time is long ago."


def _policy_table(planned: PlannedObjective) -> str:
    rows = (
        f"| {names.policy_step(step.spent)} | {_cell(step.do)} |" for step in planned.policy_steps
    )
    return "\n".join(["| budget spent | what is agreed |", "|---|---|", *rows])


def _impossible_meaning(subject: Subject) -> Iterator[str]:
    yield _promise(subject.planned, subject.plan.service.window)
    yield (
        "A metric has changed its meaning, or two sources are added up on one side only. The alert "
        "fires when the query of the first step below has had a result for a while; a hundredth is "
        "tolerated."
    )


def _absent_meaning(subject: Subject) -> Iterator[str]:
    planned = subject.planned
    yield _promise(planned, subject.plan.service.window)
    yield (
        "The signal that this is counted from is not there. A service without traffic still has "
        "it, so this is about the measurement, or about a server that is gone. The alert fires "
        f"when this has had a result for {format_duration(planned.absent_seconds)}:"
    )
    yield _promql(planned.events.missing)
    if planned.events.uncovered:
        yield (
            "or this: some servers report in a way that leaves them out, and the objective speaks "
            "for the others only."
        )
        yield _promql(planned.events.uncovered)


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
            "Nobody is hurt by it, unless the server is gone as well. But an incident that starts "
            "now would not be noticed."
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


def _step(number: int, check: Check, subject: Subject) -> Iterator[str]:
    yield f"### {number}. {check.question}"
    yield _promql(check.query(subject))
    cause = _link(CAUSES[check.points_to])
    yield (f"Expect {check.healthy(subject)}. If so, {check.rules_out}; if not, see {cause}.")
    yield check.note


def _cause(cause: Cause) -> Iterator[str]:
    yield f"### {cause.title}"
    yield cause.signs
    yield "\n".join(f"- {action.do}\n  *{_cost(action)}*" for action in cause.actions)


def _cost(action: Action) -> str:
    risk = f"Risk: {action.risk}." if action.risk else "No risk."
    return f"{action.effort}. {risk}"


def _verify(subject: Subject, alert: PlannedAlert) -> Iterator[str]:
    shortest = subject.planned.windows[0]
    if alert.kind == "absent":
        yield "Events are counted again, or there is a 0 while nobody calls:"
        yield _promql(subject.recorded(names.TOTAL_RATE))
        return
    if alert.kind == "impossible":
        yield "The numbers agree when the query of the first step has no result any more."
        return
    if alert.kind == "trickle":
        yield "The next requests are good: the share of bad ones falls as they come."
        yield _promql(subject.recorded(names.error_ratio(subject.planned.windows[-1])))
        return
    if alert.kind == "burn":
        yield (
            f"The burn rate over {shortest} falls to 1 or less. The alert ends when the short "
            "window of its pair is below the threshold; the long window takes longer, so do not "
            "wait for it to judge a mitigation."
        )
        yield _promql(subject.burn_rate(shortest))
        yield "What is left of the budget, as a share; below 0 the promise is broken:"
    elif alert.kind == "policy":
        yield "A step ends when less than its share is spent; this is what is left:"
    else:
        yield "The alert ends when this is above 0 again:"
    yield _promql(subject.recorded(names.BUDGET_REMAINING))


def _escalate(subject: Subject, alert: PlannedAlert) -> str:
    owner = subject.plan.service.owns(subject.planned.objective)
    if alert.kind in ("exhausted", "policy"):
        return (
            f"Tell {_whom(owner)} and those who rely on this promise. It is for them to decide "
            "what waits until the budget is back."
        )
    return _call(owner)


def _whom(owner: str) -> str:
    return f"**{owner}**" if owner else "the service's owner (the SLO file names none)"


def _call(owner: str) -> str:
    return (
        f"Call {_whom(owner)} when two mitigations have not helped, when the cause is none of the "
        "above, or before anything that restarts all instances. Say which steps were taken and "
        "what they showed; of a stuck or dead engine keep the stacks and logs."
    )


def _related(subject: Subject, alert: PlannedAlert) -> str:
    plan, planned = subject.plan, subject.planned
    same = [other for other in planned.alerts if other != alert]
    others = (other for other in plan.objectives if other is not planned)
    elsewhere = [other.burn for other in others if other.burn in other.alerts]
    return "\n".join(
        [
            f"- [Dashboard of {plan.service.service}]({_dashboard(plan)})",
            *(f"- {_page_link(other)}" for other in (*same, *elsewhere)),
            *(
                f"- May be why: {_page_link(cause.alert)} ({cause.cause.summary})"
                for cause in plan.causes
                if planned in cause.explains and alert.kind in ("burn", "trickle")
            ),
            f"- [All pages of {plan.service.service}]({INDEX})",
        ]
    )


def _dashboard(plan: Plan) -> str:
    return plan.dashboard_url or f"../../dashboards/{plan.service.service}.json"


def _index(plan: Plan) -> str:
    service = plan.service
    rows = (
        f"| {planned.objective.name} | {_promise(planned, service.window)} "
        f"| {'<br>'.join(_page_link(alert) for alert in planned.alerts)} |"
        for planned in plan.objectives
    )
    return _document(
        [
            f"# Runbooks of {service.service}",
            service.description,
            f"Owner: {service.owner}." if service.owner else "",
            f"[Dashboard]({_dashboard(plan)})",
            "\n".join(["| objective | promise | pages |", "|---|---|---|", *rows]),
            *_causes_table(plan),
        ]
    )


def _causes_table(plan: Plan) -> Iterator[str]:
    if not plan.causes:
        return
    yield "Alerts that say why; they are silent while a page of this service fires:"
    rows = (
        f"| {_page_link(planned.alert)} | {planned.cause.summary} | {_explained(planned)} |"
        for planned in plan.causes
    )
    yield "\n".join(["| alert | cause | explains |", "|---|---|---|", *rows])


def _explained(planned: PlannedCause) -> str:
    return ", ".join(each.objective.name for each in planned.explains)


# A page about a cause.


def _cause_page(plan: Plan, planned: PlannedCause) -> str:
    subject = Subject(plan, planned.explains[0])
    service, cause = plan.service, planned.cause
    steps = tuple(CHECKS[key] for key in CAUSE_CHECKS[cause.name])
    remedies = with_what_is_behind((cause.runbook, *(step.points_to for step in steps)))
    return _document(
        [
            f"# {planned.alert.name}",
            f"At `{service.service}`, {cause.summary}.",
            "## Meaning",
            cause.why,
            f"The alert fires when this has had a result for {cause.lasting}:",
            *_conditions(planned, service.selector),
            "## Impact",
            "This alert says why something may hurt, not that it does; it is not sent while a page "
            f"of this service fires. It explains {_explained(planned)}. What their budgets lose to "
            "it now, as burn rates (1 is what is allowed):",
            _promql(burn_rate(names.BASE_WINDOW, service.service)),
            "## Diagnosis",
            _HOW,
            *(block for i, step in enumerate(steps, 1) for block in _step(i, step, subject)),
            "## Mitigation",
            *(block for remedy in remedies for block in _cause(remedy)),
            "## Verify",
            "The alert ends when its condition does; the burn rates above fall to 1 or less.",
            "## Escalate",
            _call(service.owner),
            "## Related",
            _cause_related(plan, planned),
        ]
    )


def _conditions(planned: PlannedCause, selector: Mapping[str, str]) -> Iterator[str]:
    """Show the first condition; others have the same form, and differ in what their labels say."""
    first, *others = conditions(planned.cause, selector)
    yield _promql(first.expr)
    if others:
        told = (value for other in others for value in other.labels.values())
        yield (
            f"That is for {', '.join(first.labels.values())}; there is one of the same form for "
            f"{', '.join(told)}."
        )


def _cause_related(plan: Plan, planned: PlannedCause) -> str:
    burns = [each.burn for each in planned.explains if each.burn in each.alerts]
    return "\n".join(
        [
            f"- [Dashboard of {plan.service.service}]({_dashboard(plan)})",
            *(f"- {_page_link(alert)}" for alert in burns),
            f"- [All pages of {plan.service.service}]({INDEX})",
        ]
    )


def _page_link(alert: PlannedAlert) -> str:
    return f"[{alert.name}]({names.runbook_file(alert.name)})"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _link(cause: Cause) -> str:
    """Link to a cause's heading as Markdown renderers name it."""
    anchor = re.sub(r"[^\w\- ]", "", cause.title.lower()).replace(" ", "-")
    return f"[{cause.title}](#{anchor})"


def _promql(expr: Expr) -> str:
    return f"```promql\n{pretty(expr)}\n```"


def _percent(share: Decimal) -> str:
    return f"{decimal_text(share * 100)}%"


def _about(seconds: Decimal) -> str:
    """Write a duration as people need it: to the second below 10 minutes, else to the minute."""
    unit = 1 if seconds < 600 else 60
    rounded = (seconds / unit).quantize(Decimal(1), ROUND_HALF_UP) * unit
    return format_duration(rounded)
