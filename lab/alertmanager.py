"""Start a real Alertmanager on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab import toolchain
from lab.process import HOST, ServerProcess, serve


class Alertmanager(ServerProcess):
    """A running Alertmanager; its HTTP API is under `url`."""


def start(
    program: Path, folder: Path, config: Path, *, arguments: Sequence[str] = ()
) -> Alertmanager:
    """Start Alertmanager on the file `config`, with its data and log in `folder`."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)

    def command(ports: Sequence[int]) -> list[str | Path]:
        return [
            program,
            f"--config.file={config.absolute()}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address={HOST}:{ports[0]}",
            "--cluster.listen-address=",
            *arguments,
        ]

    return serve(
        Alertmanager,
        "alertmanager",
        command,
        folder / "alertmanager.log",
        ready="/-/ready",
        cwd=toolchain.root(program),
    )
