"""Read options that hold names, separated by commas."""

from __future__ import annotations

from typing import TypeVar

import click

from slos.schema import nearest

Name = TypeVar("Name", bound=str)


def names_of(text: str, known: tuple[Name, ...]) -> tuple[Name, ...]:
    """Return the names in ``text``, in the order of ``known``; raises BadParameter for others."""
    found = [name.strip() for name in text.split(",")]
    for name in found:
        if name not in known:
            near = nearest(name, known)
            hint = f" Did you mean {near}?" if near else ""
            raise click.BadParameter(f"{name!r} is not one of {', '.join(known)}.{hint}")
    return tuple(name for name in known if name in found)
