"""Choose the service of a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence

from diagnosis.check_results import Query
from diagnosis.diagnosis import alert_names
from promql.expr import Matcher, equal, vector
from slos.plan import Plan


class ServiceChoiceError(ValueError):
    """No service or several match; the text lists the known ones."""


def choose_plan(plans: Sequence[Plan], service: str, alert: str, query: Query) -> Plan:
    """Return the plan of a service; else that with the alert, else the only one that fires.

    Raises ServiceChoiceError, and PrometheusError if firing alerts cannot be queried.
    """
    if service:
        found = [plan for plan in plans if plan.service.service == service]
        if not found:
            raise ServiceChoiceError(f"there is no service {service}; known are {_names(plans)}")
        return found[0]
    if len(plans) == 1:
        return plans[0]
    able = [plan for plan in plans if alert in alert_names(plan)] if alert else [*plans]
    if not able:
        known = ", ".join(dict.fromkeys(name for plan in plans for name in alert_names(plan)))
        raise ServiceChoiceError(f"there is no alert {alert}; known are {known}")
    if len(able) == 1:
        return able[0]
    fires = {sample.labels.get("service", "") for sample in query(_FIRING)}
    firing = [plan for plan in able if plan.service.service in fires]
    if len(firing) == 1:
        return firing[0]
    why = "several services fire" if firing else "no service fires"
    raise ServiceChoiceError(f"{why}: give --service, one of {_names(firing or able)}")


_FIRING = str(vector("ALERTS", (*equal({"alertstate": "firing"}), Matcher("slo", "!=", ""))))


def _names(plans: Sequence[Plan]) -> str:
    return ", ".join(plan.service.service for plan in plans)
