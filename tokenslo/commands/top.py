"""``tokenslo top``: show live sidecars in a terminal."""

from __future__ import annotations

import asyncio
import sys
import time
from urllib.parse import urlsplit

import click
from rich.console import Console

from exporter.doctor.sidecar_client import base_url
from promql.http_client import FetchLimits
from tokenslo.http_config import http_config_option, without_credentials
from top.scraper import scrapers
from top.terminal import print_frame, run

_TIMEOUT = 5.0


def _urls(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(base_url(_url(url)) for url in given))


def _url(given: str) -> str:
    try:
        parts = urlsplit(given)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise click.BadParameter(
            f"{given!r} is not an http or https URL, such as http://localhost:9464."
        )
    return without_credentials(given)


@click.command()
@click.argument("urls", nargs=-1, required=True, metavar="URL...", callback=_urls)
@click.option("--once", is_flag=True, help="Print one frame and exit; so does a pipe.")
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 60),
    default=2.0,
    show_default=True,
    help="Seconds between two scrapes of a sidecar.",
)
@click.option(
    "--window",
    type=click.FloatRange(1, 3600),
    default=60.0,
    show_default=True,
    help="Seconds that rates and quantiles cover.",
)
@http_config_option
def top(urls: list[str], once: bool, interval: float, window: float) -> int:
    """Show live sidecars in a terminal: rates, latencies, sequences, KV cache, missed objectives.

    Each URL is that of a tokenslo exporter, such as http://localhost:9464. There is one row per
    model. Rates and quantiles come from the change of counters and histograms over the window,
    with --once over one interval; objectives are those that the sidecar evaluates. The exit code
    of --once is 2 if no sidecar answers.
    """
    live = sys.stdout.isatty() and not once
    console = Console(highlight=False, force_terminal=sys.stdout.isatty())
    sidecars = scrapers(urls, window, FetchLimits(_TIMEOUT, 64 << 20), time.monotonic)
    if not live or console.is_dumb_terminal:
        asyncio.run(print_frame(sidecars, interval, console))
        return 2 if all(one.rows.error for one in sidecars) else 0
    asyncio.run(run(sidecars, interval, console))
    return 0
