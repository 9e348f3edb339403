"""ScaledObjects of KEDA."""

from __future__ import annotations

from autoscaling.horizontal import behavior
from autoscaling.policy import FAILURES, POLLING_SECONDS, ScalingPolicy, ScalingSignal
from autoscaling.workloads import reference
from promql.expr import pretty
from slos.yaml_text import Commented


def scaled_object(policy: ScalingPolicy, metadata: dict[str, object]) -> dict[str, object]:
    """Return a ScaledObject with one trigger for each signal.

    An empty result is an error, and after several the fallback holds at least the current replicas.
    """
    autoscaling = policy.autoscaling
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata,
        "spec": {
            "scaleTargetRef": reference(autoscaling.workload),
            "pollingInterval": POLLING_SECONDS,
            "cooldownPeriod": policy.stabilization_seconds,
            "minReplicaCount": autoscaling.min_replicas,
            "maxReplicaCount": autoscaling.max_replicas,
            "fallback": {
                "failureThreshold": FAILURES,
                "replicas": max(autoscaling.min_replicas, 1),
                "behavior": "currentReplicasIfHigher",
            },
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior(policy)}},
            "triggers": [_trigger(policy, signal) for signal in policy.signals],
        },
    }


def _trigger(policy: ScalingPolicy, signal: ScalingSignal) -> Commented:
    return Commented(
        f"{signal.about}.",
        {
            "type": "prometheus",
            "name": signal.name,
            "metricType": "AverageValue",
            "metadata": {
                "serverAddress": policy.autoscaling.prometheus,
                "query": pretty(signal.demand),
                "threshold": "1",
                "ignoreNullValues": "false",
            },
        },
    )
