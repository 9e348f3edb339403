"""``tokenslo schema``: the language of SLO files, for editors."""

from __future__ import annotations

import click

from slos.json_schema import text


@click.command()
def schema() -> None:
    """Print the JSON Schema of SLO files, for editors.

    For the YAML language server, begin a file with "# yaml-language-server: $schema=" and the
    path or URL of the schema.
    """
    click.echo(text(), nl=False)
