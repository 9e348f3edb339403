"""Load metrics to check SLO files against, from a server or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from exporter.sources.exposition.text_parser import ParsedFamily

from slos.errors import InvalidFile
from slos.missing_metrics import Served, unserved
from slos.model import Service
from tokenslo.file_name import FILE_NAME
from tokenslo.http_config import http_config_option, without_credentials

Function = TypeVar("Function", bound=Callable[..., Any])

_MAX_BYTES = 32 << 20
OPTION = "--metrics"

_metrics = click.option(
    OPTION,
    multiple=True,
    metavar="URL|FILE",
    type=FILE_NAME,
    help="Exposition that must contain every metric, with a bucket boundary at every threshold; "
    "repeatable.",
)


def metrics_option(function: Function) -> Function:
    """Add the options of commands that check SLO files against servers."""
    return _metrics(http_config_option(function))


def families(place: str) -> dict[str, ParsedFamily]:
    """Read the metrics at a URL or in a file, by the name of their families."""
    from exporter.sources.exposition.text_parser import ExpositionError, read

    try:
        found = read(_body(place))
    except ExpositionError as error:
        message = f"{place} does not hold metrics as Prometheus reads them: {error}."
        raise click.BadParameter(message, param_hint=OPTION) from None
    if not found:
        raise click.BadParameter(f"{place} has no metrics.", param_hint=OPTION)
    return found


def series(places: Sequence[str]) -> Served:
    """Return the labels of every series at some places."""
    served: dict[str, list[Mapping[str, str]]] = {}
    for place in places:
        for family in families(place).values():
            for name, labels, _ in family.samples:
                served.setdefault(name, []).append(labels)
    if places and not served:
        raise click.BadParameter("there is no series in any of them.", param_hint=OPTION)
    return served


def check_served(services: Iterable[Service], served: Served) -> None:
    """Check that the metrics of services are served, if an exposition is known.

    Raises InvalidFile with everything that is not.
    """
    asked = services if served else ()
    problems = [problem for service in asked for problem in unserved(service, served)]
    if problems:
        raise InvalidFile(problems)


def _body(place: str) -> bytes:
    if not place.startswith(("http://", "https://")):
        try:
            with Path(place).open("rb") as file:
                return file.read(_MAX_BYTES)
        except OSError as error:
            message = f"{place} cannot be read: {error.strerror}."
            raise click.BadParameter(message, param_hint=OPTION) from None
    import asyncio

    from exporter.samples import SourceError
    from exporter.sources.fetch import fetch
    from promql.http_client import FetchLimits, new_session

    without_credentials(place)

    async def get() -> bytes:
        async with new_session() as session:
            answer = await fetch(session, "GET", place, limits=FetchLimits(10.0, _MAX_BYTES))
            return answer.body

    try:
        return asyncio.run(get())
    except SourceError as error:
        raise click.BadParameter(f"{error}.", param_hint=OPTION) from None
