"""``tokenslo init``: a first SLO file from a live server."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from pathlib import Path

import click

from exporter.doctor.baseline import measure_baseline
from promql.http_client import public
from slos.initial_file import text
from tokenslo import output
from tokenslo.http_config import http_config_option, urls_argument
from tokenslo.servers import model_option, problems_of_command, timeout_option


@click.command()
@urls_argument
@output.target_option
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@model_option
@timeout_option
@http_config_option
def init(
    urls: tuple[str, ...], target: Path | None, force: bool, model: tuple[str, ...], timeout: str
) -> None:
    """Write an initial SLO file from the observed values of live servers.

    Each URL is that of a Triton (its HTTP API or its metrics), a trtllm-serve or a vLLM; or the one
    URL is that of a tokenslo exporter, which measures more. The file has an objective for each
    measurable signal, at a target that is met now, with the source of each number in a comment.
    Servers are only read; this consumes records that a trtllm-serve returns only once.
    """
    if target is not None and target.exists() and not force:
        raise click.ClickException(f"{target}: is there already. Fix: give --force to replace it.")
    options = {"model": model, "timeout": [timeout]}
    with problems_of_command("init"):
        models = asyncio.run(measure_baseline(urls, version("tokenslo"), options))
    where = " and ".join(map(public, urls))
    made = text(models, about=f"Begun by tokenslo {version('tokenslo')} with what {where} showed.")
    if not made:
        fix = "run `tokenslo doctor` there, it says what would change that"
        raise click.ClickException(f"{where}: no objective can be written for it. Fix: {fix}.")
    output.deliver(made, target)
    if target is not None:
        click.echo(f"wrote {target}")
