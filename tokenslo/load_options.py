"""Values of the options of ``tokenslo load``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import click

from loadtest.settings import LoadKind, LoadLevel, PromptClass
from slos.durations import parse_duration, parse_share
from tokenslo.http_config import without_credentials

T = TypeVar("T")

MAX_TOKENS, MAX_CONCURRENCY, MAX_RATE = 1_000_000, 10_000, 100_000.0
_MAX_LEVELS = 64
_MAX_BODY = 1 << 20
FILES = ("load.json", "load.csv", "load.html")
"""Files of the output folder."""


class LoadValue(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A value that ``read`` parses; its ValueError is the message of the refusal."""

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name = name
        self._read = read

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """Parse text; return any other value, such as a default, as it is."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


def read_url(text: str) -> str:
    """Read an http or https URL without credentials; drop a slash at its end."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"{text!r} is not an http or https URL, such as http://localhost:8000")
    return without_credentials(text).rstrip("/")


def read_seconds(text: str) -> float:
    """Read a duration such as 30s."""
    return float(parse_duration(text))


def read_ratio(text: str) -> float:
    """Read a share such as 5%, from 0% to below 100%."""
    share = float(parse_share(text))
    if not 0 <= share < 1:
        raise ValueError(f"{text!r} is not a share below 100%, such as 5%")
    return share


def read_prompts(text: str) -> tuple[PromptClass, ...]:
    """Read prompt classes such as ``512`` or ``128:0.7,2048:0.3``."""
    found: dict[int, PromptClass] = {}
    for part in text.split(","):
        words, _, weight = part.partition(":")
        one = PromptClass(_whole(words, part), _number(weight or "1", part))
        if one.words < 1 or one.words > MAX_TOKENS or one.weight <= 0 or one.words in found:
            raise _bad_prompts(part)
        found[one.words] = one
    return tuple(found.values())


def read_concurrencies(text: str) -> tuple[LoadLevel, ...]:
    """Read numbers of concurrent requests such as ``1,2,4``."""
    return _levels("concurrency", text, MAX_CONCURRENCY, lambda part: _whole(part, part))


def read_rates(text: str) -> tuple[LoadLevel, ...]:
    """Read rates per second such as ``0.5,1,2``."""
    return _levels("rate", text, MAX_RATE, lambda part: _number(part, part))


def _levels(
    kind: LoadKind, text: str, most: float, read: Callable[[str], float]
) -> tuple[LoadLevel, ...]:
    values = [read(part.strip()) for part in text.split(",")]
    if any(not 0 < value <= most for value in values) or len(values) > _MAX_LEVELS:
        raise ValueError(
            f"{text!r} is not a list of at most {_MAX_LEVELS} numbers above 0 and up to {most:g}, "
            "such as 1,2,4"
        )
    if values != sorted({*values}):
        raise ValueError(f"{text!r} does not ascend: write each load once, the lowest first")
    return tuple(LoadLevel(kind, value) for value in values)


def _whole(text: str, part: str) -> int:
    if not text.strip().isascii() or not text.strip().isdigit() or len(text) > 12:
        raise ValueError(f"{part!r} is not a whole number")
    return int(text)


def _number(text: str, part: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{part!r} is not a number") from None
    if not isfinite(value):
        raise ValueError(f"{part!r} is not a number")
    return value


def _bad_prompts(part: str) -> ValueError:
    return ValueError(
        f"{part!r} is not a length with an optional weight above 0, each length once, such as "
        "128:0.7,2048:0.3"
    )


def read_body(path: str) -> Mapping[str, object]:
    """Read a JSON object from a file: further members of request bodies."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_BODY + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > _MAX_BODY:
        raise ValueError(f"{path} is larger than {_MAX_BODY >> 20} MiB")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        where = f" in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ValueError(f"{path} is not JSON{where}") from None
    if isinstance(found, dict):
        return found
    raise ValueError(f"{path} is not a JSON object, such as " + '{"temperature": 0}')


def check_folder(folder: Path, *, force: bool) -> None:
    """Check before the test that its results can be written after it."""
    existing = [folder / name for name in FILES if (folder / name).exists()]
    if existing and not force:
        raise click.ClickException(f"{existing[0]}: exists. Fix: give --force to replace it.")
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise click.ClickException(f"{nearest}: is not a folder. Fix: choose another --output.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise click.ClickException(
            f"{nearest}: cannot be written: Permission denied. Fix: choose another --output."
        )
