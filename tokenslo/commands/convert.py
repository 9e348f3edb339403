"""``tokenslo convert``: another tool's SLO file as ours, or any as OpenSLO."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import click

from slos import openslo_export, write
from slos.load import load_file
from tokenslo import output
from tokenslo.files import libraries_option


@click.command()
@click.argument("file", metavar="FILE")
@libraries_option
@click.option(
    "--to",
    "language",
    type=click.Choice(("tokenslo", "openslo")),
    default="tokenslo",
    show_default=True,
    help="tokenslo/v1, or openslo/v1.",
)
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File to write, instead of standard output.",
)
def convert(file: str, libraries: tuple[Path, ...], language: str, target: Path | None) -> None:
    """Convert an SLO file of Sloth, Pyrra, OpenSLO or tokenslo.

    What the result does not say is told on standard error, and in comments of a tokenslo file. The
    exit code is 1 if a promise is another one without it: then see to the comments marked LOST.
    """
    loaded = load_file(file, libraries, partly=True)
    about = f"Converted by tokenslo {version('tokenslo')} from {Path(file).name}."
    notes = list(loaded.notes)
    if language == "openslo":
        for service in loaded.services:
            notes += openslo_export.left_out(service)
        text = openslo_export.text(loaded.services, about=about)
    else:
        text = write.text(loaded.services, notes, about=about)
    for note in notes:
        click.echo(note, err=True)
    if target is None:
        click.echo(text, nl=False)
    else:
        _write(target, text)
    if any(note.lost for note in notes):
        raise click.exceptions.Exit(1)


def _write(target: Path, text: str) -> None:
    try:
        output.apply(output.Change(target, None, text))
    except OSError as error:
        raise click.ClickException(f"{error.filename or target}: {error.strerror}") from None
