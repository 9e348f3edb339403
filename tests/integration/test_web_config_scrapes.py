"""Prometheus scrapes a sidecar that ``--web-config`` protects."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from lab.prometheus import Prometheus
from promql.client import query
from tests.polling import read_until
from tests.test_web_config import MUTUAL, PASSWORD, TLS, USERS
from tests.test_web_config import pairs as pairs

CLIENTS: dict[str, dict[str, Any]] = {
    "anonymous": {},
    "password": {"basic_auth": {"username": "prometheus", "password": PASSWORD}},
    "guess": {"basic_auth": {"username": "prometheus", "password": "guess"}},
    "certificate": {"tls_config": {"cert_file": "client.pem", "key_file": "client.key"}},
    "stranger": {"tls_config": {"cert_file": "stranger.pem", "key_file": "stranger.key"}},
}


@contextmanager
def sidecar(web_config: Path) -> Iterator[str]:
    """Run a sidecar; yield the address that it serves."""
    options = ("--listen", "127.0.0.1:0", "--web-config", web_config)
    command = [sys.executable, "-m", "tokenslo", "exporter", "--triton", "http://127.0.0.1:1"]
    log = web_config.with_name("sidecar.log")
    with (
        log.open("w") as errors,
        subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        try:
            assert process.stdout
            found = re.search(r"(https://\S+)/metrics", process.stdout.readline().decode())
            assert found, log.read_text()
            yield urlsplit(found[1]).netloc
        finally:
            process.terminate()


def configure(server: Prometheus, file: Path, address: str) -> None:
    """Scrape the sidecar as each of the clients."""
    config = yaml.safe_load(file.read_text())
    config["scrape_configs"] = [
        {
            "job_name": name,
            "scheme": "https",
            "static_configs": [{"targets": [address]}],
            **client,
            "tls_config": {"ca_file": "server.pem", **client.get("tls_config", {})},
        }
        for name, client in CLIENTS.items()
    ]
    file.write_text(yaml.safe_dump(config))
    server.reload()


def scraped(server: Prometheus) -> dict[str, float]:
    """Return the jobs whose last scrape succeeded, with the number of their sidecars."""
    return {
        each.labels["job"]: each.value
        for each in query(server.url, "count by (job) (tokenslo_build_info and on (job) up == 1)")
    }


def test_prometheus_scrapes_with_a_password_and_after_a_reload_with_a_certificate(
    prometheus: Callable[..., Prometheus], pairs: Path, tmp_path: Path
) -> None:
    shutil.copytree(pairs, tmp_path, dirs_exist_ok=True)
    web_config = tmp_path / "web.yaml"
    web_config.write_text(TLS + USERS)
    with (
        sidecar(web_config) as address,
        prometheus(tmp_path, scrape={}, interval=0.2) as server,
    ):
        configure(server, tmp_path / "prometheus.yml", address)
        assert read_until(lambda: scraped(server), bool) == {"password": 1.0}
        down = read_until(lambda: query(server.url, "up == 0"), lambda found: len(found) == 4)
        assert {each.labels["job"] for each in down} == CLIENTS.keys() - {"password"}

        web_config.write_text(MUTUAL)
        expected = {"certificate": 1.0}
        assert read_until(lambda: scraped(server), lambda found: found == expected) == expected
