"""The listeners of the sidecar's own pages, and their protection."""

from __future__ import annotations

from ipaddress import ip_address

from exporter.settings.values import Settings
from exporter.sockets import Listen
from exporter.web_config import ListenerAccess

LISTENERS = ("listen", "otlp_traces")
"""Settings with the address of a listener; taps have listeners of their own."""


def listener_access(config: Settings, listen: Listen) -> ListenerAccess:
    """Return the protection of a listener; raises InvalidFile for its web configuration."""
    loopback = is_loopback(listen.host)
    return ListenerAccess(
        config.web_config,
        authenticated=not (loopback or config.allow_unauthenticated),
        hosts=config.allowed_host,
        private_names=not loopback,
    )


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine reach a listener on ``host``."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
