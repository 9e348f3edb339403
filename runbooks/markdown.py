"""Runbook pages as Markdown: one per alert, and an index per service."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import ROUND_HALF_UP, Decimal

from promql.expr import Expr, decimal_text, pretty
from runbooks.causes import CAUSES, Action, Cause
from runbooks.checks import Check, Subject
from runbooks.pages import IMPACT, causes, checks
from slos import names
from slos.burn import Pair
from slos.durations import format_duration, parse_duration
from slos.indicators import good_sentence
from slos.plan import Plan, PlannedAlert, PlannedObjective

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
    home = folder(plan.service.service)
    return {f"{home}/{name}": f"{header}\n\n{text}" for name, text in pages.items()}


def _document(blocks: Iterable[str]) -> str:
    return "\n\n".join(block for block in blocks if block) + "\n"


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
            "The steps go from what is checked fastest to what takes thought. Stop at the first "
            "one that answers otherwise than expected, mitigate, and come back if it did not help.",
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
    )


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


_SHARES = (Decimal(1), Decimal("0.5"), Decimal("0.2"))
"""The shares of bad events in the last columns of the table of pairs."""

_SUMMARY = {
    "burn": _burn_summary,
    "exhausted": _exhausted_summary,
    "absent": _absent_summary,
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
        for pair in planned.pairs
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
    "exhausted": _exhausted_meaning,
    "absent": _absent_meaning,
}


def _impact(subject: Subject, alert: PlannedAlert) -> str:
    if alert.kind == "absent":
        return (
            "Nobody is hurt by it, unless the server is gone as well. But an incident that starts "
            "now would not be noticed."
        )
    impact = IMPACT[subject.planned.objective.indicator]
    return (
        f"This happened more often than promised. {impact}" if alert.kind == "exhausted" else impact
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
    if alert.kind == "burn":
        yield (
            f"The burn rate over {shortest} falls to 1 or less. The alert ends when the short "
            "window of its pair is below the threshold; the long window takes longer, so do not "
            "wait for it to judge a mitigation."
        )
        yield _promql(subject.burn_rate(shortest))
        yield "What is left of the budget, as a share; below 0 the promise is broken:"
    else:
        yield "The alert ends when this is above 0 again:"
    yield _promql(subject.recorded(names.BUDGET_REMAINING))


def _escalate(subject: Subject, alert: PlannedAlert) -> str:
    owner = subject.plan.service.owner
    whom = f"**{owner}**" if owner else "the service's owner (the SLO file names none)"
    if alert.kind == "exhausted":
        return (
            f"Tell {whom} and those who rely on this promise. It is for them to decide what waits "
            "until the budget is back."
        )
    return (
        f"Call {whom} when two mitigations have not helped, when the cause is none of the above, "
        "or before anything that restarts all instances. Say which steps were taken and what they "
        "showed; of a stuck or dead engine keep the stacks and logs."
    )


def _related(subject: Subject, alert: PlannedAlert) -> str:
    plan, planned = subject.plan, subject.planned
    service = plan.service.service
    dashboard = plan.dashboard_url or f"../../dashboards/{service}.json"
    same = [other for other in planned.alerts if other != alert]
    elsewhere = [other.burn for other in plan.objectives if other is not planned]
    return "\n".join(
        [
            f"- [Dashboard of {service}]({dashboard})",
            *(f"- [{a.name}]({names.runbook_file(a.name)})" for a in (*same, *elsewhere)),
            f"- [All pages of {service}]({INDEX})",
        ]
    )


def _index(plan: Plan) -> str:
    service = plan.service
    rows = (
        f"| {planned.objective.name} | {_promise(planned, service.window)} "
        f"| {'<br>'.join(_page_link(alert) for alert in planned.alerts)} |"
        for planned in plan.objectives
    )
    dashboard = plan.dashboard_url or f"../../dashboards/{service.service}.json"
    return _document(
        [
            f"# Runbooks of {service.service}",
            service.description,
            f"Owner: {service.owner}." if service.owner else "",
            f"[Dashboard]({dashboard})",
            "\n".join(["| objective | promise | pages |", "|---|---|---|", *rows]),
        ]
    )


def _page_link(alert: PlannedAlert) -> str:
    return f"[{alert.name}]({names.runbook_file(alert.name)})"


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
