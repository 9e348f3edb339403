"""Write resources of grafana-operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards.dashboard_set import GeneratedDashboard
from dashboards.options import DashboardOptions
from dashboards.outputs.kubernetes import embedded, metadata, resource_path
from dashboards.outputs.yaml_document import document

_INSTANCES = {"dashboards": "grafana"}
"""The label of Grafana instances in the operator's documentation."""


def files(
    dashboards: Sequence[GeneratedDashboard], options: DashboardOptions, version: str
) -> Iterator[tuple[str, str]]:
    """Yield path and text of a GrafanaDashboard for each dashboard."""
    for each in dashboards:
        body = {
            "apiVersion": "grafana.integreatly.org/v1beta1",
            "kind": "GrafanaDashboard",
            "metadata": metadata(each, options),
            "spec": {
                "instanceSelector": {"matchLabels": _INSTANCES},
                **({"folder": options.folder} if options.folder else {}),
                "json": embedded(each),
            },
        }
        about = f"Resource of grafana-operator for the dashboard {each.content['title']}."
        yield resource_path(each, "grafanadashboard"), document(about, body, version)
