"""``tokenslo explain``: explain error budgets, and when each alert fires."""

from __future__ import annotations

from decimal import Decimal
from math import isnan
from pathlib import Path

import click

from slos.explain import as_json, as_text
from slos.explain import explain as explained
from slos.plan import plan
from tokenslo.files import files_argument, libraries_option, load_all


@click.command()
@files_argument
@libraries_option
@click.option(
    "--traffic",
    type=click.FloatRange(min=0, min_open=True, max=1e9),
    metavar="RATE",
    help="Events per second, of one group where there are groups: the budget is in events of the "
    "window instead of per million, and alerts that this traffic is too low for never fire.",
)
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def explain(
    files: tuple[str, ...], libraries: tuple[Path, ...], traffic: float | None, json_: bool
) -> None:
    """Explain the error budgets of SLO files, and when each alert fires.

    For each objective: the budget in events and in time of total outage, how long all, half or a
    fifth of the events must fail until each alert fires, and the least number of bad events. Times
    start from a good period, at constant traffic, without the wait for the next scrape.
    """
    if traffic is not None and isnan(traffic):
        raise click.BadParameter("nan is no number of events.", param_hint="--traffic")
    rate = None if traffic is None else Decimal(str(traffic))
    plans = [plan(service) for service in load_all(files, libraries)]
    found = [(each, explained(each, rate)) for each in plans]
    if json_:
        click.echo(as_json(found), nl=False)
    else:
        click.echo("\n".join(as_text(*each) for each in found), nl=False)
