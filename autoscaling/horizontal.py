"""HorizontalPodAutoscalers, and the rules of prometheus-adapter that they read."""

from __future__ import annotations

from autoscaling.policy import DOWN, UP, ReplicaStep, ScalingPolicy
from autoscaling.workloads import reference

DEMAND = "slo:autoscaling_demand:replicas"
"""The recorded demand for replicas, with the labels ``service`` and ``signal``."""


def autoscaler(policy: ScalingPolicy, metadata: dict[str, object]) -> dict[str, object]:
    """Return an autoscaler with one external metric for each signal.

    Without a feature gate, Kubernetes does not scale to 0.
    """
    autoscaling = policy.autoscaling
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata,
        "spec": {
            "scaleTargetRef": reference(autoscaling.workload),
            "minReplicas": max(autoscaling.min_replicas, 1),
            "maxReplicas": autoscaling.max_replicas,
            "metrics": [_metric(policy, signal.name) for signal in policy.load_signals],
            "behavior": behavior(policy),
        },
    }


def _metric(policy: ScalingPolicy, signal: str) -> dict[str, object]:
    service = policy.service.service
    return {
        "type": "External",
        "external": {
            "metric": {
                "name": _metric_name(policy),
                "selector": {"matchLabels": {"service": service, "signal": signal}},
            },
            "target": {"type": "AverageValue", "averageValue": "1"},
        },
    }


def adapter_rules(policy: ScalingPolicy) -> dict[str, object]:
    """Return the rule of prometheus-adapter that serves the recorded demand."""
    rule = {
        "seriesQuery": f'{DEMAND}{{service="{policy.service.service}"}}',
        "resources": {"namespaced": False},
        "name": {"matches": f"^{DEMAND}$", "as": _metric_name(policy)},
        "metricsQuery": "max(<<.Series>>{<<.LabelMatchers>>})",
    }
    return {"externalRules": [rule]}


def behavior(policy: ScalingPolicy) -> dict[str, object]:
    """Return the rates of scaling: up at once, down after the longest stream."""
    return {
        "scaleUp": {"stabilizationWindowSeconds": 0, **_policies(UP)},
        "scaleDown": {
            "stabilizationWindowSeconds": policy.stabilization_seconds,
            **_policies(DOWN),
        },
    }


def _policies(step: ReplicaStep) -> dict[str, object]:
    limits = {"Pods": step.pods, "Percent": step.percent}
    return {
        "selectPolicy": "Max",
        "policies": [
            {"type": kind, "value": value, "periodSeconds": step.seconds}
            for kind, value in limits.items()
        ],
    }


def _metric_name(policy: ScalingPolicy) -> str:
    return f"tokenslo_{policy.service.service.replace('-', '_')}_demand"
