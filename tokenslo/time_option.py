"""Read a time in the past: the option ``--at``."""

from __future__ import annotations

import time
from datetime import datetime

import click

from slos.durations import parse_duration

FORMS = "RFC 3339, seconds since the epoch, or a duration before now"


def read_time(_: click.Context, __: click.Parameter, given: str | None) -> float | None:
    """Read a time: RFC 3339, seconds since the epoch, or a duration before now."""
    if given is None:
        return None
    for read in (_epoch, _rfc3339, _ago):
        try:
            return read(given)
        except (ValueError, OverflowError):
            continue
    raise click.BadParameter(
        f"{given!r} is no time. Give RFC 3339 (2026-05-04T12:00:00Z), seconds since the epoch, or "
        "a duration before now (2h)."
    )


def _epoch(given: str) -> float:
    seconds = float(given)
    datetime.fromtimestamp(seconds)  # refuses what is out of bounds
    return seconds


def _rfc3339(given: str) -> float:
    found = datetime.fromisoformat(given)
    if found.tzinfo is None:
        raise click.BadParameter(f"{given!r} has no time zone. Add Z or an offset such as +02:00.")
    return found.timestamp()


def _ago(given: str) -> float:
    return time.time() - float(parse_duration(given))
