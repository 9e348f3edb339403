"""``tokenslo check-config``: check the configuration of LLM servers against objectives."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import click

from config_checks.checking import check
from config_checks.findings import SEVERITIES
from config_checks.loading import load
from config_checks.rendering import as_json, as_sarif, as_text
from config_checks.table import CHECKS
from slos.terminal_text import terminal_text
from tokenslo.admission_options import (
    CapacityOptions,
    capacity_option,
    input_tokens_option,
    output_tokens_option,
)
from tokenslo.file_name import FILE_NAME
from tokenslo.files import libraries_option, load_all


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="DIR|FILE...", type=FILE_NAME)
@click.option(
    "--slo",
    multiple=True,
    metavar="FILE",
    type=FILE_NAME,
    help="SLO file whose objectives the configuration must allow; repeatable.",
)
@libraries_option
@capacity_option
@input_tokens_option
@output_tokens_option
@click.option(
    "--topology",
    metavar="FILE",
    type=FILE_NAME,
    help="Output of `nvidia-smi topo -m`, for tensor-parallel groups.",
)
@click.option(
    "--fail-on",
    type=click.Choice(list(SEVERITIES)),
    default="warning",
    show_default=True,
    help="Lowest severity for exit code 1.",
)
@click.option(
    "--disable", multiple=True, metavar="ID", help="Disable a check, such as TC011; repeatable."
)
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
@click.option("--sarif", is_flag=True, help="Print SARIF 2.1.0.")
def check_config(
    paths: tuple[str, ...],
    slo: tuple[str, ...],
    libraries: tuple[Path, ...],
    capacity: str | None,
    input_tokens: int | None,
    output_tokens: int | None,
    topology: str | None,
    fail_on: str,
    disable: tuple[str, ...],
    json_: bool,
    sarif: bool,
) -> int:
    """Check Triton model repositories, LLM options, Kubernetes manifests and Helm values.

    A DIR is searched for config.pbtxt, model.yaml, config.json of engines, and other YAML files.
    Nothing in it is executed. Each finding names the indicators of the objectives that it
    threatens; checks whose input is missing are listed with the reason. The exit code is 1 if
    there are findings of the severity --fail-on or above, and 2 if a file cannot be read.
    """
    if json_ and sarif:
        raise click.UsageError("give --json or --sarif, not both.")
    if unknown := sorted({*disable} - CHECKS.keys()):
        raise click.BadParameter(f"there is no check {', '.join(unknown)}.", param_hint="--disable")
    services = load_all(slo, libraries)
    measured = CapacityOptions(capacity, input_tokens=input_tokens, output_tokens=output_tokens)
    config, notes = load(
        paths,
        topology=topology,
        services=services,
        output_tokens=output_tokens or 0,
        input_tokens=input_tokens or 0,
        plan=measured.optional_plan(services),
    )
    report = check(config, disabled=disable, notes=notes)
    tool = version("tokenslo")
    if json_ or sarif:
        text = as_json(report, tool) if json_ else as_sarif(report, tool)
    else:
        text = terminal_text(as_text(report))
    click.echo(text, nl=False)
    lowest = [*SEVERITIES].index(fail_on)  # type: ignore[arg-type]
    return int(any(SEVERITIES.index(each.severity) >= lowest for each in report.findings))
