"""Kubernetes objects in files, and strict schemas of their kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

FOLDER = Path(__file__).parent / "kubernetes"
RELEASES = ("1.29", "1.33", "1.37")
"""The first with native sidecars, the first in which they are stable, and a recent one."""
_CUSTOM = {
    **dict.fromkeys(("AlertmanagerConfig", "PodMonitor", "PrometheusRule"), "operator-0.93"),
    "HorizontalPodAutoscaler": "1.33",
    "GrafanaDashboard": "grafana-operator-5.24",
    "ScaledObject": "keda-2.20",
    **dict.fromkeys(("AnalysisTemplate", "Canary", "MetricTemplate"), "rollouts"),
    **dict.fromkeys(("BackendTrafficPolicy", "ClientTrafficPolicy"), "gateways"),
    **dict.fromkeys(("AIGatewayRoute", "VirtualService", "DestinationRule"), "gateways"),
}
"""Files with the schemas of custom resources, and of kinds with one schema for all releases."""
_DEFINITIONS: Mapping[str, str] = {
    "Deployment": "io.k8s.api.apps.v1.Deployment",
    "StatefulSet": "io.k8s.api.apps.v1.StatefulSet",
    "HorizontalPodAutoscaler": "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler",
    "ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "Service": "io.k8s.api.core.v1.Service",
    "NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
}
KINDS = (*_DEFINITIONS, "PodMonitor", "PrometheusRule")

Object = dict[str, Any]


def objects(text: str) -> list[Object]:
    """Return the objects of a file of YAML documents, sorted by kind and name."""
    found = [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]
    return sorted(found, key=lambda one: (one["kind"], one["metadata"]["name"]))


def only(found: list[Object], kind: str) -> Object:
    """Return the only object of a kind."""
    (one,) = (each for each in found if each["kind"] == kind)
    return one


def sidecar(pod: Object) -> Object:
    """Return the sidecar of a pod's specification."""
    containers = [*pod.get("initContainers", []), *pod["containers"]]
    (one,) = (each for each in containers if each["name"] == "tokenslo")
    return one


def environment(container: Object) -> dict[str, str]:
    """Return the environment variables of a container."""
    return {one["name"]: one["value"] for one in container.get("env", [])}


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector selects a pod."""
    expressions = selector.get("matchExpressions", [])
    assert all(one["operator"] == "Exists" for one in expressions)
    return selector.get("matchLabels", {}).items() <= labels.items() and labels.keys() >= {
        one["key"] for one in expressions
    }


def schema_errors(one: Object, release: str) -> Iterator[str]:
    """Yield the fields of an object that a release of Kubernetes, or the operator, refuses."""
    for error in _validator(one["kind"], release).iter_errors(one):
        yield f"{one['kind']} {error.json_path}: {error.message}"


def adapter_errors(rules: Object) -> Iterator[str]:
    """Yield the fields that prometheus-adapter refuses in its configuration."""
    schema = json.loads((FOLDER / "prometheus-adapter-0.12.json").read_bytes())
    for error in jsonschema.Draft202012Validator(schema).iter_errors(rules):
        yield f"{error.json_path}: {error.message}"


def restricted_errors(pod: Object) -> Iterator[str]:
    """Yield what the Pod Security level "restricted" refuses in a pod's specification."""
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            yield key
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
               "projected", "secret", "name"}  # fmt: skip
    for volume in pod.get("volumes", []):
        yield from (f"volume {key}" for key in volume.keys() - allowed)
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        settings = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
        capabilities = settings.get("capabilities", {})
        refused = {
            "privileged": settings.get("privileged", False),
            "allowPrivilegeEscalation": settings.get("allowPrivilegeEscalation", True),
            "runAsNonRoot": not settings.get("runAsNonRoot", False),
            "runAsUser": settings.get("runAsUser") == 0,
            "seccompProfile": settings.get("seccompProfile", {}).get("type") != "RuntimeDefault",
            "capabilities.drop": "ALL" not in capabilities.get("drop", []),
            "capabilities.add": set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"},
            "hostPort": any("hostPort" in port for port in container.get("ports", [])),
        }
        yield from (f"{container['name']} {field}" for field, is_refused in refused.items()
                    if is_refused)  # fmt: skip


def schema_of(kind: str, release: str) -> Object:
    """Return the schema of a kind in a release of Kubernetes, or in the operator's."""
    name, file = _DEFINITIONS.get(kind, kind), _CUSTOM.get(kind, release)
    return {**json.loads((FOLDER / f"{file}.json").read_bytes()), "$ref": f"#/definitions/{name}"}


@cache
def _validator(kind: str, release: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema_of(kind, release))
