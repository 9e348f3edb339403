"""Write ConfigMaps that the sidecar of Grafana's Helm chart loads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from dashboards.dashboard_set import GeneratedDashboard
from dashboards.options import DashboardOptions
from dashboards.outputs.kubernetes import embedded, metadata, resource_path
from dashboards.outputs.yaml_document import document

_LABELS = {"grafana_dashboard": "1"}
"""The label that the sidecar watches by default (``sidecar.dashboards.label``)."""
_FOLDER = "grafana_folder"
"""The annotation that ``sidecar.dashboards.folderAnnotation`` names."""


def files(
    dashboards: Sequence[GeneratedDashboard], options: DashboardOptions, version: str
) -> Iterator[tuple[str, str]]:
    """Yield path and text of a ConfigMap for each dashboard."""
    annotations = {_FOLDER: options.folder} if options.folder else {}
    for each in dashboards:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(each, options, labels=_LABELS, annotations=annotations),
            "data": {PurePosixPath(each.path).name: embedded(each)},
        }
        about = f"ConfigMap of the dashboard {each.content['title']}, for Grafana's sidecar."
        yield resource_path(each, "configmap"), document(about, body, version)
