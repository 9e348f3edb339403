"""Grafana dashboards from SLO plans."""

from dashboards.dashboard_set import KINDS, GeneratedDashboard, build, files

__all__ = ["KINDS", "GeneratedDashboard", "build", "files"]
