"""Start a real nginx as a gateway on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lab.process import HOST, ServerProcess, serve

_CONFIG = """\
{user}
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    server {{
        listen {host}:{port};
        location = /ready {{ return 200; }}
        location / {{
            proxy_pass http://{host}:{upstream};
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout {read_timeout}s;
        }}
    }}
}}
"""


def start(
    program: Path, folder: Path, upstream: int, *, read_timeout: float = 3600.0
) -> ServerProcess:
    """Start nginx in front of a local port; `read_timeout` is its `proxy_read_timeout`."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "nginx.conf"

    def command(ports: Sequence[int]) -> list[str | Path]:
        config.write_text(
            _CONFIG.format(
                user="user root;" if os.geteuid() == 0 else "",
                folder=folder,
                host=HOST,
                port=ports[0],
                upstream=upstream,
                read_timeout=round(read_timeout),
            )
        )
        return [program, "-p", folder, "-c", config, "-e", "stderr"]

    return serve(ServerProcess, "nginx", command, folder / "nginx.log", ready="/ready")
