"""``tokenslo generate``: rules, dashboards and runbooks from SLO files."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import click

from slos.plan import Plan, plan
from tokenslo import output
from tokenslo.files import load_all

# What can be generated: each is a package with a function `files`, and its libraries are loaded
# only when it is asked for.
KINDS = ("alerts", "dashboards", "runbooks")


def _kinds(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
    asked = [kind.strip() for kind in text.split(",")]
    unknown = [kind for kind in asked if kind not in KINDS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in asked)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "-o",
    "--output",
    "folder",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder for alerts/, dashboards/ and runbooks/.",
)
@click.option(
    "--only",
    "kinds",
    default=",".join(KINDS),
    show_default=True,
    metavar="KINDS",
    callback=_kinds,
    help="What to generate, separated by commas.",
)
@click.option(
    "--check", is_flag=True, help="Write nothing; exit 1 with a diff if files are not current."
)
def generate(files: tuple[str, ...], folder: Path, kinds: tuple[str, ...], check: bool) -> None:
    """Generate Prometheus rules, a Grafana dashboard and runbooks from SLO files.

    Nothing is written unless all files are right. Only what changed is written, each file whole or
    not at all. Runbook pages of alerts that no longer exist are removed, if tokenslo wrote them.
    """
    plans = [plan(service) for service in load_all(files)]
    wanted = {path: text for each in plans for path, text in _files(each, kinds)}
    with _reporting(folder):
        changes = output.changes(folder, wanted, _stale(folder, plans, kinds))
    if check:
        _show(changes, len(wanted))
    else:
        _write(changes, len(wanted))


@contextmanager
def _reporting(path: Path) -> Iterator[None]:
    """Turn what the file system says into one line that names the file."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{error.filename or path}: {error.strerror}") from None


def _files(plan: Plan, kinds: Iterable[str]) -> Iterator[tuple[str, str]]:
    about = {"source": _source(plan.service.file), "version": version("tokenslo")}
    for kind in kinds:
        yield from importlib.import_module(kind).files(plan, **about).items()


def _source(file: str) -> str:
    """Name an SLO file in what is made from it, without telling where this machine keeps it."""
    path = Path(file).absolute()
    here = Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name


def _stale(folder: Path, plans: Iterable[Plan], kinds: Iterable[str]) -> Iterator[Path]:
    """Find runbook pages that tokenslo wrote; those that it would not write now are to go."""
    if "runbooks" not in kinds:
        return
    runbooks = importlib.import_module("runbooks")
    for each in plans:
        for page in sorted((folder / runbooks.folder(each.service.service)).glob("*.md")):
            if page.is_file():
                with page.open(encoding="utf-8", errors="replace") as file:
                    if file.readline().startswith(runbooks.HEADER):
                        yield page


def _show(changes: list[output.Change], total: int) -> None:
    for change in changes:
        click.echo("".join(output.difference(change)), nl=False)
    click.echo(_summary(changes, total, "to write", "to remove"), err=bool(changes))
    if changes:
        raise click.exceptions.Exit(1)


def _write(changes: list[output.Change], total: int) -> None:
    for change in changes:
        with _reporting(change.path):
            output.apply(change)
        click.echo(f"{'removed' if change.new is None else 'wrote'} {change.path}")
    click.echo(_summary(changes, total, "written", "removed"))


def _summary(changes: list[output.Change], total: int, written: str, removed: str) -> str:
    gone = sum(change.new is None for change in changes)
    new = len(changes) - gone
    counts = {"current": total - new, written: new, removed: gone}
    said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{total} files: {said}"
