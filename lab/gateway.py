"""Start a real gateway in front of a server on this machine: nginx, HAProxy or Caddy.

nginx and HAProxy have idle time-outs only.  Caddy's ``timeouts write`` limits the whole response.
Each gateway responds to ``/ready`` itself and forwards everything else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lab import toolchain
from lab.process import HOST, ServerProcess, serve

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
    admin off
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
http://{host}:{port} {{
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
    (proxy_next_upstream).  ``requests_per_second`` limits all clients together; the excess gets
    HTTP 429, beyond a burst of one second.
    """

    idle_seconds: float = 3600.0
    buffering: bool = False
    retry: bool = False
    requests_per_second: float | None = None


def nginx(
    program: Path, folder: Path, upstream: str, settings: NginxSettings | None = None
) -> ServerProcess:
    """Start nginx in front of the base URL `upstream`, with its files in `folder`."""
    chosen = settings or NginxSettings()
    rate = chosen.requests_per_second
    values = {
        # As root, nginx would switch to a user that may not enter the folder.
        "user": "user root;\n" if os.geteuid() == 0 else "",
        "idle": round(chosen.idle_seconds * 1000),
        "buffering": "on" if chosen.buffering else "off",
        "retries": "error timeout non_idempotent" if chosen.retry else "off",
        "second_try": f"server {_address(upstream)} max_fails=0;" if chosen.retry else "",
        "requests_per_minute": max(1, round((rate or 1) * 60)),
        "rate_limit": f"limit_req zone=all burst={max(1, round(rate))} nodelay;" if rate else "",
    }
    command: list[str | Path] = [program, "-p", folder, "-e", "stderr", "-c"]
    return _start(command, folder, upstream, _NGINX, values)


def haproxy(program: Path, folder: Path, upstream: str, *, idle_seconds: float) -> ServerProcess:
    """Start HAProxy in front of the base URL `upstream`.

    `idle_seconds` is the longest time without data from the server (timeout server).
    """
    values = {"idle": round(idle_seconds * 1000)}
    return _start([program, "-db", "-f"], folder, upstream, _HAPROXY, values)


def caddy(program: Path, folder: Path, upstream: str, *, total_seconds: float) -> ServerProcess:
    """Start Caddy in front of the base URL `upstream`.

    `total_seconds` is the longest time from the request to the end of the response.
    """
    values = {"total": round(total_seconds * 1000)}
    command: list[str | Path] = [program, "run", "--adapter", "caddyfile", "--config"]
    return _start(command, folder, upstream, _CADDY, values)


def _start(
    command: Sequence[str | Path],
    folder: Path,
    upstream: str,
    template: str,
    values: Mapping[str, object],
) -> ServerProcess:
    """Start a gateway whose command ends with the path of its configuration file."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    program = Path(command[0])
    config = folder / f"{program.name}.conf"

    def complete(ports: Sequence[int]) -> list[str | Path]:
        address = {"host": HOST, "port": ports[0], "upstream": _address(upstream)}
        config.write_text(template.format(folder=folder, **address, **values))
        return [*command, config]

    homes = {"XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    return serve(
        ServerProcess,
        program.name,
        complete,
        folder / f"{program.name}.log",
        ready="/ready",
        env=toolchain.environment(program) | homes,
    )


def _address(url: str) -> str:
    return urlsplit(url).netloc
