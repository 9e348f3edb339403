"""The runbook page of an alert on token quotas."""

from __future__ import annotations

from runbooks.markdown import (
    INDEX,
    TRIAGE,
    bullets,
    dashboard,
    document,
    owner_text,
    page_link,
    promql,
)
from slos import quotas
from slos.plan import Plan, PlannedAlert
from slos.quotas import QuotaAlert


def quota_page(plan: Plan, alert: QuotaAlert, planned: PlannedAlert) -> str:
    """Write the page of an alert on quotas."""
    service = plan.service
    others = [each for _, each in quotas.planned_alerts(service) if each != planned]
    return document(
        [
            f"# {planned.name}",
            "## Meaning",
            f"{alert.meaning} The labels `tenant` and `quota` name the tenant and the period: the "
            "last 24 hours (`day`) or the last 30 days (`month`).",
            promql(quotas.condition(alert, service)),
            "## Impact",
            "None on other tenants by itself. More tokens than planned cost GPU-hours, and queue "
            "other requests if the servers are saturated.",
            f"## {TRIAGE}",
            "### 1. How much of the quota is used?",
            promql(quotas.shares(service)),
            "Expect below 1. Otherwise the tenant exceeds its quota, or will at its recent pace.",
            "### 2. Since when, and of which tokens?",
            promql(quotas.recent_tokens(service)),
            "Expect the rate of the days before, in a graph of the last week. Otherwise:",
            bullets(
                (
                    "A jump at a release of the tenant: a prompt grew, or retries repeat requests.",
                    "More requests of the same size: the tenant's own traffic grew.",
                    "Neither of them: the quota is too low for the tenant.",
                )
            ),
            "## Mitigation",
            bullets(
                (
                    "Contact the owner of the tenant.",
                    "Limit the tenant's tokens in the gateway; these rules refuse nothing.",
                    "Change the tenant's quota in the SLO file, and generate the rules again.",
                )
            ),
            "## Verify",
            "The first query is below 1 for the tenant.",
            "## Escalate",
            f"Call {owner_text(service.owner)} before you limit a tenant.",
            "## Related",
            bullets(
                (
                    dashboard(plan),
                    *(page_link(each) for each in others),
                    f"[All pages of {service.service}]({INDEX})",
                )
            ),
        ]
    )
