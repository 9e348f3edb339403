"""Options of commands that make HTTP requests: the file with credentials, and URLs without any."""

from __future__ import annotations

from urllib.parse import urlsplit

import click

from tokenslo.file_name import FILE_NAME


def _use(ctx: click.Context, _: click.Parameter, given: str | None) -> None:
    if given is None:
        return
    from promql.client_config import http_client_config
    from slos.http_client_config import read_http_client_config

    ctx.with_resource(http_client_config(read_http_client_config(given)))


http_config_option = click.option(
    "--http-config",
    metavar="FILE",
    type=FILE_NAME,
    expose_value=False,
    callback=_use,
    help="Prometheus' HTTP client configuration (basic_auth, authorization, tls_config, "
    "proxy_url) for requests to the servers of the other options.",
)


def without_credentials(url: str) -> str:
    """Return a URL; raises BadParameter if it holds a password, which process lists show."""
    try:
        found = "@" in urlsplit(url).netloc
    except ValueError:
        return url  # refused where it is used
    if found:
        raise click.BadParameter(
            "a URL with credentials is visible in process lists. Write them into --http-config "
            "FILE, as basic_auth with username and password_file."
        )
    return url


urls_argument = click.argument(
    "urls",
    nargs=-1,
    required=True,
    metavar="URL...",
    callback=lambda _, __, given: tuple(map(without_credentials, given)),
)
