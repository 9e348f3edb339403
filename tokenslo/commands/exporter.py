"""``tokenslo exporter``: run the sidecar."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from exporter.app import run
from exporter.log import set_up
from exporter.settings import OPTIONS, PREFIX, Settings, load_settings
from promql.client_config import DIRECT, HttpClientConfig, http_client_config
from slos.model import Service
from tokenslo.extras import require
from tokenslo.file_name import FILE_NAME
from tokenslo.version import VERSION

Function = TypeVar("Function", bound=Callable[..., Any])

EPILOG = f"""Every option is also an environment variable ({PREFIX}STALE_AFTER for --stale-after;
several values are separated by commas) and a key of the YAML file (stale-after). A flag wins over
the environment, the environment over the file."""


def _settings(function: Function) -> Function:
    for option in reversed(OPTIONS):
        default = f" Default: {option.default}." if option.default else ""
        names = (f"--{option.name}", option.attribute)
        if option.flag:
            flag = click.option(*names, is_flag=True, callback=_given_flag, help=option.help)
        else:
            flag = click.option(
                *names,
                metavar=option.metavar,
                type=FILE_NAME if option.metavar in ("FILE", "DIR") else None,
                multiple=True,
                help=option.help + default,
            )
        function = flag(function)
    return function


def _given_flag(_: click.Context, __: click.Parameter, given: bool) -> tuple[str, ...]:
    return ("true",) if given else ()


@click.command(epilog=EPILOG)
@_settings
@click.option("--config", metavar="FILE", type=FILE_NAME, help="YAML file with settings.")
def exporter(config: str | None, **flags: tuple[str, ...]) -> None:
    """Run the sidecar: read a model server and serve token-level metrics.

    It changes neither the server nor any file. It consumes records that trtllm-serve returns only
    once, and sends requests to a model only with --probe.
    """
    require("exporter")
    given = {option.name: flags[option.attribute] for option in OPTIONS}
    settings = load_settings(given, os.environ, config)
    if settings.otlp_endpoint:
        require("otlp")
    services, http = _services(settings), _http(settings)
    set_up(settings.log_level)
    with http_client_config(http):
        asyncio.run(run(settings, services, VERSION))


# Parsers of files that are not given would only hold memory.


def _services(settings: Settings) -> Sequence[Service]:
    if not settings.slo:
        return ()
    from tokenslo.files import load_all

    return load_all(settings.slo, [*map(Path, settings.jpath)])


def _http(settings: Settings) -> HttpClientConfig:
    if not settings.http_config:
        return DIRECT
    from slos.http_client_config import read_http_client_config

    return read_http_client_config(settings.http_config)
