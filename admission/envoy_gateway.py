"""Policies of Envoy Gateway, and routes of Envoy AI Gateway.

Fields are those of Envoy Gateway 1.9 and Envoy AI Gateway 1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from admission.limit import MAX_RATE
from admission.plan import AdmissionPlan
from slos.model import TokenQuota

GATEWAY_GROUP = "gateway.networking.k8s.io"
TOKENS = "llm_total_token"
_METADATA = {"namespace": "io.envoy.ai_gateway", "key": TOKENS}
_UNITS = {"day": "Day", "month": "Month"}


@dataclass(frozen=True, slots=True)
class GatewayNames:
    """Names of the objects that policies apply to; ``namespace`` may be empty.

    ``tenant_header`` is the request header with the tenant, empty without quotas at the gateway.
    """

    route: str
    gateway: str
    host: str
    namespace: str = ""
    tenant_header: str = ""

    def metadata(self, name: str) -> dict[str, object]:
        """Return the metadata of an object."""
        namespace = {"namespace": self.namespace} if self.namespace else {}
        return {"name": name, **namespace}


def backend_traffic_policy(plan: AdmissionPlan, names: GatewayNames) -> dict[str, object]:
    """Return timeouts, limits and retries of a route.

    Retries are limited to requests that did not reach a server: a rejected request that is sent
    again adds load to an overload.
    """
    retries, rate = plan.settings.retries, plan.request_rate
    policy: dict[str, object] = {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "BackendTrafficPolicy",
        "metadata": names.metadata(f"tokenslo-{plan.service.service}"),
        "spec": {
            "targetRefs": [{"group": GATEWAY_GROUP, "kind": "HTTPRoute", "name": names.route}],
            "timeout": {
                "http": {
                    "requestTimeout": plan.hops.gateway.written,
                    "streamIdleTimeout": plan.hops.gateway_idle.written,
                }
            },
            "circuitBreaker": {
                "maxConnections": plan.gateway.in_flight,
                "maxParallelRequests": plan.gateway.in_flight,
                "maxPendingRequests": plan.gateway.pending,
                "retryBudget": {
                    "percent": {"numerator": ceil(retries * 100)},
                    "minRetryConcurrency": 1,
                },
            },
            "retry": {
                "numRetries": 1 if retries else 0,
                "retryOn": {
                    "triggers": ["connect-failure", "refused-stream", "reset-before-request"]
                },
            },
            "rateLimit": {
                "local": {"rules": [{"limit": {"requests": rate.number, "unit": rate.unit}}]}
            },
        },
    }
    return policy


def client_traffic_policy(plan: AdmissionPlan, names: GatewayNames) -> dict[str, object]:
    """Return the idle time of streams for all routes of the gateway."""
    idle = plan.hops.gateway_idle.written
    return {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "ClientTrafficPolicy",
        "metadata": names.metadata(f"tokenslo-{plan.service.service}"),
        "spec": {
            "targetRefs": [{"group": GATEWAY_GROUP, "kind": "Gateway", "name": names.gateway}],
            "timeout": {"http": {"streamIdleTimeout": idle}},
        },
    }


def ai_gateway_route(plan: AdmissionPlan, names: GatewayNames) -> dict[str, object]:
    """Return a route with timeouts, and with the tokens of a request as metadata."""
    service = plan.service
    model = service.selector.get("model", service.service)
    match = {"headers": [{"type": "Exact", "name": "x-ai-eg-model", "value": model}]}
    parent = {"group": GATEWAY_GROUP, "kind": "Gateway", "name": names.gateway}
    return {
        "apiVersion": "aigateway.envoyproxy.io/v1beta1",
        "kind": "AIGatewayRoute",
        "metadata": names.metadata(names.route),
        "spec": {
            "parentRefs": [parent],
            "llmRequestCosts": [{"metadataKey": TOKENS, "type": "TotalToken"}],
            "rules": [
                {
                    "matches": [match],
                    "backendRefs": [{"name": names.host.split(".")[0]}],
                    "timeouts": {"request": plan.hops.gateway.written},
                    "streamIdleTimeout": plan.hops.gateway_idle.written,
                }
            ],
        },
    }


def token_policy(plan: AdmissionPlan, names: GatewayNames) -> dict[str, object]:
    """Return the policy of a route with limits of tokens: of all requests, and of tenants."""
    rules: list[dict[str, object]] = []
    if plan.token_rate is not None:
        limit = {"requests": plan.token_rate.number, "unit": plan.token_rate.unit}
        rules.append({"limit": limit, "cost": _cost()})
    if names.tenant_header:
        quotas = [quota for quota in plan.service.quotas if quota.tokens <= MAX_RATE]
        rules += [_quota_rule(quota, names.tenant_header) for quota in quotas]
    policy = backend_traffic_policy(plan, names)
    spec = policy["spec"]
    if rules and isinstance(spec, dict):
        spec["rateLimit"] = {**spec["rateLimit"], "global": {"rules": rules}}
    return policy


def unlimited_quotas(plan: AdmissionPlan) -> list[str]:
    """Return the tenants whose quotas are above the largest limit."""
    return [quota.tenant for quota in plan.service.quotas if quota.tokens > MAX_RATE]


def _quota_rule(quota: TokenQuota, header: str) -> dict[str, object]:
    selector = {"headers": [{"type": "Exact", "name": header, "value": quota.tenant}]}
    limit = {"requests": quota.tokens, "unit": _UNITS[quota.per]}
    return {"clientSelectors": [selector], "limit": limit, "cost": _cost()}


def _cost() -> Mapping[str, object]:
    """Return the cost of a request: 0 at its start, its tokens at its end."""
    return {
        "request": {"from": "Number", "number": 0},
        "response": {"from": "Metadata", "metadata": dict(_METADATA)},
    }
