"""Load settings from defaults, a YAML file, environment variables and flags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from exporter.settings.conflicts import COMMAND_LINE, GivenSetting, conflicts
from exporter.settings.options import BY_NAME, FILES, OPTIONS, PREFIX
from exporter.settings.values import Settings, one_of
from slos.document import read_document
from slos.errors import BadValue, InvalidFile, Problem, quoted

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


def _from_file(file: str, problems: list[Problem]) -> Iterator[GivenSetting]:
    """Yield the settings of a YAML file; paths in it are relative to its folder."""
    document = read_document(file)
    if not isinstance(document.value, dict):
        fix = "write settings such as `triton: http://127.0.0.1:8000`"
        problems.append(Problem(file, document.line(()), "", "is not a mapping of settings", fix))
        return
    for key, value in document.value.items():
        line = document.line((key,))
        option = BY_NAME.get(key)
        if option is None:
            problems.append(_unknown(file, line, key))
            continue
        entries = value if isinstance(value, list) and option.many else [value]
        if option.flag and isinstance(value, bool):
            entries = [str(value).lower()]
        if not all(
            isinstance(entry, str | int | float) and not isinstance(entry, bool)
            for entry in entries
        ):
            what = "a list of strings" if option.many else "a single value"
            problems.append(
                Problem(file, line, key, "has a value of the wrong type", f"write {what}")
            )
            continue
        texts = [str(entry) for entry in entries]
        if key in FILES:
            texts = [str(Path(file).parent / text) for text in texts]
        yield GivenSetting(option, tuple(texts), file, key, line)


def _unknown(file: str, line: int, key: str) -> Problem:
    close = get_close_matches(key, BY_NAME, n=1)
    fix = f"write {close[0]}" if close else f"use {one_of(BY_NAME)}"
    return Problem(file, line, "", f"{quoted(key)} is not a setting", fix)
