"""What commands do with the SLO files they are given."""

from __future__ import annotations

from collections.abc import Iterable

from slos.errors import InvalidFile, Problem
from slos.load import load
from slos.model import Service


def load_all(files: Iterable[str]) -> tuple[Service, ...]:
    """Load every file; no two may be about the same service.

    Raises InvalidFile with the problems of all of them.
    """
    services: dict[str, Service] = {}
    problems: list[Problem] = []
    for file in files:
        try:
            service = load(file)
        except InvalidFile as invalid:
            problems += invalid.problems
            continue
        first = services.setdefault(service.service, service)
        if first is not service:
            problems.append(_again(service, first))
    if problems:
        raise InvalidFile(problems)
    return tuple(services.values())


def _again(service: Service, first: Service) -> Problem:
    message = f'"{service.service}" is also the service of {first.file}'
    fix = "give every SLO file a service of its own"
    return Problem(service.file, service.line, "service", message, fix)
