"""``tokenslo backtest``: backtest alerts against Prometheus history."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from alerts.backtest import Backtest, backtest, backtest_all_groups
from alerts.backtest_report import as_json, as_text
from alerts.history import PrometheusHistory
from promql.client import PrometheusError, query_range
from promql.http_client import Headers
from slos.plan import Plan, plan
from slos.terminal_text import terminal_text
from tokenslo.files import files_argument, libraries_option, load_all
from tokenslo.http_config import http_config_option
from tokenslo.prometheus import headers_option, prometheus_option


@click.command("backtest")
@files_argument
@libraries_option
@prometheus_option
@headers_option
@http_config_option
@click.option(
    "--days", type=click.IntRange(1, 366), default=7, show_default=True, help="Days of history."
)
@click.option(
    "--groups",
    "most",
    type=click.IntRange(1, 100),
    default=10,
    show_default=True,
    help="Groups to print of an objective with group_by, the worst first.",
)
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def backtest_(
    files: tuple[str, ...],
    libraries: tuple[Path, ...],
    url: str,
    headers: Headers,
    days: int,
    most: int,
    json_: bool,
) -> None:
    """Backtest alerts against Prometheus history: when each fires, and for how long.

    Prints the error budget by day and the tightest target that this history meets. The rules need
    not be loaded: what they record is computed from the metrics. Nothing is written to Prometheus.
    """
    plans = [plan(service) for service in load_all(files, libraries)]
    terminal = Console(stderr=True)
    with Progress(console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        task = progress.add_task("querying Prometheus")
        archive = PrometheusHistory(
            partial(query_range, url, headers=headers),
            days,
            time.time(),
            partial(progress.advance, task),
        )
        progress.update(task, total=archive.work(plans))
        try:
            tested = [(each, list(_tested(each, archive, most))) for each in plans]
        except PrometheusError as error:
            raise click.ClickException(str(error)) from None
    if json_:
        click.echo(as_json(tested), nl=False)
    else:
        text = "\n".join(as_text(*each) for each in tested)
        click.echo(terminal_text(text), nl=False)


def _tested(plan: Plan, archive: PrometheusHistory, most: int) -> Iterator[Backtest]:
    for planned in plan.objectives:
        whole = archive.whole(plan, planned)
        if not planned.objective.group_by:
            yield backtest(plan, planned, whole)
            continue
        found = archive.groups(planned, most)
        yield backtest_all_groups(plan, planned, whole, found.count)
        for group, history in archive.by_group(planned, found):
            yield backtest(plan, planned, history, group=group)
