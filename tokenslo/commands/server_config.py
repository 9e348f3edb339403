"""``tokenslo server-config``: the settings of servers and gateways that SLO files need."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from admission.engine_options import SERVERS
from admission.envoy_gateway import GatewayNames
from admission.rendering import PARTS, AdmissionOutput
from exporter.doctor.server_config import server_config as histogram_settings
from slos.model import Service
from tokenslo.admission_options import MISSING, CapacityOptions, admission_options
from tokenslo.files import files_argument, libraries_option, load_all

_CAPACITY = ("capacity", "rate")


@click.command()
@files_argument
@libraries_option
@admission_options
@click.option(
    "--server",
    type=click.Choice(list(SERVERS)),
    default="triton",
    show_default=True,
    help="Server that gets the limits.",
)
@click.option(
    "--only",
    type=click.Choice(list(PARTS)),
    default=None,
    help="Print only this part of the limits.",
)
def server_config(
    files: tuple[str, ...],
    libraries: tuple[Path, ...],
    server: str,
    only: str | None,
    route: str | None,
    gateway: str | None,
    host: str | None,
    namespace: str | None,
    tenant_header: str | None,
    **options: Any,
) -> None:
    """Print the Triton settings that SLO files need, and limits that keep their objectives.

    With the settings Triton's first-response histogram exists, and has the thresholds of the
    objectives as bucket boundaries, so that counts within a threshold are exact.

    With a measured capacity, the limits follow: work of a request, queues, requests in flight,
    rates, retries, and timeouts from the client to the engine, each with its arithmetic; and the
    settings of Triton or another server, Envoy Gateway, Envoy AI Gateway and Istio.
    """
    services = load_all(files, libraries)
    tool = version("tokenslo")
    if all(options[name] is None for name in _CAPACITY):
        if given := _given(click.get_current_context()):
            raise click.UsageError(f"{given} needs a capacity. Fix: {MISSING}.")
        click.echo(histogram_settings(services, tool), nl=False)
        return
    plan = CapacityOptions(**options).plan(services)
    names = _names(plan.service, route, gateway, host, namespace, tenant_header)
    output = AdmissionOutput(plan, names, server, tool)
    if only:
        click.echo(PARTS[only](output), nl=False)
        return
    parts = [histogram_settings(services, tool), *(part(output) for part in PARTS.values())]
    click.echo("\n".join(parts), nl=False)


def _given(ctx: click.Context) -> str:
    """Return the first option that was given, empty without one."""
    for param in ctx.command.params:
        name = param.name or ""
        is_given = ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
        if is_given and name not in ("files", "libraries"):
            return param.opts[0]
    return ""


def _names(
    service: Service,
    route: str | None,
    gateway: str | None,
    host: str | None,
    namespace: str | None,
    tenant_header: str | None,
) -> GatewayNames:
    own = service.service
    return GatewayNames(
        route or own, gateway or own, host or own, namespace or "", tenant_header or ""
    )
