"""The incidents of the lab: each module of this package has some in ``INCIDENTS``."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module

from lab.incidents.incident import Incident


def _incidents() -> Iterator[Incident]:
    for module in pkgutil.iter_modules(__path__):
        yield from import_module(f"{__name__}.{module.name}").INCIDENTS


CATALOGUE: Mapping[str, Incident] = {
    each.key: each for each in sorted(_incidents(), key=lambda each: each.key)
}
"""Incidents by key."""
