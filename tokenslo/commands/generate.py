"""``tokenslo generate``: rules, dashboards and runbooks from SLO files."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import click

from alerts import mixin as mixins
from alerts.formats import FORMATS, RELEASES, Format, Options, Release, unsupported
from slos.errors import InvalidFile
from slos.plan import Plan, plan
from tokenslo import output
from tokenslo.files import libraries_option, load_all
from tokenslo.scraped import check_served, metrics_option, series

# What can be generated: each is a package with a function `files`, and its libraries are loaded
# only when it is asked for.
KINDS = ("alerts", "dashboards", "runbooks")


def _kinds(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
    asked = [kind.strip() for kind in text.split(",")]
    unknown = [kind for kind in asked if kind not in KINDS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in asked)


def _formats(_: click.Context, __: click.Parameter, text: str) -> tuple[Format, ...]:
    asked = [name.strip() for name in text.split(",")]
    for name in asked:
        if name not in FORMATS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(FORMATS)}")
    return tuple(name for name in FORMATS if name in asked)


def _labels(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise click.BadParameter(f"{name!r} is not NAME=VALUE, such as release=prometheus")
    return {name: value for name, _, value in pairs}


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@libraries_option
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
    "--format",
    "formats",
    default=FORMATS[0],
    show_default=True,
    metavar="FORMATS",
    callback=_formats,
    help=f"Formats of rule files, separated by commas: {', '.join(FORMATS)}. vmalert and Thanos "
    "read that of Prometheus.",
)
@click.option(
    "--min-prometheus",
    type=click.Choice(RELEASES),
    default=RELEASES[0],
    show_default=True,
    help="The oldest Prometheus that shall read the rules.",
)
@click.option(
    "--namespace", default="", metavar="NAME", help="Namespace of the operator's resource."
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_labels,
    help="Label of the operator's resource, such as release=prometheus; repeatable.",
)
@click.option("--mixin", is_flag=True, help=f"Write {mixins.PATH} too, for those who use Jsonnet.")
@metrics_option
@click.option(
    "--check", is_flag=True, help="Write nothing; exit 1 with a diff if files are not current."
)
def generate(
    files: tuple[str, ...],
    libraries: tuple[Path, ...],
    folder: Path,
    kinds: tuple[str, ...],
    formats: tuple[Format, ...],
    min_prometheus: Release,
    namespace: str,
    labels: dict[str, str],
    mixin: bool,
    metrics: tuple[str, ...],
    check: bool,
) -> None:
    """Generate Prometheus rules, a Grafana dashboard and runbooks from SLO files.

    Nothing is written unless all files are right. Only what changed is written, each file whole or
    not at all. Runbook pages of alerts that no longer exist are removed, if tokenslo wrote them.
    """
    services = load_all(files, libraries)
    check_served(services, series(metrics))
    plans = [plan(service) for service in services]
    options = Options(formats, min_prometheus, namespace, labels)
    if problems := [problem for each in plans for problem in unsupported(each, options)]:
        raise InvalidFile(problems)
    wanted = {path: text for each in plans for path, text in _files(each, kinds, options)}
    if mixin:
        wanted[mixins.PATH] = _mixin(plans, wanted)
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


def _files(plan: Plan, kinds: Iterable[str], options: Options) -> Iterator[tuple[str, str]]:
    about = {"source": _source(plan.service.file), "version": version("tokenslo")}
    for kind in kinds:
        more = {"options": options} if kind == "alerts" else {}
        yield from importlib.import_module(kind).files(plan, **about, **more).items()


def _mixin(plans: Iterable[Plan], files: Iterable[str]) -> str:
    paths = sorted(files)
    return mixins.text(
        [plan.service.service for plan in plans],
        [path for path in paths if path.endswith(".rules.yaml")],
        [path for path in paths if path.startswith("dashboards/")],
        version=version("tokenslo"),
    )


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
