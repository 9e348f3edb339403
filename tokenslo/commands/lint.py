"""``tokenslo lint``: check the queries of dashboards and rule files."""

from __future__ import annotations

from importlib.metadata import version

import click

from promql.lint.catalogue import Catalogue, scraped, union
from promql.lint.findings import CHECKS
from promql.lint.linting import lint as lint_files
from promql.lint.report import FORMATS
from promql.literals import duration
from slos.catalogues.named import NAMES, everything, named
from slos.errors import BadValue
from tokenslo.file_name import FILE_NAME
from tokenslo.http_config import http_config_option
from tokenslo.scraped import families


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=FILE_NAME)
@click.option(
    "--metrics",
    multiple=True,
    metavar="URL|FILE",
    type=FILE_NAME,
    help="Exposition of a server, to check names, labels and buckets against; repeatable.",
)
@http_config_option
@click.option(
    "--catalogue",
    multiple=True,
    metavar="NAME",
    help=f"Metrics of a release: {', '.join(NAMES)}; repeatable, and added to --metrics.",
)
@click.option(
    "--scrape-interval",
    metavar="TIME",
    help="Scrape interval of the servers. Default: that of the scrape configurations among the "
    "files, else 30s.",
)
@click.option(
    "--disable", multiple=True, metavar="ID", help="Disable a check, such as TL012; repeatable."
)
@click.option(
    "--format", "format_", type=click.Choice(list(FORMATS)), default="text", show_default=True
)
def lint(
    files: tuple[str, ...],
    metrics: tuple[str, ...],
    catalogue: tuple[str, ...],
    scrape_interval: str | None,
    disable: tuple[str, ...],
    format_: str,
) -> int:
    """Check the queries of Grafana dashboards, Prometheus rule files and Kubernetes manifests.

    A FILE may be a folder, whose JSON and YAML files are checked, or - for standard input.

    Without --metrics and --catalogue, names are checked against all catalogues. The exit code is 1
    if there are findings, and 2 if a file cannot be read.
    """
    interval = None if scrape_interval is None else duration(scrape_interval)
    if scrape_interval is not None and not interval:
        raise click.BadParameter("give a duration such as 30s.", param_hint="--scrape-interval")
    if unknown := sorted({*disable} - CHECKS.keys()):
        raise click.BadParameter(f"there is no check {', '.join(unknown)}.", param_hint="--disable")
    known = everything()
    chosen = [*map(_named, catalogue), *(_scraped(place, known) for place in metrics)]
    report = lint_files(
        files,
        known,
        union(chosen) if chosen else None,
        scrape_interval=interval,
        disabled=disable,
    )
    for file, problem in report.unreadable:
        where = f"{file}:{problem.line}" if problem.line else file
        click.echo(f"{where}: {problem.message}. Fix: {problem.fix}.", err=True)
    click.echo(FORMATS[format_](report, version("tokenslo")), nl=False)
    if report.unreadable:
        return 2
    return 1 if report.findings else 0


def _named(name: str) -> Catalogue:
    try:
        return named(name)
    except BadValue as problem:
        raise click.BadParameter(
            f"{problem.message}; {problem.fix}.", param_hint="--catalogue"
        ) from None


def _scraped(place: str, known: Catalogue) -> Catalogue:
    """Return the catalogue of one exposition."""
    return scraped(
        place,
        (
            (name, family.type, [labels for _, labels, _ in family.samples])
            for name, family in families(place).items()
        ),
        known,
    )
