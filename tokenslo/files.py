"""What commands do with the SLO files they are given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from slos.errors import InvalidFile, Problem
from slos.load import load_file
from slos.model import Service

libraries_option = click.option(
    "-J",
    "--jpath",
    "libraries",
    multiple=True,
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder for imports of Jsonnet files, beside their own; repeatable.",
)


def load_all(files: Iterable[str], libraries: Sequence[Path] = ()) -> tuple[Service, ...]:
    """Load every file; no two services may have the same name.

    ``libraries`` are further folders for imports of Jsonnet files.

    What another tool's file says in vain is told on standard error.  Raises InvalidFile with the
    problems of all of them.
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
