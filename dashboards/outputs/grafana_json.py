"""Write dashboards as JSON that Grafana imports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards.dashboard_json import text
from dashboards.dashboard_set import GeneratedDashboard
from dashboards.options import DashboardOptions


def files(
    dashboards: Sequence[GeneratedDashboard], _: DashboardOptions, __: str
) -> Iterator[tuple[str, str]]:
    """Yield path and text of each dashboard."""
    for each in dashboards:
        yield each.path, text(each.content)
