"""Generate inhibition rules for Alertmanager."""

from __future__ import annotations

from collections.abc import Iterator

from promql.expr import Matcher, one_of
from slos import names
from slos.generated_yaml import document
from slos.model import TierName
from slos.plan import Plan

Matchers = tuple[Matcher, ...]

_ABOUT = """Alertmanager inhibit_rules for the SLOs of {service}: add them to alertmanager.yml.
# Where clusters share an Alertmanager, add the label that distinguishes them to each `equal`."""


def text(plan: Plan, *, source: str, version: str) -> str:
    """Return the fragment for a service.

    The page of an objective inhibits its tickets, any of its burn alerts the one on errors at low
    traffic, and a step of the budget policy those before it.  One page does not inhibit another:
    the slower one would be sent when the faster has resolved, which is after the incident.
    Alertmanager's grouping joins them, since all have one name.  Causes are never inhibited.
    """
    service = Matcher("service", "=", plan.service.service)
    groups = (label for planned in plan.objectives for label in planned.objective.group_by)
    objective = (*names.series_labels("", ""), *dict.fromkeys(groups))
    rules = [
        {
            "source_matchers": [str(matcher) for matcher in (service, *source)],
            "target_matchers": [str(matcher) for matcher in (service, *target)],
            "equal": list(objective),
        }
        for source, target in _of_objectives(plan)
    ]
    about = _ABOUT.format(service=plan.service.service)
    return document(about, {"inhibit_rules": rules}, source=source, version=version)


def _of_objectives(plan: Plan) -> Iterator[tuple[Matchers, Matchers]]:
    """Yield source and target matchers of alerts of one objective."""
    page, ticket = _burn_alerts(plan, "page"), _burn_alerts(plan, "ticket")
    yield page, ticket
    yield page, (_named(names.EXHAUSTED, names.POLICY, names.LOW_TRAFFIC),)
    yield ticket, (_named(names.LOW_TRAFFIC),)
    steps = [names.policy_step(step.spent) for step in plan.service.policy]
    for before, step in enumerate(steps):
        if before:
            yield _step(step), _step(*steps[:before])
    if plan.service.policy and plan.service.policy[-1].spent >= 1:
        yield _step(steps[-1]), (_named(names.EXHAUSTED),)


def _step(*steps: str) -> Matchers:
    return (_named(names.POLICY), one_of(names.STEP_LABEL, steps))


def _burn_alerts(plan: Plan, tier: TierName) -> Matchers:
    """Match burn-rate alerts by window: the labels of a tier are configurable.

    A tier without a window matches nothing, as an empty regular expression matches a missing label.
    """
    windows = dict.fromkeys(
        pair.long for planned in plan.objectives for pair in planned.pairs if pair.tier == tier
    )
    return (_named(names.BURN), one_of("window", windows))


def _named(*kinds: str) -> Matcher:
    ends = kinds[0] if len(kinds) == 1 else f"({'|'.join(kinds)})"
    return Matcher("alertname", "=~", f".+{ends}")
