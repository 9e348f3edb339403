"""Grafana dashboards from SLO plans."""

from dashboards.service import files

__all__ = ["files"]
