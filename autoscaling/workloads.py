"""Scaled workloads, and the patch that gives their pods time to drain."""

from __future__ import annotations

from autoscaling.policy import ScalingPolicy

_API_VERSIONS = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
}


def reference(workload: str) -> dict[str, object]:
    """Return the reference of a scaler to a workload such as ``Deployment/chat``."""
    kind, _, name = workload.partition("/")
    return {"apiVersion": _API_VERSIONS[kind], "kind": kind, "name": name}


def drain_patch(policy: ScalingPolicy) -> dict[str, object]:
    """Return the patch of the termination grace period, for kustomize or ``kubectl patch``."""
    target = reference(policy.autoscaling.workload)
    pod = {"spec": {"terminationGracePeriodSeconds": policy.grace_seconds}}
    if target["kind"] == "LeaderWorkerSet":
        template: dict[str, object] = {
            "leaderWorkerTemplate": {"leaderTemplate": pod, "workerTemplate": pod}
        }
    else:
        template = {"template": pod}
    name = target.pop("name")
    return {**target, "metadata": {"name": name}, "spec": template}
