"""The Alertmanager rules that keep one incident from being told twice."""

from __future__ import annotations

from collections.abc import Iterator

from alerts.layout import document
from alerts.routing import matchers
from promql.expr import Matcher, one_of
from slos import names
from slos.burn import TierName
from slos.indicators import among
from slos.plan import Plan

Matchers = tuple[Matcher, ...]

_CAUSE = Matcher(names.CAUSE_LABEL, "!=", "")

_ABOUT = """Alertmanager inhibit_rules for the SLOs of {service}: add them to alertmanager.yml.
# Where clusters share an Alertmanager, add the label that tells them apart to each `equal`."""


def text(plan: Plan, *, source: str, version: str) -> str:
    """Return the fragment for a service: what is told already silences what follows from it.

    The page of an objective silences its tickets, any of its burn alerts the one on a trickle, a
    step of the budget policy those before it, and a page of any objective what only explains it.
    One page does not silence another: the slower one would be sent when the faster has resolved,
    which is after the incident.  Alertmanager's grouping joins them, since all have one name.
    """
    service = Matcher("service", "=", plan.service.service)
    groups = (label for planned in plan.objectives for label in planned.objective.group_by)
    objective = (*names.series_labels("", ""), *dict.fromkeys(groups))
    rules = [
        {
            "source_matchers": [str(matcher) for matcher in (service, *source)],
            "target_matchers": [str(matcher) for matcher in (service, *target)],
            "equal": list(equal),
        }
        for source, target, equal in (
            *((source, target, objective) for source, target in _of_objectives(plan)),
            *((page, (_CAUSE,), ("service",)) for page in _pages(plan)),
        )
    ]
    about = _ABOUT.format(service=plan.service.service)
    return document(about, {"inhibit_rules": rules}, source=source, version=version)


def _of_objectives(plan: Plan) -> Iterator[tuple[Matchers, Matchers]]:
    """Yield what silences what of the same objective."""
    page, ticket = _burn_alerts(plan, "page"), _burn_alerts(plan, "ticket")
    yield page, ticket
    yield page, (_named(names.EXHAUSTED, names.POLICY, names.TRICKLE),)
    yield ticket, (_named(names.TRICKLE),)
    steps = [names.policy_step(step.spent) for step in plan.service.policy]
    for before, step in enumerate(steps):
        if before:
            yield _step(step), _step(*steps[:before])
    if plan.service.policy and plan.service.policy[-1].spent >= 1:
        yield _step(steps[-1]), (_named(names.EXHAUSTED),)


def _pages(plan: Plan) -> Iterator[Matchers]:
    """Yield what matches every alert that pages."""
    yield _burn_alerts(plan, "page")
    absent: dict[Matchers, list[str]] = {}
    for planned in plan.objectives:
        if planned.absent in planned.alerts and planned.absent_tier == "page":
            # What is missing in part has the same name, and opens a ticket.
            page, ticket = planned.alerting.page.labels, planned.alerting.ticket.labels
            telling = {name: text for name, text in page.items() if ticket.get(name) != text}
            absent.setdefault(matchers(telling), []).append(planned.absent.name)
    yield from ((among("alertname", names_), *telling) for telling, names_ in absent.items())


def _step(*steps: str) -> Matchers:
    return (_named(names.POLICY), one_of(names.STEP_LABEL, steps))


def _burn_alerts(plan: Plan, tier: TierName) -> Matchers:
    """Match by window, which is ours; the labels of a tier are the user's.

    A tier without a window matches nothing, as an empty regular expression wants the label gone.
    """
    windows = dict.fromkeys(
        pair.long for planned in plan.objectives for pair in planned.pairs if pair.tier == tier
    )
    return (_named(names.BURN), one_of("window", windows))


def _named(*kinds: str) -> Matcher:
    ends = kinds[0] if len(kinds) == 1 else f"({'|'.join(kinds)})"
    return Matcher("alertname", "=~", f".+{ends}")
