"""``tokenslo signals``: every metric and every method."""

from __future__ import annotations

import click

from exporter.signal_catalogue import page


@click.command()
def signals() -> None:
    """Print every metric the sidecar serves and every way it has to obtain it, as Markdown."""
    click.echo(page(), nl=False)
