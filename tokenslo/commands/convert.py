"""``tokenslo convert``: convert SLO files of other tools, or to OpenSLO."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import click

from slos import openslo_export, writer
from slos.load import load_file
from tokenslo import output
from tokenslo.file_name import FILE_NAME
from tokenslo.files import input_name, libraries_option


@click.command()
@click.argument(
    "file", metavar="FILE", type=FILE_NAME, callback=lambda _, __, file: input_name(file)
)
@libraries_option
@click.option(
    "--to",
    "language",
    type=click.Choice(("tokenslo", "openslo")),
    default="tokenslo",
    show_default=True,
    help="tokenslo/v1, or openslo/v1.",
)
@output.target_option
@output.force_option
def convert(
    file: str, libraries: tuple[Path, ...], language: str, target: Path | None, force: bool
) -> None:
    """Convert an SLO file of Sloth, Pyrra, OpenSLO or tokenslo; - is standard input.

    An existing file is replaced only with --force, and the input never.

    What is not converted is reported on standard error, and in comments of a tokenslo file. The
    exit code is 1 if a part of an objective is lost: search the file for comments marked LOST.
    """
    output.check_target(target, Path(file), force=force)
    loaded = load_file(file, libraries, partly=True)
    about = f"Converted by tokenslo {version('tokenslo')} from {Path(file).name}."
    notes = list(loaded.notes)
    if language == "openslo":
        notes += openslo_export.left_out(loaded.services)
        text = openslo_export.text(loaded.services, about=about)
    else:
        text = writer.text(loaded.services, notes, about=about)
    for note in notes:
        click.echo(note, err=True)
    output.deliver(text, target)
    if any(note.lost for note in notes):
        raise click.exceptions.Exit(1)
