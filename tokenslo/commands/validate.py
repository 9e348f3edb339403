"""``tokenslo validate``: say whether SLO files are right, and if not, why and what to do."""

from __future__ import annotations

from pathlib import Path

import click

from slos.errors import InvalidFile
from slos.load import load_file
from tokenslo.files import libraries_option
from tokenslo.scraped import check_served, metrics_option, series


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@libraries_option
@metrics_option
def validate(files: tuple[str, ...], libraries: tuple[Path, ...], metrics: tuple[str, ...]) -> None:
    """Check SLO files, ours or another tool's, and name everything that is wrong with them.

    Problems go to standard error as "file:line: field: message. Fix: …"; the exit code is then 2.
    """
    right, served = True, series(metrics)
    for file in files:
        try:
            loaded = load_file(file, libraries)
            check_served(loaded.services, served)
        except InvalidFile as invalid:
            click.echo(invalid, err=True)
            right = False
            continue
        for note in loaded.notes:
            click.echo(note, err=True)
        for service in loaded.services:
            count = len(service.objectives)
            click.echo(f"ok: {service.service}: {count} objective{'s' if count != 1 else ''}")
    if not right:
        raise click.exceptions.Exit(2)
