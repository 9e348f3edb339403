"""Options of commands that read live servers, and their errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import click

from slos.errors import InvalidFile

model_option = click.option(
    "--model",
    multiple=True,
    metavar="GLOB",
    help="Include these models even if they neither stream nor publish engine metrics; repeatable.",
)
timeout_option = click.option(
    "--timeout", default="5s", metavar="TIME", help="Time limit of a response."
)


@contextmanager
def problems_of_command(command: str) -> Iterator[None]:
    """Report problems with servers by the arguments of ``command``."""
    try:
        yield
    except InvalidFile as refused:
        ours = {"--triton": "URL"}
        raise InvalidFile(
            replace(each, file=f"tokenslo {command}", field=ours.get(each.field, each.field))
            for each in refused.problems
        ) from None
