"""Load metrics to check SLO files against, from a server or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from exporter.sources.exposition.text_parser import ParsedFamily

from slos.errors import InvalidFile, Problem
from slos.missing_metrics import Served, unserved
from slos.model import Service
from tokenslo.file_name import FILE_NAME
from tokenslo.http_config import http_config_option, without_credentials

Function = TypeVar("Function", bound=Callable[..., Any])

_MAX_BYTES = 32 << 20
OPTION = "--metrics"
_FIX = "give the page that a server serves at /metrics"

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
    """Read the metrics at a URL or in a file, by the name of their families.

    Raises InvalidFile for a file or page that is no exposition.
    """
    from exporter.sources.exposition.text_parser import ExpositionError, read

    try:
        found = read(_body(place))
    except ExpositionError as error:
        reason = str(error).removeprefix(f"line {error.line}: ")
        message = f"is not an exposition of metrics: {reason}"
        raise _invalid(place, message, line=error.line) from None
    if not found:
        raise _invalid(place, "has no metrics")
    return found


def _invalid(place: str, message: str, fix: str = _FIX, *, line: int = 0) -> InvalidFile:
    return InvalidFile([Problem(place, line, "", message, fix)])


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
                body = file.read(_MAX_BYTES + 1)
        except OSError as error:
            fix = "give the path of a file you may read"
            raise _invalid(place, f"cannot be read: {error.strerror}", fix) from None
        if len(body) > _MAX_BYTES:
            raise _invalid(place, f"is larger than {_MAX_BYTES >> 20} MiB")
        return body
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
