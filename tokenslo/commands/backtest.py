"""``tokenslo backtest``: what the alerts would have done on a Prometheus's history."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from alerts.backtest import Backtest, History, aligned, backtest
from alerts.backtest_report import as_json, as_text
from promql.client import PrometheusError, query_range
from promql.expr import Expr
from slos.errors import InvalidFile, Problem
from slos.plan import Plan, plan
from tokenslo.files import libraries_option, load_all

STEP = 60.0
POINTS = 2_000
"""At once: less than Prometheus's limit of 11,000, and small enough to see the work go on."""
_DAY = 86_400


@click.command("backtest")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@libraries_option
@click.option("--prometheus", "url", required=True, metavar="URL", help="Where the history is.")
@click.option(
    "--days", type=click.IntRange(1, 366), default=7, show_default=True, help="How far back."
)
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def backtest_(
    files: tuple[str, ...], libraries: tuple[Path, ...], url: str, days: int, json_: bool
) -> None:
    """Say which alerts would have fired on stored history, when and for how long.

    Also how the budget went and the tightest target that this history would have met. The rules
    need not have been there: what they record is computed from the metrics themselves. Nothing is
    written to Prometheus.
    """
    plans = [plan(service) for service in load_all(files, libraries)]
    if grouped := [problem for each in plans for problem in _grouped(each)]:
        raise InvalidFile(grouped)
    end = time.time() // STEP * STEP
    start = end - days * _DAY + STEP
    asked = sum(len(each.objectives) for each in plans) * 2 * len(_parts(start, end))
    terminal = Console(stderr=True)
    with Progress(console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        advance = partial(progress.advance, progress.add_task("asking Prometheus", total=asked))
        try:
            tested = [(each, _tested(each, url, start, end, advance)) for each in plans]
        except PrometheusError as error:
            raise click.ClickException(str(error)) from None
    if json_:
        click.echo(as_json(tested), nl=False)
    else:
        click.echo("\n".join(as_text(*each) for each in tested), nl=False)


def _grouped(plan: Plan) -> Iterator[Problem]:
    """Refuse what would have to be told for each group: the answer would be of all of them."""
    for index, objective in enumerate(plan.service.objectives):
        if objective.group_by:
            yield Problem(
                plan.service.file,
                objective.line,
                f"objectives[{index}].group_by",
                "cannot be tested on history, as it is one objective for each group",
                "test a copy without group_by and with a selector for one group",
            )


def _tested(
    plan: Plan, url: str, start: float, end: float, advance: Callable[[], None]
) -> list[Backtest]:
    found = []
    for planned in plan.objectives:
        bad, total = (
            _rates(url, expr, start, end, advance)
            for expr in (planned.events.bad, planned.events.total)
        )
        found.append(backtest(plan, planned, History(start, STEP, bad, total)))
    return found


def _rates(
    url: str, expr: Expr, start: float, end: float, advance: Callable[[], None]
) -> Sequence[float | None]:
    values: list[tuple[float, float]] = []
    for first, last in _parts(start, end):
        for series in query_range(url, str(expr), first, last, STEP):
            values += series.values.items()
        advance()
    return aligned(start, STEP, round((end - start) / STEP) + 1, values)


def _parts(start: float, end: float) -> list[tuple[float, float]]:
    """Cut the time into what is asked at once."""
    parts, first = [], start
    while first <= end:
        last = min(end, first + (POINTS - 1) * STEP)
        parts.append((first, last))
        first = last + STEP
    return parts
