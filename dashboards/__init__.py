"""Grafana dashboards from SLO plans."""

from dashboards.dashboard_set import KINDS, GeneratedDashboard, build
from dashboards.options import FORMATS, DashboardOptions, Overlay
from dashboards.outputs import files

__all__ = [
    "FORMATS",
    "KINDS",
    "DashboardOptions",
    "GeneratedDashboard",
    "Overlay",
    "build",
    "files",
]
