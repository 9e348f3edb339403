"""``tokenslo validate``: check SLO files."""

from __future__ import annotations

import json
from pathlib import Path

import click

from slos.errors import InvalidFile, Problem
from slos.imports.drafts import Note
from slos.load import Loaded, load_file
from tokenslo.files import files_argument, libraries_option
from tokenslo.output import quiet_option
from tokenslo.scraped import check_served, metrics_option, series


@click.command()
@files_argument
@libraries_option
@metrics_option
@click.option("--json", "json_", is_flag=True, help="Print JSON, with the problems in it.")
@quiet_option
def validate(
    files: tuple[str, ...],
    libraries: tuple[Path, ...],
    metrics: tuple[str, ...],
    json_: bool,
    quiet: bool,
) -> None:
    """Check SLO files of tokenslo, Sloth, OpenSLO or Pyrra, and report every problem.

    A FILE may be a folder, whose YAML, JSON and Jsonnet files are checked, or - for standard input.

    Problems are printed to stderr as "file:line: field: message. Fix: …"; the exit code is then 2.
    """
    served, checked = series(metrics), []
    for file in files:
        loaded = Loaded(())
        problems: tuple[Problem, ...] = ()
        try:
            loaded = load_file(file, libraries)
            check_served(loaded.services, served)
        except InvalidFile as invalid:
            problems = invalid.problems
        checked.append(_result(file, loaded, problems))
        if not json_:
            _print(loaded, problems, quiet=quiet)
    if json_:
        text = json.dumps({"files": checked}, indent=2, ensure_ascii=False)
        click.echo(text)
    if any(each["problems"] for each in checked):
        raise click.exceptions.Exit(2)


def _print(loaded: Loaded, problems: tuple[Problem, ...], *, quiet: bool) -> None:
    for said in (*problems, *(() if problems else loaded.notes)):
        click.echo(said, err=True)
    for service in () if problems or quiet else loaded.services:
        count = len(service.objectives)
        click.echo(f"ok: {service.service}: {count} objective{'s' if count != 1 else ''}")


def _result(file: str, loaded: Loaded, problems: tuple[Problem, ...]) -> dict[str, object]:
    return {
        "file": file,
        "services": [
            {"service": each.service, "objectives": len(each.objectives)}
            for each in (() if problems else loaded.services)
        ],
        "problems": [_problem(each) for each in problems],
        "warnings": [_warning(each) for each in loaded.notes],
    }


def _problem(problem: Problem) -> dict[str, object]:
    return {
        "file": problem.file,
        "line": problem.line or None,
        "field": problem.field,
        "message": problem.message,
        "fix": problem.fix,
    }


def _warning(note: Note) -> dict[str, object]:
    return _problem(note.problem)
