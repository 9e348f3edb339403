"""Files of a service's autoscaling."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaling import horizontal, keda, workloads
from autoscaling.policy import ScalingPolicy, policy_of
from promql.expr import pretty
from slos.generated_yaml import document
from slos.plan import Plan
from slos.yaml_text import Commented, Inline

FOLDER = "autoscaling"
_NAMES = ("keda", "hpa", "prometheus-adapter", "drain-patch")
_WIDTH = 120


def files(
    plan: Plan,
    *,
    source: str,
    version: str,
    namespace: str = "",
    labels: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the objects of scalers: text by path; empty without autoscaling.

    Use the ScaledObject of KEDA, or the autoscaler with the rules of prometheus-adapter; not both.
    """
    policy = _policy(plan, namespace)
    if policy is None:
        return {}
    service = policy.service.service
    metadata: dict[str, object] = {"name": f"tokenslo-{service}"}
    if namespace:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = dict(labels)
    drain = f"Scale-down protects streams of {policy.stream}."
    made = {
        "keda": (
            f"ScaledObject of {service} for KEDA 2.20 or later. {drain}",
            keda.scaled_object(policy, metadata),
        ),
        "hpa": (
            f"HorizontalPodAutoscaler of {service}, instead of KEDA; it needs the rules of "
            f"prometheus-adapter. {drain}",
            horizontal.autoscaler(policy, metadata),
        ),
        "prometheus-adapter": (
            f"Part of prometheus-adapter's configuration for {service}; it reads "
            f"alerts/{service}.autoscaling.rules.yaml.",
            horizontal.adapter_rules(policy),
        ),
        "drain-patch": (
            f"Patch of the termination grace period of {policy.autoscaling.workload}: the longest "
            f"stream ({policy.stream}) and a minute. The server must drain on SIGTERM.",
            workloads.drain_patch(policy),
        ),
    }
    return {
        f"{FOLDER}/{service}.{name}.yaml": document(about, body, source=source, version=version)
        for name, (about, body) in made.items()
    }


def groups(plan: Plan, namespace: str = "") -> list[dict[str, object]]:
    """Return the group of rules that record the demand; empty without autoscaling."""
    policy = _policy(plan, namespace)
    if policy is None:
        return []
    service = policy.service.service
    rules = [
        {
            "record": horizontal.DEMAND,
            "expr": pretty(signal.demand, _WIDTH),
            "labels": Inline({"service": service, "signal": signal.name}),
        }
        for signal in policy.load_signals
    ]
    about = "Demand for replicas, by signal."
    group = {"name": f"{service}/autoscaling", "interval": "15s", "rules": rules}
    return [Commented(about, group)]


def patterns(service: str) -> tuple[str, ...]:
    """Return the file patterns of a service's objects, to remove those of a former autoscaling."""
    return tuple(f"{FOLDER}/{service}.{name}.yaml" for name in _NAMES)


def _policy(plan: Plan, namespace: str) -> ScalingPolicy | None:
    autoscaling = plan.service.autoscaling
    return None if autoscaling is None else policy_of(plan, autoscaling, namespace)
