"""Grafana dashboards from SLO plans."""

from dashboards.dashboard_set import KINDS, GeneratedDashboard, build
from dashboards.options import FORMATS, Options, Overlay
from dashboards.outputs import files

__all__ = ["FORMATS", "KINDS", "GeneratedDashboard", "Options", "Overlay", "build", "files"]
