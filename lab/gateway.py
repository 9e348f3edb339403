"""Start a real gateway in front of a server on this machine: nginx, HAProxy or Caddy.

nginx and HAProxy have idle time-outs only.  Caddy's ``timeouts write`` limits the whole response.
Each gateway responds to ``/ready`` itself and forwards everything else.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lab import toolchain
from lab.process import HOST, ServerError, ServerProcess, serve
from lab.toolchain import Progress

_NGINX = """\
{user}worker_processes 1;
worker_rlimit_nofile 32768;
daemon off;
pid {folder}/pid;
error_log stderr warn;
events {{ worker_connections 16384; }}
http {{
    access_log off;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    limit_req_zone $server_port zone=all:64k rate={requests_per_minute}r/m;
    limit_req_status 429;
    upstream server {{
        server {upstream} max_fails=0;
        {second_try}
    }}
    server {{
        listen {host}:{port} backlog=4096;
        location = /ready {{ return 200; }}
        location / {{
            {rate_limit}
            proxy_pass http://server;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering {buffering};
            proxy_ignore_client_abort {ignore_client_abort};
            proxy_read_timeout {idle}ms;
            proxy_next_upstream {retries};
        }}
    }}
}}
"""

_HAPROXY = """\
global
    log stderr format raw daemon err
    maxconn 4096
    nbthread 1
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server {idle}ms
    timeout tunnel {idle}ms
frontend gateway
    bind {host}:{port}
    http-request return status 200 if {{ path /ready }}
    default_backend server
backend server
    option http-no-delay
    server server {upstream}
"""

_CADDY = """\
{{
    admin unix/{folder}/admin.sock
    auto_https off
    log {{
        level ERROR
    }}
    servers {{
        timeouts {{
            write {total}ms
        }}
    }}
}}
http://:{port} {{
    bind {host}
    respond /ready 200
    reverse_proxy {upstream} {{
        flush_interval -1
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class NginxSettings:
    """Settings of nginx; times in seconds.

    ``idle_seconds`` is the longest time between two reads from the server (proxy_read_timeout);
    nginx's timers expire up to 0.3 s early.  With ``buffering`` nginx reads a response ahead of a
    slow client.  With ``retry`` it sends a request that fails before its response once more
    (proxy_next_upstream).  With ``ignore_client_abort`` it reads a response to its end although the
    client has disconnected (proxy_ignore_client_abort).  ``requests_per_second`` limits all clients
    together; the excess gets HTTP 429, beyond a burst of one second.
    """

    idle_seconds: float = 3600.0
    buffering: bool = False
    retry: bool = False
    ignore_client_abort: bool = False
    requests_per_second: float | None = None

    def config(self, folder: Path, port: int, upstream: str) -> str:
        """Return the configuration file."""
        rate = self.requests_per_second
        return _NGINX.format(
            # As root, nginx would switch to a user that may not enter the folder.
            user="user root;\n" if os.geteuid() == 0 else "",
            folder=folder,
            host=HOST,
            port=port,
            upstream=upstream,
            idle=_milliseconds(self.idle_seconds),
            buffering="on" if self.buffering else "off",
            ignore_client_abort="on" if self.ignore_client_abort else "off",
            retries="error timeout non_idempotent" if self.retry else "off",
            second_try=f"server {upstream} max_fails=0;" if self.retry else "",
            requests_per_minute=max(1, round((rate or 1) * 60)),
            rate_limit=f"limit_req zone=all burst={max(1, round(rate))} nodelay;" if rate else "",
        )


@dataclass(frozen=True, slots=True)
class HaproxySettings:
    """Settings of HAProxy: ``idle_seconds`` is its timeout server."""

    idle_seconds: float

    def config(self, _: Path, port: int, upstream: str) -> str:
        """Return the configuration file."""
        idle = _milliseconds(self.idle_seconds)
        return _HAPROXY.format(host=HOST, port=port, upstream=upstream, idle=idle)


@dataclass(frozen=True, slots=True)
class CaddySettings:
    """Settings of Caddy: ``total_seconds`` is the time from a request to its response's end."""

    total_seconds: float

    def config(self, folder: Path, port: int, upstream: str) -> str:
        """Return the configuration file."""
        total = _milliseconds(self.total_seconds)
        return _CADDY.format(folder=folder, host=HOST, port=port, upstream=upstream, total=total)


GatewaySettings = NginxSettings | HaproxySettings | CaddySettings

_PROGRAMS: Mapping[type[GatewaySettings], tuple[str, tuple[str, ...]]] = {
    NginxSettings: ("nginx", ("-p", "{folder}", "-e", "stderr", "-c", "{config}")),
    HaproxySettings: ("haproxy", ("-db", "-f", "{config}")),
    CaddySettings: ("caddy", ("run", "--adapter", "caddyfile", "--config", "{config}")),
}


@dataclass(frozen=True)
class Gateway(ServerProcess):
    """A running gateway in front of ``upstream``, an address with port."""

    program: Path
    upstream: str

    def reload(self, settings: GatewaySettings, upstream: str | None = None) -> None:
        """Change the settings, or the base URL of the server, for new requests.

        Responses in flight continue with the old settings at nginx, and are cut by Caddy.  Raises
        ServerError if Caddy refuses, and for HAProxy, which would have to be restarted.
        """
        address = urlsplit(upstream).netloc if upstream else self.upstream
        config = _write_config(self.log.parent, self.ports[0], address, settings)
        if isinstance(settings, NginxSettings):
            os.kill(self.pid, signal.SIGHUP)
            return
        if isinstance(settings, HaproxySettings):
            raise ServerError("haproxy is run without a master process and cannot be reloaded")
        command: list[str | Path] = [self.program, "reload", "--adapter", "caddyfile"]
        admin = f"unix/{self.log.parent}/admin.sock"
        done = subprocess.run(
            [*command, "--config", config, "--address", admin], capture_output=True, text=True
        )
        if done.returncode:
            raise ServerError(f"caddy kept its configuration:\n{done.stderr.strip()}")


def start(settings: GatewaySettings, folder: Path, upstream: str, progress: Progress) -> Gateway:
    """Start a gateway in front of the base URL `upstream`, with its files in `folder`."""
    name, options = _PROGRAMS[type(settings)]
    program, folder = toolchain.program(name, progress), folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    address = urlsplit(upstream).netloc

    def command(ports: Sequence[int]) -> list[str | Path]:
        config = _write_config(folder, ports[0], address, settings)
        return [program, *(option.format(folder=folder, config=config) for option in options)]

    homes = {"XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    server = serve(
        ServerProcess,
        name,
        command,
        folder / f"{name}.log",
        ready="/ready",
        env=toolchain.environment(program) | homes,
    )
    process = (server.name, server.ports, server.log, server.pid, server.supervisor)
    return Gateway(*process, program, address)


def _write_config(folder: Path, port: int, upstream: str, settings: GatewaySettings) -> Path:
    config = folder / f"{_PROGRAMS[type(settings)][0]}.conf"
    config.write_text(settings.config(folder, port, upstream))
    return config


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
