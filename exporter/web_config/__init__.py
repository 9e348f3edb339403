"""Prometheus' web configuration file: TLS, users, headers and a rate limit of listeners.

The format is that of Prometheus, Alertmanager and the exporters
(https://prometheus.io/docs/prometheus/latest/configuration/https/).
"""

from __future__ import annotations

from exporter.web_config.listener_access import ListenerAccess
from exporter.web_config.web_config import WebConfig

__all__ = ["ListenerAccess", "WebConfig"]
