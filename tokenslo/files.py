"""Load the SLO files of a command: paths, folders, and standard input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from slos.document import STDIN
from slos.errors import InvalidFile, Problem
from slos.load import load_file
from slos.model import Service
from tokenslo.file_name import FILE_NAME

SUFFIXES = frozenset({".yaml", ".yml", ".json", ".jsonnet"})
"""How SLO files in a folder end; what they import is no SLO file."""

files_argument = click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=FILE_NAME,
    callback=lambda _, __, given: tuple(inputs(given)),
)
"""SLO files; a folder stands for those in it, ``-`` for standard input."""

libraries_option = click.option(
    "-J",
    "--jpath",
    "libraries",
    multiple=True,
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder for Jsonnet imports, in addition to the file's own; repeatable.",
)


def inputs(given: Iterable[str]) -> Iterator[str]:
    """Yield the files of arguments, in order; subfolders are not searched.

    Raises InvalidFile for a folder without SLO files.
    """
    for name in given:
        if Path(name).is_dir():
            yield from _in_folder(name)
        else:
            yield input_name(name)


def input_name(given: str) -> str:
    """Return the file name of an argument."""
    return STDIN if given == "-" else given


def _in_folder(name: str) -> list[str]:
    try:
        files = sorted(
            str(path)
            for path in Path(name).iterdir()
            if path.suffix in SUFFIXES and path.is_file() and not path.name.startswith(".")
        )
    except OSError as error:
        fix = "give a folder you may read"
        raise InvalidFile(
            [Problem(name, 0, "", f"cannot be read: {error.strerror}", fix)]
        ) from None
    if not files:
        endings = ", ".join(sorted(SUFFIXES))
        message = f"is a folder without a file that ends in {endings}"
        raise InvalidFile([Problem(name, 0, "", message, "give the path of an SLO file")])
    return files


def load_all(files: Iterable[str], libraries: Sequence[Path] = ()) -> tuple[Service, ...]:
    """Load every file; no two services may have the same name.

    ``libraries`` are further folders for imports of Jsonnet files.

    Notes on what is left out of another tool's file go to standard error.  Raises InvalidFile with
    the problems of all of them.
    """
    services: dict[str, Service] = {}
    problems: list[Problem] = []
    for file in files:
        try:
            loaded = load_file(file, libraries)
        except InvalidFile as invalid:
            problems += invalid.problems
            continue
        for note in loaded.notes:
            click.echo(note, err=True)
        for service in loaded.services:
            first = services.setdefault(service.service, service)
            if first is not service:
                problems.append(_again(service, first))
    if problems:
        raise InvalidFile(problems)
    return tuple(services.values())


def _again(service: Service, first: Service) -> Problem:
    where = first.file if first.file != service.file else "this file, which is given twice"
    message = f'"{service.service}" is also the service of {where}'
    fix = "give every service a name of its own"
    return Problem(service.file, service.line, "service", message, fix)
