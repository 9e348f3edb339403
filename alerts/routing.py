"""Generate Alertmanager routes for pages and tickets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from promql.expr import Matcher, equal
from slos import names
from slos.causes import cause_labels
from slos.generated_yaml import document
from slos.indicators import among
from slos.model import Alerting
from slos.plan import Plan, PlannedObjective
from slos.quotas import QUOTA_LABEL
from slos.signals import TENANT

_ABOUT = """Alertmanager routes for the SLOs of {service}: add them to route.routes in
# alertmanager.yml, and define the receivers {receivers}."""

_TIERS: Mapping[str, Mapping[str, str]] = {
    "page": {"group_wait": "10s", "repeat_interval": "4h"},
    "ticket": {"group_wait": "5m", "repeat_interval": "1d"},
}


def matchers(labels: Mapping[str, str]) -> tuple[Matcher, ...]:
    """Match alerts with these labels, except labels with templates."""
    return equal({name: text for name, text in labels.items() if "{{" not in text})


def text(plan: Plan, *, source: str, version: str) -> str:
    """Return the fragment for a service: a receiver for each tier, one message per objective.

    A page waits only for the few seconds in which all of its alerts arrive.  Causes go to the
    receiver of tickets, except those that page.
    """
    service = plan.service.service
    receivers = {tier: f"{service}-{tier}" for tier in _TIERS}
    top = {
        "receiver": receivers["page"],
        "matchers": [str(Matcher("service", "=", service)), str(Matcher("slo", "!=", ""))],
        "group_by": list(names.series_labels("", "")),
        "routes": [
            {
                "receiver": receivers[tier],
                "matchers": [str(matcher) for matcher in (*of, *labels)],
                **_TIERS[tier],
            }
            for of, alerting in _by_labels(plan)
            for tier in _TIERS
            if (labels := matchers(getattr(alerting, tier).labels))
        ],
    }
    servers = cause_labels(plan.service.selector)
    causes = {
        "receiver": receivers["ticket"],
        "matchers": [str(Matcher(names.CAUSE_LABEL, "!=", "")), *map(str, equal(servers))],
        "group_by": [names.CAUSE_LABEL, *servers],
        **_TIERS["ticket"],
        **_urgent(plan, receivers["page"]),
    }
    about = _ABOUT.format(service=service, receivers=" and ".join(receivers.values()))
    quotas = {
        "receiver": receivers["ticket"],
        "matchers": [str(Matcher("service", "=", service)), str(Matcher(QUOTA_LABEL, "!=", ""))],
        "group_by": ["service", TENANT],
        **_TIERS["ticket"],
    }
    wanted = ((top, True), (causes, plan.causes), (quotas, plan.service.quotas))
    routes = [route for route, needed in wanted if needed]
    return document(about, {"routes": routes}, source=source, version=version)


def _urgent(plan: Plan, receiver: str) -> dict[str, object]:
    """Return the route of causes that page, if there are any."""
    labels = matchers(plan.service.alerting.page.labels)
    if not labels or not any(planned.tier == "page" for planned in plan.causes):
        return {}
    page = {"receiver": receiver, "matchers": [*map(str, labels)], **_TIERS["page"]}
    return {"routes": [page]}


def _by_labels(plan: Plan) -> Iterator[tuple[tuple[Matcher, ...], Alerting]]:
    """Yield matchers and alerting of objectives with labels of their own, then of all others."""
    usual = plan.service.alerting
    special: dict[object, list[PlannedObjective]] = {}
    for planned in plan.objectives:
        if _labels(planned.alerting) != _labels(usual):
            special.setdefault(_labels(planned.alerting), []).append(planned)
    for alike in special.values():
        slos = [planned.objective.name for planned in alike]
        yield (among("slo", slos),), alike[0].alerting
    yield (), usual


def _labels(alerting: Alerting) -> tuple[frozenset[tuple[str, str]], ...]:
    return tuple(frozenset(getattr(alerting, tier).labels.items()) for tier in _TIERS)
