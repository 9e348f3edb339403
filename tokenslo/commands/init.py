"""``tokenslo init``: a first SLO file from a live server."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from pathlib import Path

import click

from exporter.doctor.baseline import look
from exporter.sources.fetch import public
from slos.first_file import text
from tokenslo import output
from tokenslo.servers import asked_by, model_option, timeout_option


@click.command()
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@output.target_option
@click.option("--force", is_flag=True, help="Write the file even if there is one already.")
@model_option
@timeout_option
def init(
    urls: tuple[str, ...], target: Path | None, force: bool, model: tuple[str, ...], timeout: str
) -> None:
    """Write a first SLO file from what live servers have shown so far.

    Each URL is that of a Triton (its HTTP API or its metrics), a trtllm-serve or a vLLM; or the one
    URL is that of a tokenslo exporter, which knows more. The file promises what can be measured
    there and is kept now, and says of each number where it comes from. Nothing is changed there,
    but what a trtllm-serve hands out only once is then gone.
    """
    if target is not None and target.exists() and not force:
        raise click.ClickException(f"{target}: is there already. Fix: give --force to replace it.")
    options = {"model": model, "timeout": [timeout]}
    with asked_by("init"):
        models = asyncio.run(look(urls, version("tokenslo"), options))
    where = " and ".join(map(public, urls))
    made = text(models, about=f"Begun by tokenslo {version('tokenslo')} with what {where} showed.")
    if not made:
        fix = "run `tokenslo doctor` there, it says what would change that"
        raise click.ClickException(f"{where}: nothing can be promised of it. Fix: {fix}.")
    output.deliver(made, target)
    if target is not None:
        click.echo(f"wrote {target}")
