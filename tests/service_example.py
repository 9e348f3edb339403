"""A service with an objective for every indicator."""

from __future__ import annotations

from decimal import Decimal

from slos.indicators import INDICATORS
from slos.model import Objective, Service
from slos.plan import Plan, plan

THRESHOLDS = {"seconds": Decimal("0.8"), "ratio": Decimal("0.9"), None: None}
CLAUSES = {"ttft": Decimal("0.8"), "tpot": Decimal("0.06")}


def objective(indicator: str, target: str = "0.99") -> Objective:
    threshold = THRESHOLDS[INDICATORS[indicator].threshold]
    clauses = CLAUSES if indicator == "goodput" else {}
    name = indicator.replace("_", "-")
    return Objective(name, indicator, Decimal(target), threshold, clauses=clauses)


def service(*objectives: Objective, **fields: object) -> Service:
    chosen = objectives or tuple(objective(indicator.key) for indicator in INDICATORS.values())
    settings = {
        "window": Decimal(28 * 86_400),
        "selector": {"model": "llama", "namespace": "prod"},
        "owner": "inference-platform",
        "runbooks": "https://runbooks.example.com/chat",
        "dashboards": "https://grafana.example.com",
    } | fields
    return Service("slo.yaml", "chat", objectives=chosen, **settings)


def example(*objectives: Objective, **fields: object) -> Plan:
    return plan(service(*objectives, **fields))
