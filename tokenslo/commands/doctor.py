"""``tokenslo doctor``: report which signals a live server provides."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from pathlib import Path

import click

from exporter.doctor.doctor import as_json, as_sarif, as_text, diagnose
from slos.terminal_text import terminal_text
from tokenslo.admission_options import (
    CapacityOptions,
    capacity_option,
    input_tokens_option,
    output_tokens_option,
)
from tokenslo.file_name import FILE_NAME
from tokenslo.files import libraries_option, load_all
from tokenslo.http_config import http_config_option, urls_argument
from tokenslo.servers import model_option, problems_of_command, timeout_option


@click.command()
@urls_argument
@click.option(
    "--slo", multiple=True, metavar="FILE", type=FILE_NAME, help="SLO file to check; repeatable."
)
@libraries_option
@capacity_option
@input_tokens_option
@output_tokens_option
@model_option
@timeout_option
@http_config_option
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
@click.option("--sarif", is_flag=True, help="Print the configuration's findings as SARIF 2.1.0.")
def doctor(
    urls: tuple[str, ...],
    slo: tuple[str, ...],
    libraries: tuple[Path, ...],
    capacity: str | None,
    input_tokens: int | None,
    output_tokens: int | None,
    model: tuple[str, ...],
    timeout: str,
    json_: bool,
    sarif: bool,
) -> int:
    """Report which signals live servers provide, at what quality, and how to get the others.

    Each URL is that of a Triton (its HTTP API or its metrics), a trtllm-serve, a vLLM or another
    OpenAI-compatible server; or the one URL is that of a tokenslo exporter. The configurations of
    Triton's models are checked as in check-config, with --capacity also against the limits of
    server-config. The servers are only read. The exit code is 1 if
    an objective of an SLO file cannot be measured, and 2 if no server answers.
    """
    if json_ and sarif:
        raise click.UsageError("give --json or --sarif, not both.")
    options = {"model": model, "timeout": [timeout]}
    services = load_all(slo, libraries)
    if capacity is None and (input_tokens or output_tokens):
        raise click.UsageError("--input-tokens and --output-tokens need --capacity.")
    measured = CapacityOptions(capacity, input_tokens=input_tokens, output_tokens=output_tokens)
    plan = measured.optional_plan(services)
    with problems_of_command("doctor"):
        diagnosis = asyncio.run(diagnose(urls, services, version("tokenslo"), options, plan))
    if json_ or sarif:
        click.echo((as_json if json_ else as_sarif)(diagnosis), nl=False)
    else:
        click.echo(terminal_text(as_text(diagnosis)), nl=False)
    return 0 if diagnosis.complete else 1
