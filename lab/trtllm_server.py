"""Start a simulated trtllm-serve on this machine, in a separate process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.engine_settings import EngineSettings
from lab.process import ServerProcess, serve
from lab.trtllm_serve.flags import write_flags
from lab.trtllm_serve.settings import ServeSettings


def start(
    folder: Path,
    settings: ServeSettings | None = None,
    engine: EngineSettings | None = None,
) -> ServerProcess:
    """Start a simulated trtllm-serve, with its log and metrics data in `folder`."""
    metrics = folder / "prometheus_multiproc"
    metrics.mkdir(parents=True)

    def command(ports: Sequence[int]) -> list[str | Path]:
        return [
            *(sys.executable, "-m", f"{__package__}.trtllm_serve", f"--port={ports[0]}"),
            *write_flags(settings or ServeSettings()),
            *write_flags(engine or EngineSettings()),
        ]

    return serve(
        ServerProcess,
        "trtllm-serve",
        command,
        folder / "trtllm-serve.log",
        ready="/health",
        env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(metrics)},
    )
