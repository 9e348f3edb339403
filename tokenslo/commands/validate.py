"""``tokenslo validate``: say whether SLO files are right, and if not, why and what to do."""

from __future__ import annotations

import click

from slos.errors import InvalidFile
from slos.load import load


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def validate(files: tuple[str, ...]) -> None:
    """Check SLO files (YAML, JSON or Jsonnet) and name everything that is wrong with them.

    Problems go to standard error as "file:line: field: message. Fix: …"; the exit code is then 2.
    """
    right = True
    for file in files:
        try:
            service = load(file)
        except InvalidFile as invalid:
            click.echo(invalid, err=True)
            right = False
        else:
            count = len(service.objectives)
            click.echo(f"ok: {service.service}: {count} objective{'s' if count != 1 else ''}")
    if not right:
        raise click.exceptions.Exit(2)
