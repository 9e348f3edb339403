"""Prometheus' web configuration file: TLS, users, headers and a rate limit of listeners.

The format is that of Prometheus, Alertmanager and the exporters
(https://prometheus.io/docs/prometheus/latest/configuration/https/).
"""

from __future__ import annotations

from exporter.web_config.listener_access import ListenerAccess
from exporter.web_config.reader import WebConfig, read_web_config

__all__ = ["ListenerAccess", "WebConfig", "read_web_config"]
