"""Load settings from defaults, a YAML file, environment variables and flags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from exporter.settings.conflicts import COMMAND_LINE, GivenSetting, conflicts
from exporter.settings.options import BY_NAME, OPTIONS, PREFIX
from exporter.settings.values import Settings
from slos.errors import BadValue, InvalidFile, Problem

ENVIRONMENT = "environment"


def load_settings(
    flags: Mapping[str, Sequence[str]], environ: Mapping[str, str], file: str | None = None
) -> Settings:
    """Load the settings; ``flags`` are the values given on the command line, by option name.

    ``file`` is a YAML file; without it ``TOKENSLO_CONFIG`` names one.  Raises InvalidFile with all
    problems in all layers, including values that another layer overrides.
    """
    problems: list[Problem] = []
    file = file or environ.get(f"{PREFIX}CONFIG") or None
    settings: dict[str, tuple[object, GivenSetting]] = {}
    layers = (
        _from_defaults(),
        _from_file(file, problems) if file else (),
        _from_environment(environ),
        _from_flags(flags),
    )
    for layer in layers:
        for given in layer:
            try:
                settings[given.option.attribute] = _parse(given), given
            except BadValue as bad:
                problems.append(given.problem(bad.message, bad.fix))
    if problems:
        raise InvalidFile(problems)
    config = Settings(**{name: value for name, (value, _) in settings.items()})  # type: ignore[arg-type]
    problems += conflicts(config, {name: given for name, (_, given) in settings.items()})
    if problems:
        raise InvalidFile(problems)
    return config


def _parse(given: GivenSetting) -> object:
    if not given.option.many:
        text = given.texts[-1]
        return given.option.parse(text) if text or given.option.default else given.option.unset
    return tuple(given.option.parse(text) for text in given.texts)


def _from_defaults() -> Iterator[GivenSetting]:
    for option in OPTIONS:
        texts = () if option.many else (option.default,)
        yield GivenSetting(option, texts, "defaults", option.name)


def _from_file(file: str, problems: list[Problem]) -> Iterator[GivenSetting]:
    # Without a file, the sidecar needs no reader of documents in memory.
    from exporter.settings.settings_file import settings_of_file

    return settings_of_file(file, problems)


def _from_environment(environ: Mapping[str, str]) -> Iterator[GivenSetting]:
    for option in OPTIONS:
        text = environ.get(option.variable, "")
        if text:
            parts = re.split(option.separator, text) if option.many else ()
            texts = [part.strip() for part in parts] or [text]
            yield GivenSetting(option, tuple(texts), ENVIRONMENT, option.variable)


def _from_flags(flags: Mapping[str, Sequence[str]]) -> Iterator[GivenSetting]:
    for name, texts in flags.items():
        if texts:
            yield GivenSetting(BY_NAME[name], tuple(texts), COMMAND_LINE, f"--{name}")
