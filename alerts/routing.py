"""The Alertmanager routes that bring pages and tickets to different people."""

from __future__ import annotations

from alerts.layout import document
from promql.expr import Matcher, equal
from slos import names
from slos.plan import Plan

_ABOUT = """Alertmanager routes for the SLOs of {service}: add them to route.routes in
# alertmanager.yml, and define the receivers {receivers}."""


def text(plan: Plan, *, source: str, version: str) -> str:
    """Return the fragment for a service: a receiver for each tier, one message per objective.

    A page waits for nothing but the few seconds in which all of its alerts arrive.  What only names
    a cause goes where tickets go, once a day for all causes: left to the routes that are there, it
    might wake somebody.
    """
    service = plan.service.service
    tiers = {"page": plan.service.alerting.page, "ticket": plan.service.alerting.ticket}
    receivers = [f"{service}-{tier}" for tier in tiers]
    tiers_apart = [
        {
            "receiver": receiver,
            "matchers": [str(matcher) for matcher in equal(tier.labels)],
            "group_wait": "10s" if name == "page" else "5m",
            "repeat_interval": "4h" if name == "page" else "1d",
        }
        for receiver, (name, tier) in zip(receivers, tiers.items(), strict=True)
        if tier.labels
    ]
    top = {
        "receiver": receivers[0],
        "matchers": [str(Matcher("service", "=", service)), str(Matcher("slo", "!=", ""))],
        "group_by": list(names.series_labels("", "")),
        "routes": tiers_apart,
    }
    causes = {
        "receiver": receivers[-1],
        "matchers": [
            str(Matcher("service", "=", service)),
            str(Matcher(names.CAUSE_LABEL, "!=", "")),
        ],
        "group_by": ["service"],
        "group_wait": "5m",
        "repeat_interval": "1d",
    }
    about = _ABOUT.format(service=service, receivers=" and ".join(receivers))
    routes = [top, causes] if plan.causes else [top]
    return document(about, {"routes": routes}, source=source, version=version)
