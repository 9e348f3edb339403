"""Read the file of settings."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from exporter.settings.conflicts import GivenSetting
from exporter.settings.options import BY_NAME, FILES
from exporter.settings.values import one_of
from slos.document import read_document
from slos.errors import Problem, quoted


def settings_of_file(file: str, problems: list[Problem]) -> Iterator[GivenSetting]:
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
