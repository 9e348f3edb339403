"""Start a real VictoriaMetrics on this machine, as a receiver of OTLP metrics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.process import HOST, ServerProcess, get, serve


class VictoriaMetrics(ServerProcess):
    """A running VictoriaMetrics."""

    @property
    def otlp(self) -> str:
        """The base URL for OTLP, without ``/v1/metrics``."""
        return f"{self.url}/opentelemetry"

    def series(self) -> list[dict[str, Any]]:
        """Return every series as ``{"metric": labels, "values": […], "timestamps": [ms, …]}``."""
        get(self.ports[0], "/internal/force_flush")
        _, lines = get(self.ports[0], "/api/v1/export?match[]=%7B__name__%21%3D%22%22%7D")
        return [json.loads(line) for line in lines.splitlines()]


def start(program: Path, folder: Path, *, arguments: Sequence[str] = ()) -> VictoriaMetrics:
    """Start VictoriaMetrics with its data and log in ``folder``.

    Names received over OTLP are translated to Prometheus names, with units and ``_total``.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)

    def command(ports: Sequence[int]) -> list[str | Path]:
        return [
            program,
            f"-storageDataPath={folder / 'data'}",
            f"-httpListenAddr={HOST}:{ports[0]}",
            "-opentelemetry.usePrometheusNaming",
            *arguments,
        ]

    return serve(
        VictoriaMetrics,
        "victoria-metrics",
        command,
        folder / "victoria-metrics.log",
        ready="/health",
    )
