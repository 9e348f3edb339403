"""Write dashboards for Grafana's import, provisioning and Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from dashboards.customization import customized
from dashboards.dashboard_set import GeneratedDashboard, build
from dashboards.options import FORMATS, DashboardFormat, DashboardOptions
from dashboards.outputs import config_map, grafana_json, grafana_operator, grafana_v2, provisioning
from slos.plan import Plan

_Writer = Callable[[Sequence[GeneratedDashboard], DashboardOptions, str], Iterator[tuple[str, str]]]

_WRITERS: Mapping[DashboardFormat, _Writer] = {
    "json": grafana_json.files,
    "provisioning": provisioning.files,
    "configmap": config_map.files,
    "operator": grafana_operator.files,
    "v2": grafana_v2.files,
}
assert tuple(_WRITERS) == FORMATS  # noqa: S101


def files(
    plan: Plan, *, source: str, version: str, options: DashboardOptions | None = None
) -> dict[str, str]:
    """Return the dashboards of a plan in every requested format: text by path.

    Raises InvalidFile if the overlay makes an invalid dashboard.
    """
    options = options or DashboardOptions()
    built = build(plan, source=source, version=version, kinds=options.kinds)
    dashboards = customized(built, plan.service.service, options)
    return {
        path: text
        for form in options.formats
        for path, text in _WRITERS[form](dashboards, options, version)
    }
