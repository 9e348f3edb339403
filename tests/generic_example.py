"""A service with queries of its own: an objective for every kind and form of them."""

from __future__ import annotations

from decimal import Decimal

from slos.model import Objective, Service
from slos.plan import Plan, plan

ALL = 'http_requests_total{job="shop"}'
FAILED = 'http_requests_total{job="shop",code=~"5..|429"}'
SERVED = 'http_requests_total{job="shop",code!~"5..|429"}'


def rated(counter: str) -> str:
    return f"sum(rate({counter}[{{window}}]))"


FORMS = {
    "bad-counter": ("bad_events", {"bad": FAILED, "total": ALL}),
    "bad-rate": ("bad_events", {"bad": rated(FAILED), "total": rated(ALL)}),
    "good-counter": ("good_events", {"good": SERVED, "total": ALL}),
    "good-rate": ("good_events", {"good": rated(SERVED), "total": rated(ALL)}),
    "two-metrics": ("bad_events", {"bad": "errors_total", "total": "sent_total"}),
    "computed": (
        "bad_events",
        {"bad": "sum(a:rate5m) - sum(b:rate5m)", "total": "sum by (x) (a:rate5m)"},
    ),
    "average": ("error_ratio", {"ratio": "1 - avg_over_time(satisfaction[{window}])"}),
    "weighted": ("weighted_ratio", {"ratio": "errors:ratio", "weight": "sum(requests:rate5m)"}),
    "latency": ("histogram", {"histogram": 'http_request_duration_seconds{job="shop"}'}),
    "up": ("gauge", {"gauge": 'up{job="shop"}'}),
    "depth": ("gauge", {"gauge": "sum(queue_depth) < bool 5"}),
}


def generic_objective(name: str, target: str = "0.99", **fields: object) -> Objective:
    kind, queries = FORMS[name]
    threshold = Decimal("0.4") if kind == "histogram" else None
    return Objective(name, kind, Decimal(target), threshold, queries=queries, **fields)


def generic_service(*objectives: Objective, **fields: object) -> Service:
    chosen = objectives or tuple(map(generic_objective, FORMS))
    settings: dict[str, object] = {"window": Decimal(28 * 86_400)} | fields
    return Service("slo.yaml", "shop", objectives=chosen, **settings)


def generic_plan(*objectives: Objective, **fields: object) -> Plan:
    return plan(generic_service(*objectives, **fields))
