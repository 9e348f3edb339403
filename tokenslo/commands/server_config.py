"""``tokenslo server-config``: the Triton settings that SLO files need."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import click

from exporter.doctor.server_config import server_config as settings
from tokenslo.files import files_argument, libraries_option, load_all


@click.command()
@files_argument
@libraries_option
def server_config(files: tuple[str, ...], libraries: tuple[Path, ...]) -> None:
    """Print the Triton flags and the config.pbtxt stanzas that SLO files need.

    With them Triton's first-response histogram exists, and has the thresholds of the objectives as
    bucket boundaries, so that counts within a threshold are exact.
    """
    click.echo(settings(load_all(files, libraries), version("tokenslo")), nl=False)
