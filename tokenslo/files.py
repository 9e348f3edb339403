"""What commands do with the SLO files they are given."""

from __future__ import annotations

from collections.abc import Iterable

from slos.errors import InvalidFile, Problem
from slos.load import load
from slos.model import Service


def load_all(files: Iterable[str]) -> tuple[Service, ...]:
    """Load every file; raises InvalidFile with the problems of all of them."""
    services: list[Service] = []
    problems: list[Problem] = []
    for file in files:
        try:
            services.append(load(file))
        except InvalidFile as invalid:
            problems += invalid.problems
    if problems:
        raise InvalidFile(problems)
    return tuple(services)
