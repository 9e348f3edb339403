"""Start Envoy in front of a server on this machine, as a peer of the proxy tap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench import programs
from lab.process import HOST, ServerProcess, serve

_TYPES = "type.googleapis.com/envoy.extensions.filters"
_NO_TIMEOUT = "0s"
_MOST = 20_000
"""Connections and requests to the server at a time."""


def configuration(port: int, upstream: int) -> Mapping[str, Any]:
    """Return the configuration: one listener, one cluster, no access log, no time-outs."""
    most = {"max_connections": _MOST, "max_pending_requests": _MOST, "max_requests": _MOST}
    routes = [
        {"match": {"path": "/ready"}, "direct_response": {"status": 200}},
        {"match": {"prefix": "/"}, "route": {"cluster": "server", "timeout": _NO_TIMEOUT}},
    ]
    manager = {
        "@type": f"{_TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "codec_type": "HTTP1",
        "stream_idle_timeout": _NO_TIMEOUT,
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPES}.http.router.v3.Router"},
            }
        ],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
    }
    chain = {
        "filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
        ]
    }
    endpoint = {"endpoint": {"address": _address(upstream)}}
    return {
        "static_resources": {
            "listeners": [{"address": _address(port), "filter_chains": [chain]}],
            "clusters": [
                {
                    "name": "server",
                    "type": "STATIC",
                    "connect_timeout": "5s",
                    "circuit_breakers": {"thresholds": [most]},
                    "load_assignment": {
                        "cluster_name": "server",
                        "endpoints": [{"lb_endpoints": [endpoint]}],
                    },
                }
            ],
        }
    }


def _address(port: int) -> Mapping[str, Any]:
    return {"socket_address": {"address": HOST, "port_value": port}}


def start(folder: Path, upstream: int) -> ServerProcess:
    """Start Envoy with one worker thread in front of a local port."""
    program = programs.envoy()

    def command(ports: Sequence[int]) -> list[str | Path]:
        config = folder / "envoy.yaml"
        config.write_text(yaml.safe_dump(configuration(ports[0], upstream)))
        options = ("--concurrency", "1", "--log-level", "error", "--disable-hot-restart")
        return [program, "-c", config, *options]

    return serve(ServerProcess, "envoy", command, folder / "envoy.log", ready="/ready")
