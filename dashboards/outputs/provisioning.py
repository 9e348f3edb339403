"""Write a provisioning folder: dashboards, their provider, and the data source.

Mounted as ``/etc/grafana/provisioning``, it needs no other file.  Contact points of alerts are left
out: Alertmanager has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from dashboards.dashboard_json import text
from dashboards.dashboard_set import GeneratedDashboard
from dashboards.options import DashboardOptions
from dashboards.outputs.yaml_document import document

_MOUNT = "/etc/grafana/provisioning"
DATASOURCE_UID = "prometheus"
"""The uid of the provisioned data source, if no other is requested."""
_UPDATE_SECONDS = 30


def files(
    dashboards: Sequence[GeneratedDashboard], options: DashboardOptions, version: str
) -> Iterator[tuple[str, str]]:
    """Yield path and text of each dashboard, of the provider and of the data source.

    The last two are the same for all services.
    """
    for each in dashboards:
        yield (
            f"provisioning/dashboards/tokenslo/{PurePosixPath(each.path).name}",
            text(each.content),
        )
    provider = {
        "name": "tokenslo",
        "type": "file",
        "folder": options.folder,
        "allowUiUpdates": False,
        "disableDeletion": False,
        "updateIntervalSeconds": _UPDATE_SECONDS,
        "options": {"path": f"{_MOUNT}/dashboards/tokenslo"},
    }
    about = "Provider of tokenslo's dashboards."
    body: dict[str, object] = {"apiVersion": 1, "providers": [provider]}
    yield "provisioning/dashboards/tokenslo.yaml", document(about, body, version)
    datasource = {
        "name": "tokenslo Prometheus",
        "uid": options.datasource_uid or DATASOURCE_UID,
        "type": "prometheus",
        "access": "proxy",
        "url": "$PROMETHEUS_URL",
        "jsonData": {"httpMethod": "POST"},
    }
    about = "Data source, unless Grafana has it. Its URL is in Grafana's environment."
    body = {"apiVersion": 1, "datasources": [datasource]}
    yield "provisioning/datasources/tokenslo.yaml", document(about, body, version)
