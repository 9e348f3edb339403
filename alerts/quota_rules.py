"""Generate the rules of token quotas: allowances, used and projected shares, alerts."""

from __future__ import annotations

from collections.abc import Iterator

from alerts.messages import dashboard_link
from promql.expr import pretty
from slos import quotas
from slos.plan import Plan
from slos.quotas import ALLOWANCE, PERIODS, PROJECTED, QUOTA_LABEL, TOKENS, USED
from slos.signals import TENANT
from slos.yaml_text import Commented, Inline

Rule = dict[str, object]

INTERVAL = "1m"
_MOST_ALLOWANCES = 20
_WIDTH = 140


def groups(plan: Plan) -> Iterator[Rule]:
    """Yield the groups of a service's quotas: allowances first, then what reads them."""
    service = plan.service
    given = service.quotas
    for part, first in enumerate(range(0, len(given), _MOST_ALLOWANCES), 1):
        rules = [
            _record(
                ALLOWANCE,
                f"vector({quota.tokens})",
                {"service": service.service, TENANT: quota.tenant, QUOTA_LABEL: quota.per},
            )
            for quota in given[first : first + _MOST_ALLOWANCES]
        ]
        name = f"{service.service}/quota-allowances{f'-{part}' * (part > 1)}"
        yield Commented("Token quotas of tenants.", _group(name, rules))
    if given:
        about = "Tokens of tenants with a quota, the shares that they use, and the alerts on them."
        name = f"{service.service}/quotas"
        yield Commented(about, _group(name, [*_records(plan), *_alerts(plan)]))


def _group(name: str, rules: list[Rule]) -> Rule:
    return {"name": name, "interval": INTERVAL, "rules": rules}


def _records(plan: Plan) -> Iterator[Rule]:
    service = plan.service
    of = {"service": service.service}
    yield _record(TOKENS, pretty(quotas.tokens(service), _WIDTH), of)
    for per in PERIODS:
        if any(quota.per == per for quota in service.quotas):
            labels = {**of, QUOTA_LABEL: per}
            yield _record(USED, pretty(quotas.used(service, per), _WIDTH), labels)
            yield _record(PROJECTED, pretty(quotas.projected(service, per), _WIDTH), labels)


def _record(name: str, expr: str, labels: dict[str, str]) -> Rule:
    return {"record": name, "expr": expr, "labels": Inline(labels)}


def _alerts(plan: Plan) -> Iterator[Rule]:
    service = plan.service
    tier = service.alerting.ticket
    for alert, planned in quotas.planned_alerts(service):
        links = {"runbook_url": planned.runbook_url, "dashboard_url": dashboard_link(plan)}
        said = alert.summary.format(value="{{ $value | humanizePercentage }}")
        yield {
            "alert": planned.name,
            "expr": pretty(quotas.condition(alert, service), _WIDTH),
            **({"for": alert.lasting} if alert.lasting else {}),
            "labels": Inline({**service.labels, **tier.labels}),
            "annotations": {
                "summary": f"{service.service}: tenant {{{{ $labels.tenant }}}} {said} per "
                f"{{{{ $labels.{QUOTA_LABEL} }}}}",
                "description": alert.meaning,
                **{key: url for key, url in links.items() if url},
                **tier.annotations,
            },
        }
