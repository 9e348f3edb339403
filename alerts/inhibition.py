"""The Alertmanager rules that keep one incident from being told twice."""

from __future__ import annotations

from alerts.layout import document
from promql.expr import Matcher, one_of
from slos import names
from slos.burn import TierName
from slos.plan import Plan

_ABOUT = """Alertmanager inhibit_rules for the SLOs of {service}: add them to alertmanager.yml.
# Where clusters share an Alertmanager, add the label that tells them apart to each `equal`."""


def text(plan: Plan, *, source: str, version: str) -> str:
    """Return the fragment for a service: the page of an objective silences its tickets.

    One page does not silence another: the slower one would be sent when the faster has resolved,
    which is after the incident.  Alertmanager's grouping joins them, since all have one name.
    """
    page = _burn_alerts(plan, "page")
    tickets = (
        _burn_alerts(plan, "ticket"),
        (_named(names.EXHAUSTED),),
    )
    service = Matcher("service", "=", plan.service.service)
    rules = [
        {
            "source_matchers": [str(matcher) for matcher in (service, *page)],
            "target_matchers": [str(matcher) for matcher in (service, *ticket)],
            "equal": list(names.series_labels("", "")),
        }
        for ticket in tickets
    ]
    about = _ABOUT.format(service=plan.service.service)
    return document(about, {"inhibit_rules": rules}, source=source, version=version)


def _burn_alerts(plan: Plan, tier: TierName) -> tuple[Matcher, ...]:
    """Match by window, which is ours; the labels of a tier are the user's.

    A tier without a window matches nothing, as an empty regular expression wants the label gone.
    """
    windows = dict.fromkeys(
        pair.long for planned in plan.objectives for pair in planned.pairs if pair.tier == tier
    )
    return (_named(names.BURN), one_of("window", windows))


def _named(kind: str) -> Matcher:
    return Matcher("alertname", "=~", f".+{kind}")
