"""Parts that Kubernetes resources with a dashboard have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath

from dashboards.dashboard_json import text
from dashboards.dashboard_set import GeneratedDashboard
from dashboards.options import DashboardOptions

_MOST_BYTES = 262_144
"""The maximum size of a resource: ``kubectl apply`` keeps it in an annotation with this limit."""
_ROOM = 4_096
"""Space for metadata, with a margin."""


def resource_path(dashboard: GeneratedDashboard, form: str) -> str:
    """Return the path of a resource file, such as ``dashboards/chat-engine.configmap.yaml``."""
    return f"dashboards/{_stem(dashboard)}.{form}.yaml"


def metadata(
    dashboard: GeneratedDashboard,
    options: DashboardOptions,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Return the metadata of a dashboard's resource."""
    fields: dict[str, object] = {
        "name": f"tokenslo-{_stem(dashboard)}",
        "namespace": options.namespace,
        "labels": {**options.labels, **(labels or {})},
        "annotations": dict(annotations or {}),
    }
    return {name: value for name, value in fields.items() if value}


def embedded(dashboard: GeneratedDashboard) -> str:
    """Return the JSON of a dashboard as a resource holds it: compact if it is large."""
    readable = text(dashboard.content).rstrip("\n")
    if len(json.dumps(readable).encode()) <= _MOST_BYTES - _ROOM:
        return readable
    return json.dumps(dashboard.content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _stem(dashboard: GeneratedDashboard) -> str:
    return PurePosixPath(dashboard.path).stem
