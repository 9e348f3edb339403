"""Generate promtool tests of quotas: each alert fires, and only that one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from alerts.quota_rules import INTERVAL
from promql.expr import equal, vector
from slos import quotas
from slos.generated_yaml import document
from slos.model import TokenQuota
from slos.plan import Plan
from slos.quotas import EXCEEDED, NEARLY_USED, PROJECTION, QUOTA_LABEL, QuotaAlert
from slos.signals import SIGNALS, TENANT
from slos.yaml_text import Commented

Item = dict[str, object]

_BEFORE, _BURST = 5, 10
"""Minutes before a burst, and of it."""
_BURSTS: Sequence[tuple[str, QuotaAlert]] = (
    ("0.5", PROJECTION),
    ("0.9", NEARLY_USED),
    ("1.1", EXCEEDED),
)
"""Shares of a quota that a burst uses, and the alert that fires."""
_QUIET = 0.3
"""A steady pace, as a share of that of the quota."""
_MINUTES = 60
_PERIOD_MINUTES = {"day": 1_440, "month": 43_200}


def text(plan: Plan, rule_files: Sequence[str], *, source: str, version: str) -> str:
    """Return the promtool test file for the quotas of a service."""
    service = plan.service.service
    return document(
        f"Tests of token quotas. Run: promtool test rules {service}.quotas.test.yaml",
        {
            "rule_files": rule_files,
            "evaluation_interval": INTERVAL,
            "tests": [test for quota in plan.service.quotas for test in _tests(plan, quota)],
        },
        source=source,
        version=version,
    )


def _tests(plan: Plan, quota: TokenQuota) -> Iterator[Item]:
    name = f"{quota.tenant} per {quota.per}"
    pace = max(1, int(quota.tokens * _QUIET / _PERIOD_MINUTES[quota.per]))
    yield _test(plan, quota, f"{name}: no alert at a steady pace", f"0+{pace}x{_MINUTES}", None)
    for share, alert in _BURSTS:
        each = max(1, -(-int(quota.tokens * float(share)) // _BURST))
        values = f"0x{_BEFORE} 0+{each}x{_BURST} {each * _BURST}x{_MINUTES}"
        yield _test(plan, quota, f"{name}: {alert.suffix} at {share} of it", values, alert)


def _test(plan: Plan, quota: TokenQuota, name: str, values: str, fires: QuotaAlert | None) -> Item:
    service = plan.service
    labels = {**service.selector, TENANT: quota.tenant, "direction": "output"}
    metric = SIGNALS["tenant_output_tokens"].metric
    of = {TENANT: quota.tenant, QUOTA_LABEL: quota.per, "alertstate": "firing"}
    checks = []
    for alert, planned in quotas.planned_alerts(service):
        firing = vector("ALERTS", equal({"alertname": planned.name, **of}))
        checks.append(
            {
                "expr": f"count({firing})",
                "eval_time": f"{_MINUTES}m",
                "exp_samples": [{"labels": "{}", "value": 1}] if alert is fires else [],
            }
        )
    return Commented(
        "Tokens of one tenant over an hour.",
        {
            "name": name,
            "interval": "1m",
            "input_series": [{"series": str(vector(metric, equal(labels))), "values": values}],
            "promql_expr_test": checks,
        },
    )
