"""Objects of Istio, with the fields of its API 1.31."""

from __future__ import annotations

from admission.envoy_gateway import GatewayNames
from admission.plan import AdmissionPlan

RETRIED = "connect-failure,refused-stream"
"""Istio's default also retries ``unavailable`` and ``cancelled``: rejected gRPC requests."""


def virtual_service(plan: AdmissionPlan, names: GatewayNames) -> dict[str, object]:
    """Return the timeout and the retries of a host."""
    retries = {"attempts": 1, "retryOn": RETRIED} if plan.settings.retries else {"attempts": 0}
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": names.metadata(f"tokenslo-{plan.service.service}"),
        "spec": {
            "hosts": [names.host],
            "http": [
                {
                    "timeout": plan.hops.gateway.written,
                    "retries": retries,
                    "route": [{"destination": {"host": names.host}}],
                }
            ],
        },
    }


def destination_rule(plan: AdmissionPlan, names: GatewayNames) -> dict[str, object]:
    """Return the requests in flight and the retry budget of a host, for each client's proxy."""
    percent = plan.settings.retries * 100
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "DestinationRule",
        "metadata": names.metadata(f"tokenslo-{plan.service.service}"),
        "spec": {
            "host": names.host,
            "trafficPolicy": {
                "connectionPool": {
                    "tcp": {"maxConnections": plan.gateway.in_flight},
                    "http": {
                        "http1MaxPendingRequests": plan.gateway.pending,
                        "http2MaxRequests": plan.gateway.in_flight,
                    },
                },
                "retryBudget": {"percent": percent, "minRetryConcurrency": 1},
            },
        },
    }
