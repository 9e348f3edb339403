"""Options of commands that query Prometheus: its URL and headers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from promql.http_client import Headers
from tokenslo.http_config import without_credentials

_SECRET = frozenset(
    ("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-auth-token")
)

prometheus_option = click.option(
    "--prometheus",
    "url",
    required=True,
    metavar="URL",
    callback=lambda _, __, url: _url(url),
    help="URL of Prometheus, with its path if it has one.",
)

headers_option = click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="'NAME: VALUE'|@FILE",
    callback=lambda _, __, given: _headers(given),
    help="A header for Prometheus, such as 'X-Scope-OrgID: team', or a file with one a line, which "
    "is the place for secrets; repeatable.",
)


def _url(given: str) -> str:
    if not given.startswith(("http://", "https://")):
        raise click.BadParameter(f"{given!r} is not an http or https URL.")
    return without_credentials(given)


def _headers(given: Sequence[str]) -> Headers:
    headers = {}
    for text in given:
        for line in _lines(text):
            name, colon, value = line.partition(":")
            if not colon or not name.strip():
                where = text if text.startswith("@") else "a header"
                raise click.BadParameter(f"{where} is not of the form 'NAME: VALUE'.")
            if name.strip().lower() in _SECRET and not text.startswith("@"):
                raise click.BadParameter(
                    f"{name.strip()} on the command line is visible in process lists. Write it "
                    "into a file, and give --header @FILE."
                )
            headers[name.strip()] = value.strip()
    return headers


def _lines(text: str) -> Iterator[str]:
    if not text.startswith("@"):
        yield text
        return
    try:
        content = Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise click.BadParameter(f"{text[1:]} cannot be read: {why}.") from None
    yield from filter(str.strip, content.splitlines())
