"""Start a real Prometheus on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import yaml

from lab import toolchain
from lab.process import HOST, ServerError, ServerProcess, get, serve
from lab.toolchain import tail


class Prometheus(ServerProcess):
    """A running Prometheus; its HTTP API is under `url`."""

    def reload(self) -> None:
        """Reload configuration and rule files; raises ServerError if Prometheus rejects them."""
        status, text = get(self.ports[0], "/-/reload", "POST")
        if status != 200:  # the reason: in the response for a configuration, in the log for rules
            log = tail(self.log.read_text(errors="replace"), 3)
            raise ServerError(f"{self.name} kept its configuration: {text.strip()}\n{log}")


def start(
    program: Path,
    folder: Path,
    *,
    scrape: Mapping[str, str],
    labels: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    rules: Sequence[Path] = (),
    interval: float = 1.0,
    alertmanager: str | None = None,
    arguments: Sequence[str] = (),
) -> Prometheus:
    """Start Prometheus with its configuration, data and log in `folder`.

    `scrape` maps jobs to the URLs of their metrics, `labels` maps them to labels of their series;
    `rules` are files or patterns; `interval` is the scrape and evaluation interval in seconds;
    `alertmanager` is a base URL. The data of an earlier run in the same folder is kept.
    """
    config = _config(scrape, labels, rules, interval, alertmanager)
    return start_configured(program, folder, config, arguments)


def start_configured(
    program: Path, folder: Path, config: Mapping[str, object], arguments: Sequence[str] = ()
) -> Prometheus:
    """Start Prometheus with the content of its configuration file."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))

    def command(ports: Sequence[int]) -> list[str | Path]:
        return [
            program,
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={HOST}:{ports[0]}",
            "--web.enable-lifecycle",
            *arguments,
        ]

    return serve(
        Prometheus,
        "prometheus",
        command,
        folder / "prometheus.log",
        ready="/-/ready",
        cwd=toolchain.root(program),
    )


def _config(
    scrape: Mapping[str, str],
    labels: Mapping[str, Mapping[str, str]],
    rules: Sequence[Path],
    interval: float,
    alertmanager: str | None,
) -> dict[str, Any]:
    duration = f"{round(interval * 1000)}ms"
    config: dict[str, Any] = {
        "global": {"scrape_interval": duration, "evaluation_interval": duration},
        "rule_files": [str(each.absolute()) for each in rules],
        "scrape_configs": [_job(name, url, labels.get(name, {})) for name, url in scrape.items()],
    }
    if alertmanager:
        config["alerting"] = {"alertmanagers": [_target(alertmanager, {})]}
    return config


def _job(name: str, url: str, labels: Mapping[str, str]) -> dict[str, Any]:
    path = urlsplit(url).path or "/metrics"
    return {"job_name": name, "metrics_path": path, **_target(url, labels)}


def _target(url: str, labels: Mapping[str, str]) -> dict[str, Any]:
    targets = {"targets": [urlsplit(url).netloc], "labels": dict(labels)}
    return {"scheme": urlsplit(url).scheme, "static_configs": [targets]}
