"""``tokenslo signals``: every metric and every method."""

from __future__ import annotations

import click

from exporter.signal_catalogue import page


@click.command()
def signals() -> None:
    """Print the metrics of the sidecar and the methods that provide them, as Markdown."""
    click.echo(page(), nl=False)
