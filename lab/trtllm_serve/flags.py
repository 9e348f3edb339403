"""Convert settings to command-line flags and back: one flag per field of a dataclass."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import fields
from inspect import cleandoc
from typing import Any, TypeVar, get_args, get_type_hints

from lab.engine_settings import EngineSettings
from lab.trtllm_serve.settings import ServeSettings

Settings = EngineSettings | ServeSettings
S = TypeVar("S", EngineSettings, ServeSettings)


def read_flags(arguments: Sequence[str] | None = None) -> tuple[int, ServeSettings, EngineSettings]:
    """Return the port and the settings from command-line arguments.

    Invalid arguments exit the process with an error message.
    """
    parser = ArgumentParser(
        prog="python -m lab.trtllm_serve",
        description="A simulated trtllm-serve on loopback.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=8000)
    for kind in (ServeSettings, EngineSettings):
        _add_flags(parser, kind)
    given = parser.parse_args(arguments)
    try:
        return given.port, _settings(ServeSettings, given), _settings(EngineSettings, given)
    except ValueError as error:
        parser.error(str(error))


def write_flags(settings: Settings) -> list[str]:
    """Return the command-line arguments for settings."""
    arguments = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, bool):
            arguments.append(_flag(field.name if value else f"no-{field.name}"))
        else:
            arguments.append(f"{_flag(field.name)}={value}")
    return arguments


def _add_flags(parser: ArgumentParser, kind: type[Settings]) -> None:
    group = parser.add_argument_group(kind.__name__, cleandoc(kind.__doc__ or ""))
    types = get_type_hints(kind)
    for field in fields(kind):
        options: dict[str, Any] = {"type": types[field.name]}
        if choices := get_args(types[field.name]):
            options = {"choices": choices}
        elif types[field.name] is bool:
            options = {"action": BooleanOptionalAction}
        group.add_argument(_flag(field.name), default=field.default, **options)


def _settings(kind: type[S], given: Namespace) -> S:
    return kind(**{field.name: getattr(given, field.name) for field in fields(kind)})


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
